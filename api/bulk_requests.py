"""What a caller may send to make a batch or a schedule, and the check of its names and plain values.

The rows with their template and grid are the affair of ``policy.bulk``, the window of ``policy.windows`` and
the rule of ``core.recurrence``; those fields stand here for the OpenAPI document only.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.bulk_schemas import MisfireWord, WindowView
from core.schedules import GRACE_S
from policy.errors import FieldError, InvalidRequest
from policy.request import RenderRequest
from policy.request_shape import check_shape
from policy.wording import closest, listing, show

NAME_LIMIT = 200
LONGEST_GRACE_S = 366 * 24 * 3600

Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=r"\S")]
Fields = Annotated[
    dict[str, Any], Field(description="Fields of a RenderRequest; its texts may hold {names} of columns.")
]
Rows = Annotated[
    list[dict[str, Any]],
    Field(description="One job each: fields that replace the template's, and values for its {names}."),
]
Grid = Annotated[
    dict[str, list[Any]], Field(description="Lists of values; each combination makes a job of each row.")
]

BATCH_PARTS = {"name": False, "template": True, "grid": True, "window": True}
SCHEDULE_PARTS = BATCH_PARTS | {
    "cron": False,
    "at": False,
    "every_s": True,
    "timezone": False,
    "misfire": False,
    "misfire_grace_s": True,
    "enabled": True,
}
"""Parts of the forms, and whether they are JSON."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BatchHead(_Strict):
    """What a batch is told besides its rows."""

    name: Name | None = None


class ScheduleHead(_Strict):
    """What a schedule is told besides its rows and its rule."""

    name: Name
    misfire: MisfireWord = Field(
        default="once", description="What becomes of missed slots: none is fired, or the latest one for all."
    )
    misfire_grace_s: int = Field(
        default=GRACE_S, ge=1, le=LONGEST_GRACE_S, description="A slot found later than this is missed."
    )
    enabled: bool = True


class BatchOrder(BatchHead):
    """Many jobs: rows, a grid, or both, with what they have in common."""

    template: Fields | None = None
    rows: Rows | None = None
    grid: Grid | None = None
    window: WindowView | None = None


class ScheduleOrder(ScheduleHead):
    """A rule and the batch that it makes; exactly one of ``cron``, ``at`` and ``every_s``."""

    cron: str | None = Field(
        default=None, examples=["0 22 * * *"], description="Five fields; needs timezone."
    )
    at: str | None = Field(default=None, examples=["2026-12-24T18:00:00+01:00"], description="One date.")
    every_s: int | None = Field(default=None, description="Seconds between two slots.")
    timezone: str | None = Field(default=None, examples=["Europe/Berlin"], description="IANA name.")
    window: WindowView | None = None
    template: Fields | None = None
    rows: Rows | None = None
    grid: Grid | None = None


class ScheduleChange(ScheduleOrder):
    """The fields of a schedule that are to change; null takes away what may be left out."""

    name: Name = Field(default="")


@contextmanager
def gather(errors: list[FieldError]) -> Iterator[None]:
    """Add what is found wrong inside to ``errors``, so that all is told at once."""
    try:
        yield
    except InvalidRequest as refused:
        errors += refused.errors


def check_nothing_wrong(errors: list[FieldError]) -> None:
    """Refuse the call when something was found wrong."""
    if errors:
        raise InvalidRequest(errors)


def check_head(
    body: Mapping[str, Any], head: type[BaseModel], whole: type[BaseModel], *, partial: bool = False
) -> Iterator[FieldError]:
    """Yield what is wrong with the names of ``body``, and with the values of the fields of ``head``.

    ``partial`` lets fields be missing.
    """
    known = list(whole.model_fields)
    for name in body:
        if name not in known:
            yield _unknown(name, body[name], known)
    own = {name: body[name] for name in head.model_fields if name in body}
    for kind, error in check_shape(own, head):
        if not (partial and kind == "missing"):
            yield error


def _unknown(name: str, value: object, known: Iterable[str]) -> FieldError:
    field = str(show(name)) or '""'
    nearest = closest(name, list(known))
    if name in RenderRequest.model_fields:
        hint = "fields of a request stand in template, rows or grid"
    else:
        hint = f'did you mean "{nearest}"?' if nearest else f"known: {listing(list(known), 'and')}"
    return FieldError(field, f'"{field}" is not known here; {hint}', show(value), list(known), nearest)
