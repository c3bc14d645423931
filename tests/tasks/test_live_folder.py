"""The lock that says whose a compiler's working folder is."""

import fcntl
import os
from pathlib import Path

import pytest

from tasks import live_folder


def test_a_folder_whose_lock_was_taken_anew_in_between_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "worker"
    os.close(live_folder.hold(folder))  # its process is dead
    folder.mkdir()
    flock, successors = fcntl.flock, []

    def late(opened: int, operation: int) -> None:
        """Lock the dead one's file when its successor has replaced and locked it."""
        flock(opened, operation)
        if not successors:
            (tmp_path / "worker.lock").unlink()
            successors.append(0)
            successors.append(live_folder.hold(folder))

    monkeypatch.setattr(fcntl, "flock", late)
    live_folder.remove_dead(tmp_path)
    assert folder.is_dir()
    assert (tmp_path / "worker.lock").exists()
    os.close(successors[1])
