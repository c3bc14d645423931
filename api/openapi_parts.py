"""Pieces of the OpenAPI document that FastAPI cannot know: problems, headers, the raw body, files."""

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from api.errors import PROBLEMS
from api.idempotency import KEY_LIMIT
from api.prefer import WAIT_LIMIT_S

PROBLEM_MEDIA_TYPE = "application/problem+json"
REPLAYED = "Idempotent-Replayed"
Responses = dict[int | str, dict[str, Any]]

_HEADERS: dict[str, tuple[str, str]] = {
    "Location": ("string", "Address of the job."),
    "Retry-After": ("integer", "Seconds until it makes sense to look again. Absent when the job has ended."),
    "Preference-Applied": ("string", "wait=N when this answer waited."),
    REPLAYED: ("string", "true when an earlier call with this key made the job."),
    "ETag": ("string", "The file's SHA-256 in quotes."),
    "Content-Range": ("string", "Which bytes these are."),
}
RENDER_REQUEST = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RenderRequest"}}},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same body gives the same job; with another body 422.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LIMIT, "pattern": "^[!-~]+$"},
}
PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": f"wait=N: answer when the job has ended or N seconds have passed, {WAIT_LIMIT_S} at most.",
    "schema": {"type": "string", "examples": ["wait=30"]},
}


def problems(*statuses: int) -> Responses:
    """Return the entries of an operation for these refusals, and for a fault of ours."""
    return {status: _problem(status) for status in (*statuses, 500)}


def with_headers(description: str, model: type[BaseModel], *names: str) -> dict[str, Any]:
    """Return the entry of a response that carries headers."""
    return {"description": description, "model": model, "headers": _headers(*names)}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"description": _HEADERS[name][1], "schema": {"type": _HEADERS[name][0]}} for name in names}


def _problem(status: int) -> dict[str, Any]:
    codes = [code for code, (of, _) in PROBLEMS.items() if of == status]
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


_BYTES = {
    media_type: {"schema": {"type": "string", "format": "binary"}}
    for media_type in ("image/png", "image/jpeg", "image/webp", "video/mp4")
}
CONTENT: Responses = {
    200: {"description": "The whole file.", "content": _BYTES, "headers": _headers("ETag")},
    206: {
        "description": "The part that Range asked for.",
        "content": _BYTES,
        "headers": _headers("ETag", "Content-Range"),
    },
    304: {"description": "The copy that If-None-Match names is current.", "headers": _headers("ETag")},
}
"""Answers of the download."""
