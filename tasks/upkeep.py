"""Upkeep: what keeps the promise that an accepted job is never lost, whatever was killed.

Each duty is a function of its own, and one that fails does not keep the others from their turn. Two processes
that do the same duty at a time do no harm, since every move is guarded and a message that comes twice is
dropped. ``tasks.control`` runs them.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from core import compile_caches, files, store, workers
from core.artifacts import ArtifactStore
from core.clock import now
from core.db import Database
from core.errors import AppError, DatabaseUnavailable
from core.lifecycle import JobState
from core.log import get_logger
from core.tables import Job
from policy.errors import PolicyError
from tasks.broker import Broker
from tasks.feeder import feed
from tasks.outbox import send
from tasks.schedules import tick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Event

    from sqlalchemy.orm import Session

    from core.file_tables import File
    from core.settings import Settings

#: The process that queued a job sends it within this time.
UNSENT_S = 2.0
#: Most ids sent for one model in one look; the rest follows in the next.
SEND_LIMIT = 500
#: Seconds between two rounds of tidying up, which lists every file of the artifact store.
TIDY_EVERY_S = 3600.0
#: Seconds between two looks at whether that time has come.
TIDY_LOOK_S = 600.0
#: A call may be repeated under its idempotency key for so long.
KEY_LIFE_S = 24 * 3600.0
#: What a compiler made and no worker used for so long is forgotten.
COMPILE_CACHE_LIFE_S = 30 * 24 * 3600.0
#: From when on an archive that nothing is noted of is nobody's: its row follows within seconds.
YOUNG_ARCHIVE_S = 3600.0
#: How long the row of a worker that has ended can be read.
WORKER_LIFE_S = 7 * 24 * 3600.0
SWEEP_BATCH = 500

_log = get_logger()


@dataclass(slots=True)
class Upkeep:
    """The connections, what the last look at Redis showed, and whose turn was when.

    Attributes:
        short: Messages missing per model at the last look.
        run_id: Of the Redis server that was last seen.
        tidied_at: When each step of tidying up was last done here to its end, by ``time.monotonic()``.
        turned_at: When each duty had its last turn here, by ``time.monotonic()``.
    """

    settings: Settings
    database: Database
    artifacts: ArtifactStore
    broker: Broker
    short: dict[str, int] = field(default_factory=dict)
    run_id: str | None = None
    tidied_at: dict[str, float] = field(default_factory=dict)
    turned_at: dict[str, float] = field(default_factory=dict)
    busy: dict[str, Lock] = field(default_factory=lambda: {duty.name: Lock() for duty in DUTIES})

    @classmethod
    def of(cls, settings: Settings) -> Upkeep:
        artifacts = ArtifactStore(settings.artifacts_url)
        return cls(settings, Database(settings.database_url), artifacts, Broker(settings))


@dataclass(frozen=True, slots=True)
class Duty:
    """What is done again and again.

    Attributes:
        name: Short, for its task and the log.
        every_s: Seconds between two turns; None stands for ``upkeep_interval_s``.
    """

    name: str
    do: Callable[[Upkeep], object]
    every_s: float | None = None


@contextmanager
def opened(settings: Settings) -> Iterator[Upkeep]:
    """The connections, on tables that are those of this installation; a database that is away may come.

    Raises:
        DatabaseNotUpgraded: They are not.
    """
    upkeep = Upkeep.of(settings)
    try:
        with suppress(DatabaseUnavailable):  # each duty says so until it is back
            upkeep.database.check_revision()
        yield upkeep
    finally:
        upkeep.database.dispose()


def keep_looking(
    upkeep: Upkeep, stop: Event, silent_s: float = 0.0, duties: Sequence[Duty] | None = None
) -> None:
    """Each ``upkeep_interval_s``, do the duties that had no turn for ``silent_s`` seconds, until ``stop``."""
    while not stop.is_set():
        look_after(upkeep, silent_s, duties)
        stop.wait(upkeep.settings.upkeep_interval_s)


def look_after(upkeep: Upkeep, silent_s: float = 0.0, duties: Sequence[Duty] | None = None) -> None:
    """Do every duty (default: all) once that had no turn here for ``silent_s`` seconds."""
    for duty in DUTIES if duties is None else duties:
        if time.monotonic() >= upkeep.turned_at.get(duty.name, -math.inf) + silent_s:
            take_turn(upkeep, duty)


def take_turn(upkeep: Upkeep, duty: Duty) -> None:
    """Do one duty, unless another thread is at it; whatever it raises is logged, so that the others go on."""
    busy = upkeep.busy[duty.name]
    if not busy.acquire(blocking=False):
        return
    try:
        _attempt(upkeep, duty)
    finally:
        upkeep.turned_at[duty.name] = time.monotonic()
        busy.release()


def _attempt(upkeep: Upkeep, duty: Duty) -> bool:
    """Do it and say whether it came to its end; whatever it raises is logged and goes no further."""
    try:
        duty.do(upkeep)
    except (SQLAlchemyError, AppError, PolicyError, OSError) as error:
        _log.warning("upkeep.failed", duty=duty.name, error=f"{type(error).__name__}: {error}")
        return False
    except Exception:  # noqa: BLE001 - a fault of ours in one duty must not end the thread of them all
        _log.exception("upkeep.failed", duty=duty.name)
        return False
    return True


def rescue_lost(upkeep: Upkeep) -> int:
    """Take back the jobs whose worker let the lease run out, and send those that may be tried again."""
    with upkeep.database.transaction() as session:
        moved = store.rescue(session)
    for job in moved:
        _log.warning("job.rescued", job_id=job.id, attempt=job.attempt, worker=job.worker_id)
    _send_queued(upkeep, (job.id for job in moved))
    return len(moved)


def resend_unpublished(upkeep: Upkeep) -> int:
    """Send the queued jobs whose id never went out, or whose time to be tried again has come."""
    with upkeep.database.reading() as session:
        unsent = store.unpublished(session, UNSENT_S, SEND_LIMIT)
    return _send_all(upkeep, unsent)


def resend_missing(upkeep: Upkeep) -> int:
    """Send as many queued jobs again as their queue holds too few messages.

    A message may be on its way between Redis and a claim, so a shortage counts when two looks agree; at once
    when Redis is another server process than before, whose memory may be empty.
    """
    with upkeep.database.reading() as session:
        queued = {model: store.count_queued(session, model) for model in _queued_models(session)}
    seen = upkeep.broker.look(queued)
    if seen is None:
        return 0
    run_id, messages = seen
    restarted = upkeep.run_id not in (None, run_id)
    short = {model: count - messages[model] for model, count in queued.items() if count > messages[model]}
    agreed = (
        short if restarted else {m: min(n, upkeep.short[m]) for m, n in short.items() if m in upkeep.short}
    )
    upkeep.run_id = run_id
    upkeep.short = {model: n for model, n in short.items() if model not in agreed}
    return sum(_send_next(upkeep, model, missing) for model, missing in agreed.items())


def expire_overdue(upkeep: Upkeep) -> int:
    """End the queued jobs that no worker took in time."""
    with upkeep.database.transaction() as session:
        expired = store.expire(session)
    if expired:
        _log.info("job.expired", count=expired)
    return expired


def mark_gone_workers(upkeep: Upkeep) -> int:
    """Mark the workers that were killed, which could not say so themselves."""
    with upkeep.database.transaction() as session:
        gone = workers.mark_gone(session, workers.heard_within_s(upkeep.settings.heartbeat_s))
    for worker_id in gone:
        _log.warning("worker.gone", worker=worker_id)
    return len(gone)


def tidy_when_due(upkeep: Upkeep) -> None:
    """Remove what nobody needs any more, at the start and then once an hour.

    Each step is on its own: one that fails keeps no other from its turn, and has its next at the next look.
    """
    for step in TIDYING:
        now = time.monotonic()
        if now >= upkeep.tidied_at.get(step.name, -math.inf) + TIDY_EVERY_S and _attempt(upkeep, step):
            upkeep.tidied_at[step.name] = now


def forget_old_keys(upkeep: Upkeep) -> int:
    """Forget the idempotency keys that nobody may repeat a call under any more."""
    with upkeep.database.transaction() as session:
        return store.forget_idempotency_keys(session, KEY_LIFE_S)


def forget_old_workers(upkeep: Upkeep) -> int:
    """Remove the rows of workers that ended long ago: each start of a worker adds one."""
    with upkeep.database.transaction() as session:
        return workers.forget_ended(session, WORKER_LIFE_S)


def forget_compile_caches(upkeep: Upkeep) -> int:
    """Forget what no worker used for long, and delete archives that nothing is noted of any more.

    A young one may be noted in a moment.
    """
    with upkeep.database.reading() as session:
        before = session.scalars(select(now(-YOUNG_ARCHIVE_S))).one()
    found = list(upkeep.artifacts.list(compile_caches.PREFIX, before))
    with upkeep.database.transaction() as session:
        forgotten = compile_caches.forget_unused(session, COMPILE_CACHE_LIFE_S)
        noted = compile_caches.archive_keys(session)
    orphans = [key for key in found if key not in noted]
    for key in orphans:
        upkeep.artifacts.delete(key)
    if orphans:
        _log.info("compile_cache.archives_removed", count=len(orphans))
    return forgotten


def sweep_orphans(upkeep: Upkeep) -> int:
    """Delete the files of attempts that did not complete and are over; files of unknown jobs stay.

    The files are listed before the rows are read, so an attempt that completes in between has its row by
    then.
    """
    removed = 0
    found = upkeep.artifacts.list()
    while keys := list(islice(found, SWEEP_BATCH)):
        with upkeep.database.reading() as session:
            orphans = store.orphaned_keys(session, keys)
        for key in orphans:
            upkeep.artifacts.delete(key)
        removed += len(orphans)
    if removed:
        _log.info("artifacts.orphans_removed", count=removed)
    return removed


def give_up_old_files(upkeep: Upkeep) -> int:
    """Delete the pictures that were sent long ago and that nobody needs.

    Their bytes go before their rows, so that a round which is cut short is finished by the next one.
    """
    removed = 0
    while some := _given_up(upkeep):
        for file in some:
            upkeep.artifacts.delete(file.key)
        with upkeep.database.transaction() as session:
            files.forget(session, [file.id for file in some])
        removed += len(some)
    if removed:
        _log.info("files.given_up", count=removed)
    return removed


def _given_up(upkeep: Upkeep) -> Sequence[File]:
    with upkeep.database.transaction() as session:
        files.give_up_old(session, upkeep.settings.file_life_s)
    with upkeep.database.reading() as session:
        return files.given_up(session)


def _queued_models(session: Session) -> Iterable[str]:
    return session.scalars(select(Job.model).where(Job.state == JobState.QUEUED).distinct()).all()


def _send_next(upkeep: Upkeep, model: str, count: int) -> int:
    """Send the jobs of one model that are to run next, which are the ones that miss a message soonest."""
    with upkeep.database.reading() as session:
        ids = store.queued_ids(session, model, min(count, SEND_LIMIT))
    _log.info("redis.messages_missing", model=model, missing=count)
    return _send_queued(upkeep, ids)


def _send_queued(upkeep: Upkeep, ids: Iterable[str]) -> int:
    with upkeep.database.reading() as session:
        wanted = select(Job).where(Job.id.in_(list(ids)), Job.state == JobState.QUEUED)
        jobs = session.scalars(wanted.order_by(Job.priority, Job.created_at, Job.id)).all()
    return _send_all(upkeep, jobs)


def _send_all(upkeep: Upkeep, jobs: Iterable[Job]) -> int:
    """Send until one is not taken: Redis is away then, and the next look comes soon."""
    sent = 0
    for job in jobs:
        if not send(upkeep.database, upkeep.settings, job):
            break
        sent += 1
    return sent


TIDYING: tuple[Duty, ...] = (
    Duty("forget_keys", forget_old_keys),
    Duty("forget_workers", forget_old_workers),
    Duty("sweep_orphans", sweep_orphans),
    Duty("give_up_files", give_up_old_files),
    Duty("forget_compile_caches", forget_compile_caches),
)
DUTIES: tuple[Duty, ...] = (
    Duty("expire", expire_overdue),
    Duty("rescue", rescue_lost),
    Duty("tick", tick),
    Duty("feed", feed),
    Duty("resend_unsent", resend_unpublished),
    Duty("resend_missing", resend_missing),
    Duty("gone_workers", mark_gone_workers),
    Duty("tidy", tidy_when_due, TIDY_LOOK_S),
)
