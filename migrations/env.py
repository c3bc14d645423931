"""Alembic's entry: brings a database to a revision.

``core.db.Database.upgrade`` passes its connection in. The ``alembic`` command, used to write a new revision,
passes none and gets one from the settings.
"""

from alembic import context
from sqlalchemy import Connection

from core.db import Database
from core.settings import get_settings
from core.tables import Base


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
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
