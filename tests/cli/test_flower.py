"""`renderq flower` refuses in words what would be unsafe or cannot be."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.exits import ExitCode
from tests.cli.conftest import Run
from tests.fixtures.stack import RENDERQ


@pytest.mark.parametrize("command", [("flower",), ("up", "--flower"), ("up", "--flower-port", "0")])
def test_an_installation_without_flower_says_what_to_install(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "flower", None)  # as Python itself notes a module that is not there
    done = renderq(*command)
    assert done.exit_code == ExitCode.UNAVAILABLE
    assert "pip install 'renderq[flower]'" in done.stderr


def test_an_address_of_the_network_wants_credentials(renderq: Run) -> None:
    done = renderq("flower", "--address", "0.0.0.0")
    assert done.exit_code == ExitCode.USAGE
    assert "RENDERQ_FLOWER_BASIC_AUTH" in done.stderr


@pytest.mark.parametrize(
    "credentials",
    ["secret", ":secret", "secret:", "user:schl\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel", "user:sec\tret"],
)
def test_credentials_in_another_form_are_refused_without_being_shown(
    renderq: Run, monkeypatch: pytest.MonkeyPatch, credentials: str
) -> None:
    monkeypatch.setenv("RENDERQ_FLOWER_BASIC_AUTH", credentials)
    done = renderq("flower")
    assert done.exit_code == ExitCode.USAGE
    assert "RENDERQ_FLOWER_BASIC_AUTH" in done.stderr
    assert "user:password" in done.stderr
    assert credentials.removeprefix("user:").strip(":") not in done.stderr


def test_a_port_in_use_is_refused_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, RENDERQ, "flower", "--port", port]
        environment = os.environ | {"RENDERQ_DATA_DIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
