"""The database: one engine, and the only commit of the code base.

SQLite runs in WAL mode, so that readers and the one writer do not wait for each other, and a unit of work
takes the write lock at its start: two of them then queue up instead of failing half-way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from sqlite3 import Connection as SQLiteConnection
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session

BUSY_TIMEOUT_S = 30.0
"""How long SQLite waits for another writer."""

_BEGIN = "renderq_begin"


class Database:
    """A database by URL: ``sqlite:////path/to/file.db`` or ``postgresql://user@host/name``."""

    def __init__(self, url: str) -> None:
        """Prepare the engine; the first use connects."""
        self.url = _normalised(url)
        self.db_engine = (
            _sqlite(self.url) if self.url.get_backend_name() == "sqlite" else _postgresql(self.url)
        )

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One unit of work: committed at the end, rolled back when an error leaves it.

        What it returned stays readable afterwards.
        """
        with self._session() as session:
            try:
                yield session
                session.commit()
            except BaseException:
                session.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A consistent view for reading only; it neither waits for writers nor makes them wait."""
        with self._session(reading=True) as session:
            try:
                yield session
            finally:
                session.rollback()

    def upgrade(self, revision: str = "head") -> None:
        """Bring the tables to ``revision`` with the migrations that are installed with the code.

        The folder of a SQLite file is made if missing. Several processes may call this at once.
        """
        if self.url.get_backend_name() == "sqlite" and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self.db_engine.connect() as connection:
            command.upgrade(migrations_config(connection), revision)

    def downgrade(self, revision: str) -> None:
        """Take the tables back to ``revision``; what only the newer ones hold is lost."""
        with self.db_engine.connect() as connection:
            command.downgrade(migrations_config(connection), revision)

    def dispose(self) -> None:
        """Close the connections; needed after a fork and at the end."""
        self.db_engine.dispose()

    def _session(self, *, reading: bool = False) -> Session:
        options = {_BEGIN: "DEFERRED", "postgresql_readonly": True} if reading else {}
        return Session(self.db_engine.execution_options(**options), expire_on_commit=False)


def migrations_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for the migrations of this installation."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _normalised(url: str) -> URL:
    parsed = make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _postgresql(url: URL) -> Engine:
    return create_engine(url, pool_pre_ping=True, connect_args={"options": "-c timezone=UTC"})


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: SQLiteConnection, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; _begin_sqlite does
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an accepted job survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    kind: Any = connection.get_execution_options().get(_BEGIN, "IMMEDIATE")
    connection.exec_driver_sql(f"BEGIN {kind}")
