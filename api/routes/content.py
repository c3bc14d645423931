"""The bytes of a finished job's files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.conditional import Span, Unsatisfiable, choose_span, is_same
from api.deps import LOCAL_CALLER, PathId, Services, ServicesDep
from api.errors import Refused
from api.openapi_parts import CONTENT, problems
from core import store
from core.artifacts import ArtifactStore
from core.lifecycle import JobState
from core.tables import Artifact, Job

router = APIRouter(tags=["jobs"])
CHUNK_BYTES = 1024 * 1024
_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "video/mp4": "mp4"}


@dataclass(frozen=True, slots=True)
class _File:
    """What is sent: an artifact, or the thumbnail of one."""

    key: str
    bytes: int
    sha256: str
    media_type: str
    name: str


@router.get(
    "/v1/jobs/{job_id}/content",
    summary="Download a file",
    response_class=Response,
    responses={**CONTENT, **problems(404, 409, 410, 416, 422, 503)},
)
def get_content(
    request: Request,
    job_id: PathId,
    services: ServicesDep,
    index: Annotated[int, Query(ge=0, le=9999, description="Which file, from 0.")] = 0,
    variant: Annotated[
        Literal["full", "thumbnail"],
        Query(description="thumbnail: a small WebP of a video's first frame."),
    ] = "full",
) -> Response:
    """Return one file, whole or in part. It never changes, so a copy may be kept for ever."""
    file = _choose_file(_find(services, job_id, index), variant)
    headers = _headers(file)
    if is_same(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    span = _choose(request, file, headers["ETag"])
    start, end = span or Span(0, file.bytes)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    headers["Content-Length"] = str(end - start)
    chunks = _chunks(services.artifacts, file.key, Span(start, end))
    return StreamingResponse(chunks, 206 if span else 200, headers, file.media_type)


def _find(services: Services, job_id: str, index: int) -> Artifact:
    with services.database.reading() as session:
        job = store.get_job(session, job_id, LOCAL_CALLER)
        _require_result(job)
        artifact = store.find_artifact(session, job_id, index)
        if artifact is not None:
            return artifact
        count = len(job.artifacts)
    if not count:
        raise Refused("gone", "the files of this job have been deleted")
    raise Refused("not_found", f"the job has no file {index}; its files are 0 to {count - 1}")


def _choose_file(artifact: Artifact, variant: str) -> _File:
    stem = f"renderq-{artifact.job_id}-{artifact.index}"
    if variant == "full":
        name = f"{stem}.{_ENDINGS.get(artifact.media_type, 'bin')}"
        return _File(artifact.key, artifact.bytes, artifact.sha256, artifact.media_type, name)
    if not (artifact.thumbnail_key and artifact.thumbnail_bytes and artifact.thumbnail_sha256):
        raise Refused(
            "not_found", f"the file {artifact.index} of this job has no thumbnail; only videos have"
        )
    found = (artifact.thumbnail_key, artifact.thumbnail_bytes, artifact.thumbnail_sha256)
    return _File(*found, "image/webp", f"{stem}-thumbnail.webp")


def _require_result(job: Job) -> None:
    if not job.state.is_terminal:
        detail = f"the job is {job.state}: its files can be read when it is completed"
        raise Refused("not_ready", detail, headers={"Retry-After": "1"})
    if job.state != JobState.COMPLETED:
        reason = f": {job.error_message}" if job.error_message else ""
        raise Refused("no_result", f"the job {job.id} has no files because it is {job.state}{reason}")


def _headers(file: _File) -> dict[str, str]:
    return {
        "ETag": f'"{file.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Disposition": f'inline; filename="{file.name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }


def _choose(request: Request, file: _File, etag: str) -> Span | None:
    try:
        return choose_span(file.bytes, etag, request.headers.get("range"), request.headers.get("if-range"))
    except Unsatisfiable:
        headers = {"Content-Range": f"bytes */{file.bytes}"}
        detail = f"the file has {file.bytes} bytes"
        raise Refused("range_not_satisfiable", detail, headers=headers) from None


def _chunks(files: ArtifactStore, key: str, span: Span) -> Iterator[bytes]:
    """Read the first part before the answer begins, so that a deleted file is a 410 and not a torn answer."""
    first = files.open_range(key, span.start, min(CHUNK_BYTES, span.end - span.start))
    return _rest(files, key, span, first)


def _rest(files: ArtifactStore, key: str, span: Span, chunk: bytes) -> Iterator[bytes]:
    at = span.start
    while chunk:
        yield chunk
        at += len(chunk)
        chunk = files.open_range(key, at, min(CHUNK_BYTES, span.end - at))
