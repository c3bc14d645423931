"""The bytes of a finished job's files."""

from collections.abc import Iterator
from typing import Annotated

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
) -> Response:
    """Return one file, whole or in part. It never changes, so a copy may be kept for ever."""
    artifact = _find(services, job_id, index)
    headers = _headers(artifact)
    if is_same(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    span = _choose(request, artifact, headers["ETag"])
    start, end = span or Span(0, artifact.bytes)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{artifact.bytes}"
    headers["Content-Length"] = str(end - start)
    chunks = _chunks(services.artifacts, artifact.key, Span(start, end))
    return StreamingResponse(chunks, 206 if span else 200, headers, artifact.media_type)


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


def _require_result(job: Job) -> None:
    if not job.state.is_terminal:
        detail = f"the job is {job.state}: its files can be read when it is completed"
        raise Refused("not_ready", detail, headers={"Retry-After": "1"})
    if job.state != JobState.COMPLETED:
        reason = f": {job.error_message}" if job.error_message else ""
        raise Refused("no_result", f"the job {job.id} has no files because it is {job.state}{reason}")


def _headers(artifact: Artifact) -> dict[str, str]:
    ending = _ENDINGS.get(artifact.media_type, "bin")
    return {
        "ETag": f'"{artifact.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Disposition": f'inline; filename="renderq-{artifact.job_id}-{artifact.index}.{ending}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }


def _choose(request: Request, artifact: Artifact, etag: str) -> Span | None:
    try:
        return choose_span(
            artifact.bytes, etag, request.headers.get("range"), request.headers.get("if-range")
        )
    except Unsatisfiable:
        headers = {"Content-Range": f"bytes */{artifact.bytes}"}
        detail = f"the file has {artifact.bytes} bytes"
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
