"""How the stack knows its own worker, and when its programs cannot go on."""

import os
import socket
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.datafolder import DataFolder
from cli.exits import CliError, ExitCode
from cli.programs import api_program, child_environment, upkeep_program, worker_program
from cli.stack import Stack, StackPlan
from cli.supervisor import Program, Signals, Supervisor
from core.db import Database
from tests.fixtures.scripted_server import ScriptedServer


def test_a_worker_of_another_machine_with_the_same_process_id_is_not_taken_for_ours(
    tmp_path: Path, server: ScriptedServer
) -> None:
    signals = Signals()
    supervisor = Supervisor(lambda *_: None, lambda *_: None, signals)
    command = (sys.executable, "-c", "import signal; signal.pause()")
    child = supervisor.add(Program("worker", command, {}, tmp_path / "worker.log", stops=1))
    stack = Stack(StackPlan(tmp_path), DataFolder(tmp_path), supervisor, None)
    stack.url = server.url
    assert child.process
    other = {"pid": child.process.pid, "host": "elsewhere", "state": "ready"}
    own = other | {"host": socket.gethostname(), "state": "loading"}
    try:
        server.add("/v1/workers", {"data": [other]})
        assert stack.worker_state() == ""
        server.answers["/v1/workers"].clear()
        server.add("/v1/workers", {"data": [other, own]})
        assert stack.worker_state() == "loading"
    finally:
        signals.count = 1  # hurry
        supervisor.stop()


def test_a_worker_that_gives_no_sign_of_life_is_killed_and_started_again(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a signal it cannot end by itself, nor say that it hangs."""
    monkeypatch.setattr("cli.stack.SILENT_LOOK_S", 0.0)
    signals, said = Signals(), []
    supervisor = Supervisor(lambda _, words: said.append(words), lambda *_: None, signals)
    command = (sys.executable, "-c", "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP)")
    child = supervisor.add(Program("worker", command, {}, tmp_path / "worker.log", stops=1))
    stack = Stack(StackPlan(tmp_path), DataFolder(tmp_path), supervisor, None)
    stack.url = server.url
    assert child.process
    row = {"pid": child.process.pid, "host": socket.gethostname()}
    states = ["loading", "gone", "gone", "ready", "gone", "gone", "gone"]
    for state in states:
        server.add("/v1/workers", {"data": [row | {"state": state}]})
    try:
        for _ in states[:-1]:
            stack.look_after()
        assert said == []
        stack.look_after()
        assert said == ["gives no sign of life"]
        supervisor.wait(lambda: "starting again" in said, "the next", 10)
        assert "SIGKILL" in said[1]
    finally:
        signals.count = 1  # hurry
        supervisor.stop()


def test_no_program_is_started_again_on_the_tables_of_another_version(tmp_path: Path) -> None:
    """As when a package is upgraded, and its database, below a system that runs."""
    database = Database(f"sqlite:///{tmp_path / 'renderq.db'}")
    database.upgrade()
    with database.db_engine.begin() as connection:
        connection.execute(text("update alembic_version set version_num = 'later'"))
    database.dispose()
    said: list[str] = []
    folder = DataFolder(tmp_path)
    folder.logs.mkdir()
    environment = child_environment(folder, f"redis+socket://{tmp_path / 'none.sock'}", os.environ)
    for program in (
        api_program(folder, environment, "127.0.0.1", 0, trusted=False),
        upkeep_program(folder, environment),
        worker_program(folder, environment, "tiny", ()),
    ):
        supervisor = Supervisor(lambda *words: said.append(" ".join(words)), lambda *_: None, Signals())
        child = supervisor.add(program)
        child.is_proven = True
        try:
            with pytest.raises(CliError, match="the tables of another renderq") as raised:
                supervisor.wait(lambda: False, "the end", 60)
        finally:
            supervisor.stop()
        assert raised.value.code == ExitCode.OTHER_DATABASE
        assert "does not know: a newer renderq has upgraded it" in raised.value.message
    assert not said
