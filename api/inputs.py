"""Pictures that a call gives: kept in the artifact store, found again by what names them.

Nothing is ever fetched from an address: a server that does so on a caller's word reads for that caller what
only the server may reach.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from api.deps import LOCAL_CALLER, Services
from api.errors import Refused
from core import files, store
from core.errors import Gone, InputGone
from core.file_tables import File
from core.pictures import BadPicture, examine
from core.tables import Job
from policy.errors import FieldError, InvalidRequest
from policy.pictures import Given
from policy.references import PICTURES, Content, Inline, Result, read_reference, references_in
from policy.wording import show

TRIES = 3


def keep_file(services: Services, data: bytes) -> File:
    """Keep a picture for the caller; the same bytes again are the same file, whose time counts anew.

    What is kept of it is put right then, if it was lost or damaged.

    Raises:
        BadPicture: It cannot be drawn from.
    """
    facts = examine(data)
    digest = hashlib.sha256(data).hexdigest()
    for _ in range(TRIES):
        with services.database.transaction() as session:
            file = files.register(session, LOCAL_CALLER, digest, facts)
        if file.stored and _is_whole(services, file):
            return file
        services.artifacts.put(file.key, data)
        with services.database.transaction() as session:
            stored = files.mark_stored(session, file.id)
        if stored is not None:
            return stored
    raise InputGone  # given up each time in between; nothing but a life of no length does that


def _is_whole(services: Services, file: File) -> bool:
    with suppress(Gone):
        return hashlib.sha256(services.artifacts.get(file.key)).hexdigest() == file.sha256
    return False


def resolve(services: Services, body: Mapping[str, Any]) -> tuple[dict[str, Any], Given]:
    """Keep the pictures that a sound request holds or takes from earlier jobs, and look up the others.

    Returns:
        The request to store, with a file's id in place of a picture's bytes; and the files that are known, by
        the text that names them in it.

    Raises:
        InvalidRequest: A picture cannot be drawn from, or the earlier job has no such result.
    """
    stored = dict(body)
    errors: list[FieldError] = []
    taken: dict[str, str] = {}
    for name in PICTURES:
        text = body.get(name)
        named = None if text is None else read_reference(text.strip())
        if not isinstance(named, Inline | Result):
            continue
        try:
            data = _decode(named) if isinstance(named, Inline) else _read_result(services, named)
            file_id = keep_file(services, data).id
        except (BadPicture, ValueError) as words:
            errors.append(FieldError(name, f"{name}: the picture {words}", show(text)))
            continue
        if isinstance(named, Inline):
            stored[name] = file_id
        taken[stored[name].strip()] = file_id
    if errors:
        raise InvalidRequest(errors)
    return stored, look_up(services, stored, taken)


def look_up(services: Services, body: Mapping[str, Any], taken: Mapping[str, str] | None = None) -> Given:
    """Return the files that the texts of ``body`` name; ``taken`` are ids of those kept just now."""
    taken = taken or {}
    named = [*references_in(body), *taken.values()]
    if not named:
        return {}
    with services.database.reading() as session:
        found = files.find_pictures(session, LOCAL_CALLER, named)
    return found | {text: found[file_id] for text, file_id in taken.items() if file_id in found}


def by_content(body: Mapping[str, Any], pictures: Given) -> dict[str, Any]:
    """Return ``body`` with each picture named by its content, however the call named it."""
    named = {name: body[name] for name in PICTURES if body.get(name) is not None}
    return {**body, **{name: f"sha256:{pictures[text.strip()].sha256}" for name, text in named.items()}}


def by_content_of(body: Mapping[str, Any], job: Job) -> dict[str, Any] | None:
    """The same for a call that may repeat the one that made ``job``, whether or not its pictures are kept.

    Returns:
        ``body`` by content; None when that cannot be told from the job.
    """
    named: dict[str, str] = {}
    for name in PICTURES:
        if body.get(name) is None:
            continue
        digest = _digest(body[name], name, job)
        if digest is None:
            return None
        named[name] = f"sha256:{digest}"
    return {**body, **named}


def _digest(text: object, name: str, job: Job) -> str | None:
    if not isinstance(text, str):
        return None
    if text.strip() == str(job.request.get(name)).strip():
        return str(job.plan[name]["sha256"])
    with suppress(BadPicture, ValueError):
        match read_reference(text.strip()):
            case Content(sha256):
                return sha256
            case Inline() as picture:
                return hashlib.sha256(_decode(picture)).hexdigest()
    return None


def _decode(picture: Inline) -> bytes:
    try:
        return base64.b64decode(picture.base64, validate=True)
    except binascii.Error:
        raise BadPicture("is not in base64") from None


def _read_result(services: Services, named: Result) -> bytes:
    with services.database.reading() as session:
        job = store.find_job(session, named.job_id, LOCAL_CALLER)
        artifact = store.find_artifact(session, named.job_id, named.index) if job is not None else None
    if artifact is None:
        raise ValueError("is a result that no completed job of yours has")
    if not artifact.media_type.startswith("image/"):
        raise ValueError("is a video")
    try:
        return services.artifacts.get(artifact.key)
    except Gone:
        raise ValueError("has been deleted") from None


def refuse(words: BadPicture) -> Refused:
    """Return the answer to an upload that cannot be drawn from."""
    message = f"the picture {words}"
    return Refused("invalid_picture", message, errors=[FieldError("file", message)])
