"""One system for all tests that leave it whole, once per kind of database."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Scene
from tests.faults.system import Layout, run_system
from tests.fixtures.database import new_database_url

LEASE_S = 3.0


@pytest.fixture(scope="session")
def shared_scene(database_kind: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    url = "sqlite"
    if database_kind == "postgresql":
        tmp_path_factory = request.getfixturevalue("tmp_path_factory")
        url = new_database_url(database_kind, "faults", tmp_path_factory, request)
    # Not below pytest's own folder: a socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="rq-faults-") as folder:
        layout = Layout(Path(folder), url, lease_s=LEASE_S, heartbeat_s=0.5, upkeep_interval_s=0.5)
        with run_system(layout) as system:
            yield Scene(system)


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    """Whole at the start, with no job that waits; its logs are shown when the test fails."""
    shared_scene.make_whole()
    yield shared_scene
    shared_scene.show_logs()
