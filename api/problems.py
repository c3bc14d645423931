"""Problem documents (RFC 9457): the one shape in which this API says no, and what turns errors into it."""

import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from api.errors import PROBLEMS, Refused
from core.errors import AppError, IdempotencyMismatch
from policy.errors import FieldError, InvalidRequest
from policy.request_shape import in_words

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
ERRORS_IN_DETAIL = 5
"""A sentence of ten thousand problems helps nobody; ``errors`` has them all."""

log = structlog.get_logger(__name__)


class FieldProblem(BaseModel):
    """One field of a call that is wrong, with what would be right."""

    row: int | None = Field(default=None, description="Row of a batch, from 1; null for what is in no row.")
    field: str = Field(description="Name of the field, parameter, header or part of a form.")
    message: str
    limit: Any = Field(default=None, description="The limit that was passed, or the values allowed.")
    nearest: Any = Field(default=None, description="The nearest value that would be taken.")


class Problem(BaseModel):
    """Why a call was refused."""

    type: str = Field(examples=["urn:renderq:problem:invalid_request"])
    title: str
    status: int
    detail: str
    instance: str = Field(description="Path of the call.")
    code: str = Field(description="Stable word for programs.")
    errors: list[FieldProblem] = Field(default_factory=list)
    request_id: str | None = None


class JsonResponse(JSONResponse):
    """JSON that can always be sent: half of a surrogate pair, echoed from a call, becomes a question mark."""

    def render(self, content: object) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
        return text.encode("utf-8", "replace")


def problem_response(
    request: Request,
    code: str,
    detail: str,
    *,
    status: int | None = None,
    errors: Iterable[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the problem ``code`` as a response; the status follows from the code unless named."""
    status = status or PROBLEMS[code][0]
    problem = Problem(
        type=f"urn:renderq:problem:{code}",
        title=PROBLEMS[code][1] if code in PROBLEMS else HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=request.url.path,
        code=code,
        errors=[_field_problem(error) for error in errors],
        request_id=request.scope.get("renderq_request_id"),
    )
    return JsonResponse(problem.model_dump(), status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Give every error that may leave an endpoint its problem document."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(AppError, _app_error)
    app.add_exception_handler(InvalidRequest, _invalid_request)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OSError, _disk_error)


def _field_problem(error: FieldError) -> FieldProblem:
    return FieldProblem(
        row=error.row, field=error.field, message=error.message, limit=error.limit, nearest=error.nearest
    )


def tell(errors: Sequence[FieldError]) -> str:
    """Return the first of ``errors`` as one text, and how many more there are."""
    text = "; ".join(error.message for error in errors[:ERRORS_IN_DETAIL])
    more = len(errors) - ERRORS_IN_DETAIL
    return f"{text}; and {more} more" if more > 0 else text


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - for the type checker; the handler is registered for it
    return problem_response(
        request, error.code, error.detail, status=error.status, errors=error.errors, headers=error.headers
    )


def _app_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AppError)  # noqa: S101
    headers = {}
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("http.unavailable", code=error.code, reason=error.message)
        headers["Retry-After"] = str(RETRY_S)
    code = "idempotency_key_reused" if isinstance(error, IdempotencyMismatch) else error.code
    return problem_response(request, code, error.message, status=error.status, headers=headers)


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidRequest)  # noqa: S101
    return problem_response(request, "invalid_request", tell(error.errors), errors=error.errors)


def _invalid_parameters(request: Request, error: Exception) -> Response:
    """Only path and query parameters come here: bodies are read by ``policy``."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = [_parameter_in_words(found) for found in error.errors()]
    return problem_response(request, "invalid_query", tell(errors), errors=errors)


def _parameter_in_words(found: Any) -> FieldError:  # noqa: ANN401 - pydantic's record of one error
    named: Any = {**found, "loc": found["loc"][1:]}
    if found["type"] == "string_pattern_mismatch":
        pattern = found["ctx"]["pattern"]
        name = ".".join(map(str, named["loc"]))
        return FieldError(name, f"{name} must match {pattern}", found["input"], pattern)
    return in_words(named, known=())


def _known_methods(request: Request) -> str:
    """The framework names only those of the first route at this address."""
    known = [
        method
        for method in ("GET", "POST", "PATCH", "DELETE")
        if any(
            route.matches({**request.scope, "method": method})[0] == Match.FULL
            for route in request.app.routes
        )
    ]
    return ", ".join(["HEAD", *known] if "GET" in known else known)


def _disk_error(request: Request, error: Exception) -> Response:
    """Large bodies pass through temporary files; any other error of the system is a fault of ours."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
        raise error
    log.warning("http.unavailable", code="disk_full", reason=str(error))
    detail = "there is no room for temporary files"
    return problem_response(request, "disk_full", detail, headers={"Retry-After": str(RETRY_S)})


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem_response(request, "not_found", "there is nothing at this address", headers=headers)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _known_methods(request)
        detail = f"{request.method} is not known here; allowed: {headers['Allow']}"
        return problem_response(request, "method_not_allowed", detail, headers=headers)
    code = HTTPStatus(error.status_code).name.lower()
    return problem_response(request, code, str(error.detail), status=error.status_code, headers=headers)
