"""The data folder and its lock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.datafolder import DataFolder, hold_folder, socket_in
from cli.exits import CliError, ExitCode

HOLD = """
import sys
from pathlib import Path
from cli.datafolder import hold_folder
with hold_folder(Path(sys.argv[1])):
    {}
"""


def try_to_hold(folder: Path) -> str:
    """What another process gets to hear; empty when it could hold the folder."""
    command = [sys.executable, "-P", "-c", HOLD.format("pass"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_the_folder_is_made_with_its_parts(tmp_path: Path) -> None:
    with hold_folder(tmp_path / "new" / "folder") as folder:
        assert folder.valkey.is_dir()
        assert folder.logs.is_dir()


def test_a_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        assert f"another renderq (process {os.getpid()}) runs in {tmp_path}" in try_to_hold(tmp_path)
    assert try_to_hold(tmp_path) == ""


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    code = HOLD.format("print('held', flush=True); input()")
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    assert try_to_hold(tmp_path) == ""


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(CliError, match="cannot write to the data folder") as raised,
        hold_folder(tmp_path / "file"),
    ):
        pass
    assert raised.value.code == ExitCode.USAGE


def test_the_socket_lies_in_the_folder(tmp_path: Path) -> None:
    with socket_in(DataFolder(Path("/short"))) as path:
        assert path == Path("/short/valkey/valkey.sock")


def test_a_deep_folder_gets_a_private_place_for_its_socket(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / ("deep" * 30))
    folder.root.mkdir()
    with socket_in(folder) as path:
        assert folder.socket_note.read_text() == str(path.parent)
        assert len(str(path)) < 100
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


def test_the_private_place_of_a_killed_process_is_used_again_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = DataFolder(tmp_path / "deep" / ("deep" * 30))
    deep.root.mkdir(parents=True)
    left = tmp_path / "renderq-left"
    left.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: pytest.fail("a new place was made"))
    deep.socket_note.write_text(str(left))
    with socket_in(deep) as path:
        assert path.parent == left
    assert not left.exists()
    assert not deep.socket_note.exists()


def test_a_place_that_others_could_write_to_is_not_used(tmp_path: Path) -> None:
    deep = DataFolder(tmp_path / ("deep" * 30))
    deep.root.mkdir()
    for name, mode in {"renderq-open": 0o777, "other": 0o700}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        deep.socket_note.write_text(str(tmp_path / name))
        with socket_in(deep) as path:
            assert path.parent != tmp_path / name
        assert (tmp_path / name).exists()
