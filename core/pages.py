"""Lists in pages, newest first: the next page is asked for by the last row of the one before.

Rows that are added meanwhile therefore do not shift it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy import ColumnExpressionArgument, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.base import ExecutableOption

from core.errors import InvalidQuery
from core.tables import Batch, Firing, Job, Schedule

MAX_LIMIT = 100

Row = TypeVar("Row", Job, Batch, Schedule, Firing)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """A part of a list, newest first."""

    rows: Sequence[Row]
    has_more: bool


def read_page(
    session: Session,
    table: type[Row],
    at: InstrumentedAttribute[datetime],
    *,
    within: Collection[ColumnExpressionArgument[bool]],
    wanted: Collection[ColumnExpressionArgument[bool]] = (),
    limit: int,
    after: str | None,
    options: Collection[ExecutableOption] = (),
) -> Page[Row]:
    """Return up to ``limit`` rows of the table, by the time ``at``, that are older than the row ``after``.

    Args:
        session: The unit of work.
        table: Whose rows they are.
        at: Its time that orders the list.
        within: What the caller may see; ``after`` must be one of these.
        wanted: Which of them are listed.
        limit: Most rows, 1 to 100.
        after: Id of a row, which need not be among the wanted ones.
        options: How rows are loaded.

    Raises:
        InvalidQuery: ``limit`` is not within 1 to 100, or ``after`` is no row that the caller may see.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidQuery(f"limit must be from 1 to {MAX_LIMIT}, not {limit}.")
    statement = select(table).where(*within, *wanted).options(*options)
    if after is not None:
        seen_at = session.scalars(select(at).where(table.id == after, *within)).one_or_none()
        if seen_at is None:
            raise InvalidQuery(f"after names no {table.__name__.lower()}: {after!r}.")
        statement = statement.where(tuple_(at, table.id) < tuple_(seen_at, after))
    newest_first = statement.order_by(at.desc(), table.id.desc()).limit(limit + 1)
    found = session.scalars(newest_first.execution_options(populate_existing=True)).all()
    return Page(found[:limit], has_more=len(found) > limit)
