"""What the query parameters of several addresses have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Query

from api.errors import Refused
from core.errors import InvalidQuery
from core.ids import is_id
from core.pages import MAX_LIMIT
from policy.errors import FieldError

After = Annotated[str | None, Query(description="The last_id of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


def check_ids(**values: str | None) -> None:
    """Refuse query parameters that must be ids and are none."""
    for name, value in values.items():
        if value is not None and not is_id(value):
            raise bad_query(name, f"{name} must be an id as this API gives it")


@contextmanager
def naming_after() -> Iterator[None]:
    """Name the parameter ``after`` when a list cannot be read from there; its limit was looked at before."""
    try:
        yield
    except InvalidQuery as error:
        raise bad_query("after", error.message) from None


def bad_query(name: str, message: str, limit: object = None, nearest: object = None) -> Refused:
    """Return the refusal of one query parameter."""
    error = FieldError(name, message, limit=limit, nearest=nearest)
    return Refused("invalid_query", message, errors=[error])
