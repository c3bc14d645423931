"""The OpenAPI document: what FastAPI finds, and the schemas of the raw body and of problems."""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.bulk_requests import BatchOrder, ScheduleChange, ScheduleOrder
from api.problems import Problem
from policy.request import RenderRequest

_EXTRA: tuple[type[BaseModel], ...] = (RenderRequest, BatchOrder, ScheduleOrder, ScheduleChange, Problem)
DESCRIPTION = (
    "Submit render jobs one by one, in batches and by schedules, follow them, fetch their files. Errors are "
    "problem documents (RFC 9457) with a stable `code`. Unknown fields and query parameters are errors."
)


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """Return the document of ``app``, with the schemas of the raw body and of problems added."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_extra_schemas())
        app.openapi_schema = document
    return app.openapi_schema


def _extra_schemas() -> dict[str, Any]:
    wanted: list[tuple[type[BaseModel], Literal["validation"]]] = [(model, "validation") for model in _EXTRA]
    _, found = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = found["$defs"]
    return schemas
