"""One system for all tests that leave it whole, once per kind of database."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Scene
from tests.faults.system import Layout, run_system
from tests.fixtures.small_disk import small_disk

LEASE_S = 3.0
DISK_MB = 64
"""What everything of a system is kept on, where a test may mount a disk that can be filled."""


@pytest.fixture(scope="session")
def shared_scene(database_kind: str) -> Iterator[Scene]:
    # Not below pytest's own folder: a socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="rq-faults-") as folder, small_disk(Path(folder), DISK_MB):
        layout = Layout(Path(folder), database_kind, lease_s=LEASE_S, heartbeat_s=0.5, upkeep_interval_s=0.5)
        with run_system(layout) as system:
            yield Scene(system)


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    """Whole at the start, with no job that waits; its logs are shown when the test fails."""
    shared_scene.make_whole()
    yield shared_scene
    shared_scene.show_logs()
