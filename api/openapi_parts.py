"""Pieces of the OpenAPI document that FastAPI cannot know: problems, headers, the raw body, files."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from api.errors import PROBLEMS
from api.idempotency import KEY_LIMIT, REPLAYED
from api.prefer import WAIT_LIMIT_S

PROBLEM_MEDIA_TYPE = "application/problem+json"
Responses = dict[int | str, dict[str, Any]]

_HEADERS: dict[str, tuple[str, str]] = {
    "Location": ("string", "Address of what was made."),
    "Retry-After": ("integer", "Seconds until it makes sense to look again. Absent when all has ended."),
    "Preference-Applied": ("string", "wait=N when this answer waited."),
    REPLAYED: ("string", "true when an earlier call with this key made it."),
    "ETag": ("string", "The file's SHA-256 in quotes."),
    "Content-Range": ("string", "Which bytes these are."),
    "Link": ("string", "The pages before and after, as rel=prev and rel=next."),
}
RENDER_REQUEST = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RenderRequest"}}},
}


def json_or_form(schema: str, parts: Mapping[str, bool], *, file_required: bool = True) -> dict[str, Any]:
    """Return a body that is the object ``schema``, or a form of ``parts`` (JSON or text) and a file."""
    properties = {name: _part(schema, name, is_json=is_json) for name, is_json in parts.items()}
    file = {"type": "string", "format": "binary", "description": "CSV, TSV or JSONL: one row for each job."}
    form = {"type": "object", "properties": {"file": file, **properties}, "additionalProperties": False}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}},
            "multipart/form-data": {"schema": form | ({"required": ["file"]} if file_required else {})},
        },
    }


PICTURE_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "format": "binary", "description": "PNG, JPEG or WebP."}
                },
                "required": ["file"],
                "additionalProperties": False,
            }
        }
    },
}


def _part(schema: str, name: str, *, is_json: bool) -> dict[str, Any]:
    written = "as JSON" if is_json else "as text"
    return {"type": "string", "description": f"As {name} of {schema}, written {written}."}


def binary(media_type: str, description: str, *headers: str) -> Responses:
    """Return the entry of a download."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"description": description, "content": content, "headers": _headers(*headers)}}


IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same body gives what the first call made; with another body 422.",
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
