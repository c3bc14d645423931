"""Alembic's entry: brings a database to a revision.

``core.db.Database.upgrade`` passes its connection in. The ``alembic`` command, used to write a new revision,
passes none and gets one from the settings.
"""

from alembic import context
from sqlalchemy import Connection

from core.db import Database
from core.settings import get_settings
from core.tables import Base

_LOCK = 0x72656E64
"""Any number; all processes that upgrade the same PostgreSQL database take turns on it."""


def _run(connection: Connection) -> None:
    sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=sqlite,
        # One transaction around all, which core.db begins with the write lock: a second process that upgrades
        # at the same time waits, and then finds the work done.
        transactional_ddl=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        if not sqlite:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # core.db's is for requests
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        context.run_migrations()


def _main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        _run(given)
        return
    database = Database(get_settings().database_url)
    with database.db_engine.connect() as connection:
        _run(connection)
    database.dispose()


_main()
