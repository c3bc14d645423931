"""The files that callers send: find, keep, name in a job, give up when nobody needs them any more.

A file is needed while a job that names it is not terminal, and while a schedule names it. It is given up in
two steps: first no new job can name it, then its bytes and its row go. So a job that was accepted finds it.
Functions take a session first and never commit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from sqlalchemy import ColumnElement, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import ReturningUpdate

from core.clock import now
from core.errors import FileInUse, InputGone, NotFound
from core.file_tables import File, JobInput, ScheduleFile
from core.ids import new_id
from core.lifecycle import TERMINAL
from core.pictures import Facts
from core.tables import Job
from policy.pictures import GivenPicture
from policy.references import Content, FileId, read_reference

CHUNK = 500
UPLOAD_S = 3600.0
"""A file whose bytes have not arrived within this time never will."""
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}

_KEPT = (File.stored, File.gone_at.is_(None))


def find_pictures(session: Session, caller: str, references: Iterable[str]) -> dict[str, GivenPicture]:
    """Return the caller's kept files that ``references`` name, by the text that names them."""
    named: dict[str, FileId | Content] = {}
    for text in set(references):
        with suppress(ValueError):
            if isinstance(reference := read_reference(text), FileId | Content):
                named[text] = reference
    ids = [reference.id for reference in named.values() if isinstance(reference, FileId)]
    digests = [reference.sha256 for reference in named.values() if isinstance(reference, Content)]
    found: dict[str, GivenPicture] = {}
    for file in (*_read(session, caller, File.id, ids), *_read(session, caller, File.sha256, digests)):
        picture = GivenPicture(file.id, file.sha256, (file.width, file.height))
        found |= {file.id: picture, f"sha256:{file.sha256}": picture}
    return {text: found[text] for text in named if text in found}


def _read(
    session: Session, caller: str, column: InstrumentedAttribute[str], values: Sequence[str]
) -> Iterator[File]:
    for start in range(0, len(values), CHUNK):
        some = column.in_(values[start : start + CHUNK])
        yield from session.scalars(select(File).where(File.caller == caller, *_KEPT, some))


def get_file(session: Session, file_id: str, caller: str) -> File:
    """Return a kept file; NotFound when there is none, or it is another caller's."""
    statement = select(File).where(File.id == file_id, File.caller == caller, *_KEPT)
    file = session.scalars(statement.execution_options(populate_existing=True)).one_or_none()
    if file is None:
        raise NotFound(f"There is no file {file_id}.")
    return file


def register(session: Session, caller: str, sha256: str, facts: Facts) -> File:
    """Return the row of this content, made if the caller has not sent it before; its time counts anew.

    Bytes are to be stored under its key before ``mark_stored``, unless it says that they are.
    """
    same = [File.caller == caller, File.sha256 == sha256, File.gone_at.is_(None)]
    known = update(File).where(*same).values(sent_at=now()).returning(File)
    if (file := _one(session, known)) is not None:
        return file
    file_id = new_id()
    try:
        with session.begin_nested():
            file = File(
                id=file_id,
                caller=caller,
                key=f"files/{file_id}.{_EXTENSIONS[facts.media_type]}",
                media_type=facts.media_type,
                width=facts.width,
                height=facts.height,
                bytes=facts.bytes,
                sha256=sha256,
            )
            session.add(file)
            session.flush()
    except IntegrityError:  # the same content came in another call just now
        file = _one(session, known)
        if file is None:
            raise
    return file


def mark_stored(session: Session, file_id: str) -> File | None:
    """Note that the bytes are there; None when the file was given up meanwhile."""
    kept = [File.id == file_id, File.gone_at.is_(None)]
    return _one(session, update(File).where(*kept).values(stored=True).returning(File))


def _one(session: Session, statement: ReturningUpdate[File]) -> File | None:
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).one_or_none()


# --- who needs them -------------------------------------------------------------------------------------


def link_jobs(session: Session, inputs: Mapping[str, Mapping[str, str]]) -> None:
    """Note which files the new jobs draw from: ``{job: {field: file}}``.

    Raises:
        InputGone: One of the files was given up since it was looked up.
    """
    rows = [
        {"job_id": job_id, "field": field, "file_id": file_id}
        for job_id, files in inputs.items()
        for field, file_id in files.items()
    ]
    if rows:
        _hold(session, {row["file_id"] for row in rows})
        session.execute(insert(JobInput), rows)


def repeat_links(session: Session, job_ids: Sequence[str]) -> None:
    """Let jobs that repeat others draw from the same files, as far as those are kept."""
    again = (
        select(Job.id, JobInput.field, JobInput.file_id)
        .join(JobInput, JobInput.job_id == Job.requeued_from)
        .join(File, File.id == JobInput.file_id)
        .where(Job.id.in_(job_ids), *_KEPT)
        .with_for_update(read=True, of=File)
    )
    rows = [
        {"job_id": job_id, "field": field, "file_id": file_id}
        for job_id, field, file_id in session.execute(again)
    ]
    if rows:
        session.execute(insert(JobInput), rows)


def link_schedule(session: Session, schedule_id: str, file_ids: Collection[str]) -> None:
    """Note which files a schedule names now, in place of those that it named before.

    Raises:
        InputGone: One of them was given up since it was looked up.
    """
    session.execute(delete(ScheduleFile).where(ScheduleFile.schedule_id == schedule_id))
    wanted = set(file_ids)
    if wanted:
        _hold(session, wanted)
        rows = [{"schedule_id": schedule_id, "file_id": file_id} for file_id in sorted(wanted)]
        session.execute(insert(ScheduleFile), rows)


def _hold(session: Session, file_ids: Collection[str]) -> None:
    """Keep the files from being given up until this transaction has ended."""
    ids = sorted(file_ids)
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        kept = select(File.id).where(File.id.in_(some), *_KEPT).order_by(File.id).with_for_update(read=True)
        if len(session.scalars(kept).all()) < len(some):
            raise InputGone


def job_files(session: Session, job_id: str) -> dict[str, File]:
    """Return the files that a job draws from, by the field of its request."""
    joined = select(JobInput.field, File).join(File, File.id == JobInput.file_id)
    found = session.execute(joined.where(JobInput.job_id == job_id))
    return {row[0]: row[1] for row in found}


# --- give up --------------------------------------------------------------------------------------------


def give_up(session: Session, file_id: str, caller: str) -> File:
    """Let no new job name the file; its bytes and its row are to be removed next.

    Raises:
        NotFound: There is no such file.
        FileInUse: A job that has not ended, or a schedule, needs it.
    """
    get_file(session, file_id, caller)
    given = _give_up(session, [file_id], _unneeded())
    if not given:
        raise FileInUse(f"The file {file_id} is needed by a job that has not ended, or by a schedule.")
    return given[0]


def give_up_old(session: Session, life_s: float, limit: int = CHUNK) -> Sequence[File]:
    """Give up the files that nobody needs, that were last sent and last ordered with before ``life_s``.

    Those whose bytes never arrived are given up after an hour.
    """
    unused = ~exists().where(
        JobInput.file_id == File.id, JobInput.job_id == Job.id, Job.created_at > now(-life_s)
    )
    old = File.stored & (File.sent_at <= now(-life_s)) & unused
    condition = _unneeded() & (old | (~File.stored & (File.sent_at <= now(-UPLOAD_S))))
    found = select(File.id).where(File.gone_at.is_(None), condition).limit(limit)
    ids = session.scalars(found.with_for_update(skip_locked=True)).all()
    return _give_up(session, ids, condition)


def given_up(session: Session, limit: int = CHUNK) -> Sequence[File]:
    """Return files that were given up and whose rows are still there."""
    return session.scalars(select(File).where(File.gone_at.is_not(None)).limit(limit)).all()


def forget(session: Session, file_ids: Collection[str]) -> None:
    """Remove the rows of files that were given up; their bytes have been deleted."""
    session.execute(delete(File).where(File.id.in_(file_ids), File.gone_at.is_not(None)))


def _give_up(session: Session, ids: Sequence[str], condition: ColumnElement[bool]) -> Sequence[File]:
    # First the locks, then a statement of its own, which sees what was ordered while it waited.
    session.execute(select(File.id).where(File.id.in_(ids)).order_by(File.id).with_for_update()).all()
    chosen = [File.id.in_(ids), File.gone_at.is_(None), condition]
    statement = update(File).where(*chosen).values(gone_at=now()).returning(File)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.scalars(statement, execution_options=options).all()


def _unneeded() -> ColumnElement[bool]:
    live = exists().where(JobInput.file_id == File.id, JobInput.job_id == Job.id, Job.state.not_in(TERMINAL))
    return ~live & ~exists().where(ScheduleFile.file_id == File.id)
