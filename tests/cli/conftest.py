"""What the tests of the command line share."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from core.settings import get_settings
from tests.fixtures.scripted_server import ScriptedServer, run_scripted_server

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    """Settings are read once in a process; a test that changes the environment must not leave them behind."""
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


@pytest.fixture(autouse=True)
def hearing_ctrl_c() -> Iterator[None]:
    """A command that was interrupted in this process stays deaf to Ctrl-C; the tests after it do not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def renderq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``renderq`` in this process, with a data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return lambda *arguments, **more: CliRunner().invoke(app, list(arguments), **more)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server whose answers the test writes; RENDERQ_URL names it."""
    with run_scripted_server() as script:
        monkeypatch.setenv("RENDERQ_URL", script.url)
        yield script
