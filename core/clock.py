"""Times of the database: aware, UTC, and read from the database's own clock.

Workers, API and upkeep run on several machines whose clocks differ. A lease that one of them writes and
another reads is therefore computed in SQL: ``now()`` and ``now(30)`` are expressions, not values.
"""

from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect, Double, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class Timestamp(TypeDecorator[datetime]):
    """An aware time in UTC. SQLite, which has no times, keeps text that sorts by time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone and turn any other into UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"a time needs a zone: {value!r}"
            raise ValueError(msg)
        in_utc = value.astimezone(UTC)
        return in_utc.replace(tzinfo=None) if dialect.name == "sqlite" else in_utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's time when the statement began, moved by ``seconds``."""

    name = "now"
    type = Timestamp()
    inherit_cache = True

    def __init__(self, seconds: float = 0.0) -> None:
        """Move the time by ``seconds``, which may be negative."""
        super().__init__(literal(float(seconds), Double()))


@compiles(now, "postgresql")
def _on_postgresql(element: now, compiler: SQLCompiler, **kw: object) -> str:
    # Not now(), which stands still for a whole transaction; not clock_timestamp(), which no index can serve.
    seconds = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() + make_interval(secs => CAST({seconds} AS double precision)))"


@compiles(now, "sqlite")
def _on_sqlite(element: now, compiler: SQLCompiler, **kw: object) -> str:
    # SQLite knows milliseconds; three zeros make the text as long as the one written for a bound value.
    seconds = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', {seconds}))"
