"""How the stack knows its own worker."""

import socket
import sys
from pathlib import Path

from cli.datafolder import DataFolder
from cli.stack import Stack, StackPlan
from cli.supervisor import Program, Signals, Supervisor
from tests.fixtures.scripted_server import ScriptedServer


def test_a_worker_of_another_machine_with_the_same_process_id_is_not_taken_for_ours(
    tmp_path: Path, server: ScriptedServer
) -> None:
    signals = Signals()
    supervisor = Supervisor(lambda *_: None, lambda *_: None, signals)
    command = (sys.executable, "-c", "import time; time.sleep(600)")
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
