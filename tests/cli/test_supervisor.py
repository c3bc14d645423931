"""Restarting, giving up, ending."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.exits import CliError, ExitCode
from cli.programs import WORKER_GRACE_S
from cli.supervisor import Program, Signals, StopRequested, Supervisor, describe_end
from tasks.app import DRAIN_S
from tasks.watch import LEAVE_S, QUIT_GRACE_S
from tests.fixtures.processes import is_gone

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = (
    "import subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print(child.pid, flush=True); time.sleep(600)"
)


class Watcher:
    """A supervisor with what it said and showed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.shown: list[str] = []
        self.signals = Signals()
        self.supervisor = Supervisor(
            lambda name, text: self.said.append(f"{name} {text}"),
            lambda name, line: self.shown.append(f"{name} {line}"),
            self.signals,
        )

    def program(
        self, name: str, code: str, *, stops: int = 1, grace_s: float = 10.0, **more: object
    ) -> Program:
        command = (sys.executable, "-c", code)
        return Program(name, command, dict(os.environ), self.folder / f"{name}.log", stops, grace_s, **more)  # type: ignore[arg-type]

    def run(self, *programs: Program, until: Callable[[], bool]) -> None:
        for program in programs:
            self.supervisor.add(program)
        self.supervisor.wait(until, "the condition of the test", 20)

    def pid(self, name: str) -> int | None:
        process = self.supervisor.children[name].process
        return process.pid if process else None


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    watcher = Watcher(tmp_path)
    yield watcher
    watcher.signals.count = 1  # hurry
    watcher.supervisor.stop()


def test_output_goes_to_the_log_file_and_is_shown_line_by_line(watcher: Watcher) -> None:
    watcher.run(watcher.program("api", SLEEP), until=lambda: watcher.shown == ["api up"])
    assert (watcher.folder / "api.log").read_text() == "up\n"


def test_a_killed_program_is_started_again(watcher: Watcher) -> None:
    watcher.run(watcher.program("api", SLEEP), until=lambda: watcher.shown == ["api up"])
    first = watcher.pid("api")
    assert first
    os.kill(first, signal.SIGKILL)
    watcher.run(until=lambda: watcher.shown == ["api up", "api up"])
    assert watcher.pid("api") != first
    assert "api was ended by SIGKILL; starting it again in 0.5 s" in watcher.said


def test_the_children_of_a_killed_program_do_not_outlive_it(watcher: Watcher) -> None:
    watcher.run(watcher.program("worker", PARENT), until=lambda: bool(watcher.shown))
    leader, child = watcher.pid("worker"), int(watcher.shown[0].split()[1])
    assert leader
    os.kill(leader, signal.SIGKILL)
    watcher.run(until=lambda: is_gone(child))


def test_an_exit_code_that_another_start_cannot_help_ends_everything_with_that_code(watcher: Watcher) -> None:
    code = "print('weights are missing'); raise SystemExit(70)"
    program = watcher.program("worker", code, final={70: "no model"})
    expected = r"worker ended with exit code 70: no model\. (?s:.*)weights are missing"
    with pytest.raises(CliError, match=expected) as raised:
        watcher.run(program, until=lambda: False)
    assert raised.value.code == ExitCode.LOAD_FAILED


def test_a_program_that_never_starts_is_given_up_with_the_end_of_its_log(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.supervisor.FIRST_DELAY_S", 0.0)
    program = watcher.program("api", "print('no such table'); raise SystemExit(1)")
    with pytest.raises(CliError, match=r"4 times in a row(?s:.*)no such table") as raised:
        watcher.run(program, until=lambda: False)
    assert raised.value.code == ExitCode.UNAVAILABLE


def test_a_program_that_was_ready_once_is_never_given_up(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.supervisor.FIRST_DELAY_S", 0.0)
    child = watcher.supervisor.add(watcher.program("api", "raise SystemExit(1)"))
    child.is_proven = True
    watcher.run(until=lambda: child.failures > 6)


def test_the_delay_doubles_with_each_failure(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.supervisor.FIRST_DELAY_S", 0.01)
    child = watcher.supervisor.add(watcher.program("api", "raise SystemExit(1)"))
    child.is_proven = True
    watcher.run(until=lambda: child.failures >= 3)
    delays = [text.rpartition(" in ")[2] for text in watcher.said if "again in" in text]
    assert delays[:3] == ["0.01 s", "0.02 s", "0.04 s"]


def test_programs_end_in_their_order_and_none_is_left(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    code = (
        "import signal, sys, time; from pathlib import Path\n"
        "def end(*_):\n"
        "    with Path('{ends}').open('a') as f: f.write('{name} ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )
    ends = tmp_path / "ends"
    order = {"valkey": 3, "api": 1, "worker": 2}
    programs = [
        watcher.program(name, code.format(ends=ends, name=name), stops=n) for name, n in order.items()
    ]
    watcher.run(*programs, until=lambda: len(watcher.shown) == 3)
    pids = [watcher.pid(name) for name in order]
    watcher.supervisor.stop()
    assert ends.read_text() == "api worker valkey "
    assert all(pid and is_gone(pid) for pid in pids)


def test_a_program_that_does_not_end_in_its_grace_time_is_killed(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    watcher.run(watcher.program("worker", DEAF, grace_s=0.2), until=lambda: watcher.shown == ["worker up"])
    pid = watcher.pid("worker")
    watcher.supervisor.stop()
    assert pid
    assert is_gone(pid)


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    watcher.run(watcher.program("worker", DEAF, grace_s=600), until=lambda: watcher.shown == ["worker up"])
    pid = watcher.pid("worker")
    with watcher.signals:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        watcher.supervisor.stop()
    assert pid
    assert is_gone(pid)


def test_a_signal_ends_the_watch_and_not_the_code_that_runs(watcher: Watcher) -> None:
    with watcher.signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            watcher.supervisor.tick()


def test_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.supervisor.LOG_LIMIT_BYTES", 10)
    (tmp_path / "api.log").write_text("x" * 11)
    watcher = Watcher(tmp_path)
    watcher.run(watcher.program("api", SLEEP), until=lambda: watcher.shown == ["api up"])
    watcher.supervisor.stop()
    assert (tmp_path / "api.log").read_text() == "up\n"
    assert (tmp_path / "api.old.log").read_text() == "x" * 11


def test_a_log_that_grows_large_is_put_aside_while_its_program_runs(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.supervisor.LOG_LIMIT_BYTES", 200)
    code = "import time\nfor n in range(60): print('line', n, flush=True); time.sleep(0.02)\ntime.sleep(600)"
    program = watcher.program("api", code)
    watcher.run(program, until=lambda: "api line 59" in watcher.shown)
    assert program.log.stat().st_size < 300
    assert "\0" not in program.log.read_text()
    assert program.log.with_suffix(".old.log").read_text().startswith("line ")


def test_the_worker_gets_more_time_to_stop_than_it_may_take() -> None:
    assert WORKER_GRACE_S > DRAIN_S + QUIT_GRACE_S + LEAVE_S


def test_a_program_run_once_gives_its_exit_code(watcher: Watcher) -> None:
    assert (
        watcher.supervisor.run_once(watcher.program("migration", "print('done'); raise SystemExit(5)")) == 5
    )
    assert watcher.shown == ["migration done"]
    assert not watcher.supervisor.children


def test_an_end_is_described_in_words() -> None:
    assert describe_end(-9) == "was ended by SIGKILL"
    assert describe_end(3) == "ended with exit code 3"
