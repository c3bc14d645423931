"""Waits out a database or artifact store that is away for a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

import stamina
from sqlalchemy.exc import SQLAlchemyError

from core.errors import DatabaseUnavailable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a use of the database raises, whether it is away or refuses.
DATABASE_ERRORS = (DatabaseUnavailable, SQLAlchemyError)

P = ParamSpec("P")
T = TypeVar("T")

#: A restart of either takes less; a longer outage costs the attempt, which is then taken back by its lease.
PATIENCE_S = 60.0


def patiently(call: Callable[P, T]) -> Callable[P, T]:
    """Repeat ``call`` with growing pauses while the storage behind it does not answer."""
    return stamina.retry(on=Unavailable, attempts=None, timeout=PATIENCE_S, wait_max=5.0)(call)
