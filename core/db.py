"""The database: one engine, and the only commit of the code base.

SQLite runs in WAL mode, so that readers and the one writer do not wait for each other, and a unit of work
takes the write lock at its start: two of them then queue up instead of failing half-way.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from sqlite3 import Connection as SQLiteConnection
from sqlite3 import OperationalError as SQLiteOperationalError

import stamina
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    NullPool,
    Pool,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import (
    DatabaseError,
    DBAPIError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    TimeoutError,  # noqa: A004
)
from sqlalchemy.orm import Session

from core.errors import DatabaseNotUpgraded, DatabaseUnavailable

BUSY_TIMEOUT_S = 30.0
"""How long SQLite waits for another writer."""

CONNECT_TIMEOUT_S = 5
"""How long a connection to PostgreSQL may take."""

STATEMENT_TIMEOUT_S = 30
"""How long PostgreSQL may take over one statement, and a statement may wait for a lock."""

UNANSWERED_S = 10
"""How long a connection to PostgreSQL may be silent before it counts as broken, whoever waits for whom."""

IDLE_S = 10
"""How long PostgreSQL lets a process hold rows without saying anything, as one that stands still does."""

_READING = "renderq_reading"


class Database:
    """A database by URL: ``sqlite:////path/to/file.db`` or ``postgresql://user@host/name``."""

    def __init__(self, url: str, *, keeps: bool = True) -> None:
        """Prepare the engine; the first use connects.

        With ``keeps`` False each unit of work opens a connection of its own and closes it, so nothing has to
        be disposed of before a fork.
        """
        self.url = _normalised(url)
        make = _sqlite if self.url.get_backend_name() == "sqlite" else _postgresql
        self.db_engine = make(self.url, None if keeps else NullPool)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One unit of work: committed at the end, rolled back when an error leaves it.

        The rows it returned stay readable afterwards.

        Raises:
            DatabaseUnavailable: The database did not answer. When that happened at the very end, nobody knows
                whether the work was kept; every unit of ours may therefore be done again.
        """
        with _translated(), self._session() as session:
            yield session
            session.commit()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent view, for reading only; it neither waits for writers nor makes them wait."""
        with _translated(), self._session(reading=True) as session:
            yield session

    def upgrade(self, revision: str = "head") -> None:
        """Bring the tables to ``revision`` with the migrations that are installed with the code.

        The folder of a SQLite file is made if missing. Several processes may call this at once.
        """
        if self.url.get_backend_name() == "sqlite" and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self.db_engine.connect() as connection:
            command.upgrade(migrations_config(connection), revision)

    def check_revision(self) -> None:
        """See that the tables are those of this installation; for the start of a process.

        Raises:
            DatabaseNotUpgraded: They are older or newer, or not there; says what to do.
            DatabaseUnavailable: It did not answer.
        """
        with self.reading() as session:
            present = MigrationContext.configure(session.connection()).get_current_revision()
        script = ScriptDirectory.from_config(migrations_config())
        if present == script.get_current_head():
            return
        known = {revision.revision for revision in script.walk_revisions()}
        if present is None or present in known:
            state = f"is at revision {present}" if present else "has no tables yet"
            raise DatabaseNotUpgraded(f"The database {state}: run `renderq db upgrade`.")
        raise DatabaseNotUpgraded(
            f"The database is at revision {present}, which this installation does not know: a newer renderq "
            "has upgraded it. Install that version here; its `renderq db upgrade` is done."
        )

    def downgrade(self, revision: str) -> None:
        """Take the tables back to ``revision``; what only the newer ones hold is lost."""
        with self.db_engine.connect() as connection:
            command.downgrade(migrations_config(connection), revision)

    def dispose(self) -> None:
        """Close the connections, at the end and before a fork."""
        self.db_engine.dispose()

    def _session(self, *, reading: bool = False) -> Session:
        options = {_READING: True, "postgresql_readonly": True} if reading else {}
        return Session(self.db_engine.execution_options(**options), expire_on_commit=False)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DatabaseError, InterfaceError, TimeoutError) as error:
        if not _is_away(error):
            raise
        # The first line: what the driver said, without statement and values.
        reason = str(error.orig if isinstance(error, DBAPIError) else error).splitlines()
        raise DatabaseUnavailable(f"The database did not answer: {' '.join(reason[:1])}") from error


def _is_away(error: Exception) -> bool:
    """Whether the database cannot do its work, as opposed to refusing what was asked of it.

    Plain `DatabaseError` is a damaged file of SQLite; `InternalError` a PostgreSQL that takes no writes, as
    while another server takes over; `NotSupportedError` is its word for that on a connection that has read.
    """
    return type(error) is DatabaseError or isinstance(
        error, (OperationalError, InternalError, NotSupportedError, InterfaceError, TimeoutError)
    )


def migrations_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for the migrations of this installation."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


_to_json = json.JSONEncoder(allow_nan=False).encode
"""PostgreSQL refuses NaN in JSON, as callers do; so SQLite must not take it either."""


def _normalised(url: str) -> URL:
    parsed = make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _postgresql(url: URL, pool: type[Pool] | None) -> Engine:
    return create_engine(
        url,
        pool_pre_ping=True,
        poolclass=pool,
        json_serializer=_to_json,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": f"-c timezone=UTC -c statement_timeout={STATEMENT_TIMEOUT_S}s "
            f"-c idle_in_transaction_session_timeout={IDLE_S}s",
            # What was sent and is not acknowledged, as after a cut of the network, gives an error...
            "tcp_user_timeout": UNANSWERED_S * 1000,
            # ...and so does an answer that never comes because the server is gone.
            "keepalives": 1,
            "keepalives_idle": UNANSWERED_S,
            "keepalives_interval": 3,
            "keepalives_count": 3,
        },
    )


def _sqlite(url: URL, pool: type[Pool] | None) -> Engine:
    engine = create_engine(
        url,
        poolclass=pool,
        json_serializer=_to_json,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", _drop_after_failed_commit)
    return engine


def _prepare_sqlite(connection: SQLiteConnection, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; _begin_sqlite does
    # The first change to WAL needs the file for itself and does not wait for it as statements do.
    for attempt in stamina.retry_context(
        on=SQLiteOperationalError, attempts=None, timeout=BUSY_TIMEOUT_S, wait_initial=0.02, wait_max=0.5
    ):
        with attempt:
            connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an accepted job survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql(f"PRAGMA query_only={'ON' if reading else 'OFF'}")
    connection.exec_driver_sql("BEGIN DEFERRED" if reading else "BEGIN IMMEDIATE")


def _drop_after_failed_commit(context: ExceptionContext) -> None:
    """Close a connection whose COMMIT failed, as on a full disk.

    SQLite leaves such a transaction open, and with it the lock that every writer needs; SQLAlchemy takes it
    for ended and would put the connection back into the pool.
    """
    if context.statement is None:  # neither a statement nor BEGIN
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False
