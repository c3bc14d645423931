"""Errors that exist only at the HTTP edge, and the words of every problem the API can answer.

    Refused     a call that is answered with a problem; carries status, code, field errors and headers

``PROBLEMS`` is the whole list of codes with one sentence each; page and OpenAPI file are built from it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policy.errors import FieldError

PROBLEMS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "malformed_json": (400, "The body is not one JSON object."),
        "malformed_form": (400, "The body is not a form that can be read."),
        "duplicate_key": (400, "A JSON object names the same key twice."),
        "bad_header": (400, "A header has a value that cannot be used."),
        "cross_site": (403, "A browser sent this call from another site."),
        "not_found": (404, "There is no such thing, or it is not yours."),
        "method_not_allowed": (405, "This address does not know this method."),
        "body_timeout": (408, "The body did not arrive in time."),
        "not_ready": (409, "The job has not ended yet, or the batch has no file yet."),
        "no_result": (409, "The job or the batch ended without a result."),
        "already_finished": (409, "The job or batch has ended."),
        "conflict": (409, "The state of the job, batch or schedule does not allow this."),
        "file_in_use": (409, "The file is needed by a job that has not ended, or by a schedule."),
        "gone": (410, "The file has been deleted."),
        "input_gone": (410, "A picture that the job draws from is no longer kept."),
        "body_too_large": (413, "The body is larger than this API reads."),
        "unsupported_media_type": (415, "The body is of a media type that this address does not read."),
        "range_not_satisfiable": (416, "The file ends before the range begins."),
        "misdirected_request": (421, "This API does not answer for that host name."),
        "invalid_request": (422, "The request, or a row of it, asks for something that cannot be done."),
        "invalid_picture": (422, "The uploaded file is no picture that a job can draw from."),
        "invalid_query": (422, "A query parameter is unknown or has a bad value."),
        "idempotency_key_reused": (422, "The same Idempotency-Key came with another body before."),
        "internal_error": (500, "A fault of ours; the log holds the details under the request id."),
        "too_many_uploads": (
            503,
            "As many large bodies as this API takes at once are on their way; try again.",
        ),
        "disk_full": (503, "The disk on which this API keeps large bodies for a moment is full; try again."),
        "database_unavailable": (503, "The database does not answer; try again."),
        "artifact_store_unavailable": (503, "The store of files does not answer; try again."),
    },
)


class Refused(Exception):
    """A call answered with a problem document."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
    ) -> None:
        """``code`` is one of ``PROBLEMS``, which gives the status unless another one is named."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.status = status or PROBLEMS[code][0]
