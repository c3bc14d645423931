"""The migrations make the tables that the code expects, from nothing and back."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, inspect, text

from core import store
from core.db import Database, migrations_config
from core.errors import DatabaseNotUpgraded
from core.tables import Base
from tests.core.jobs import WORKER, claim, submit
from tests.fixtures.database import new_database_url

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(
    database_kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Database]:
    name = f"migration_{abs(hash(request.node.name)) % 10**8}"
    database = Database(new_database_url(database_kind, name, tmp_path_factory, request))
    yield database
    database.dispose()


def tables(database: Database) -> set[str]:
    with database.db_engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def checks(database: Database) -> dict[str, set[str | None]]:
    """Names of the CHECK constraints, which Alembic does not compare."""
    with database.db_engine.connect() as connection:
        found = inspect(connection).get_multi_check_constraints()
    return {table: {check["name"] for check in of_table} for (_, table), of_table in found.items()}


def test_the_history_is_one_line() -> None:
    script = ScriptDirectory.from_config(migrations_config())
    assert len(script.get_heads()) == 1
    assert len(script.get_bases()) == 1


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_migration_may_take_longer_than_a_request(empty: Database) -> None:
    seen: list[str] = []

    def look(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().startswith("CREATE TABLE jobs"):
            seen.append(str(connection.connection.cursor().execute("SHOW statement_timeout").fetchone()[0]))

    event.listen(empty.db_engine, "before_cursor_execute", look)
    empty.upgrade()
    assert seen == ["0"]
    with empty.reading() as session:
        assert session.scalar(text("SHOW statement_timeout")) == "30s"


def test_a_database_of_another_version_is_refused_with_what_to_do(empty: Database) -> None:
    with pytest.raises(DatabaseNotUpgraded, match="no tables yet: run `renderq db upgrade`"):
        empty.check_revision()
    empty.upgrade()
    empty.check_revision()
    with empty.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseNotUpgraded, match="9999, which this installation does not know"):
        empty.check_revision()


def test_a_new_database_gets_all_tables_and_works(empty: Database) -> None:
    empty.upgrade()
    assert tables(empty) == set(Base.metadata.tables) | {"alembic_version"}
    with empty.transaction() as session:
        job_id = submit(session).id
    empty.upgrade()
    with empty.reading() as session:
        assert store.get_job(session, job_id).id == job_id


def test_the_migrations_and_the_tables_say_the_same(empty: Database) -> None:
    empty.upgrade()
    with empty.db_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_migrations_and_the_tables_refuse_the_same(
    empty: Database,
    database_kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    empty.upgrade()
    declared = Database(new_database_url(database_kind, "declared", tmp_path_factory, request))
    with declared.db_engine.begin() as connection:
        Base.metadata.create_all(connection)
    migrated = {name: found for name, found in checks(empty).items() if name != "alembic_version"}
    assert migrated == checks(declared)
    assert _conditions(empty) == _conditions(declared)
    declared.dispose()


def _conditions(database: Database) -> set[str]:
    """Conditions of checks and partial indices, as the database itself spells them."""
    spelled = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
        "postgresql": "SELECT pg_get_constraintdef(oid) || conname FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace AND conname NOT LIKE 'alembic%'"
        " UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
        " AND tablename <> 'alembic_version'",
    }[database.db_engine.dialect.name]
    with database.db_engine.connect() as connection:
        found = {" ".join(row[0].split()) for row in connection.execute(text(spelled))}
        if database.db_engine.dialect.name == "sqlite":
            of_tables = inspect(connection).get_multi_check_constraints()
            found |= {
                f"{table} {check['name']} {check['sqltext']}"
                for (_, table), of_table in of_tables.items()
                for check in of_table
            }
    return found


def test_jobs_that_failed_before_there_was_the_mark_are_parked_if_their_attempts_were_used_up(
    empty: Database,
) -> None:
    empty.upgrade()
    with empty.transaction() as session:
        lost, broken, early = (submit(session, max_attempts=2).id for _ in range(3))
        for _ in range(2):
            claim(session, lost, lease_s=-1)
            store.rescue(session)
        claim(session, broken, lease_s=-1)
        store.rescue(session)
        for job_id, attempt in ((broken, 2), (early, 1)):
            claim(session, job_id)
            assert store.fail(session, job_id, attempt, WORKER, "broken", "", retryable=job_id == early)
    empty.downgrade("0002")
    empty.upgrade()
    with empty.reading() as session:
        assert {job_id for job_id in (lost, broken, early) if store.get_job(session, job_id).parked} == {lost}


def test_the_way_back_leaves_nothing(empty: Database) -> None:
    empty.upgrade()
    with empty.transaction() as session:
        submit(session, idempotency=("key", "print"))
    empty.downgrade("base")
    assert tables(empty) == {"alembic_version"}
    empty.upgrade()
    assert tables(empty) == set(Base.metadata.tables) | {"alembic_version"}


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty: Database) -> None:
    with empty.db_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE events (id INTEGER)")
    with pytest.raises(Exception, match="events"):
        empty.upgrade()
    assert tables(empty) <= {"events", "alembic_version"}


def test_processes_that_upgrade_at_once_do_it_once(empty: Database) -> None:
    url = empty.url.render_as_string(hide_password=False)
    code = (
        f"from core.db import Database; database = Database({url!r}); database.upgrade(); database.upgrade()"
    )
    starting = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[1] for process in starting]
    assert [process.returncode for process in starting] == [0] * 3, said
    assert tables(empty) == set(Base.metadata.tables) | {"alembic_version"}


def test_the_folder_of_a_sqlite_file_is_made(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/not/yet/there/jobs.db")
    database.upgrade()
    database.dispose()
    assert (tmp_path / "not/yet/there/jobs.db").is_file()


def test_an_installed_copy_finds_its_own_migrations(tmp_path: Path) -> None:
    """As in site-packages, away from the checkout and whatever the working directory."""
    site, elsewhere = tmp_path / "site 100%", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for package in ("core", "policy", "migrations"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import core.db as db; database = db.Database('sqlite:///jobs.db'); database.upgrade();"
        "print(db.__file__); print(db.migrations_config().get_main_option('script_location'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    module, location = ran.stdout.splitlines()
    assert Path(module).is_relative_to(site)
    assert location == str(site / "migrations")
    assert (elsewhere / "jobs.db").is_file()


def test_the_alembic_command_can_compare_too(tmp_path: Path) -> None:
    """As a developer runs it: no connection is passed in, the settings say where."""
    environment = os.environ | {"RENDERQ_DATA_DIR": str(tmp_path)}
    code = (
        "from alembic import command; from core.db import migrations_config as config;"
        "command.upgrade(config(), 'head'); command.check(config())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "renderq.db").is_file()
