"""Keeps programs running: starts and restarts them, shows their output, ends them, leaves none behind.

Each program is the leader of its own process group, so that Ctrl-C in the terminal reaches only the
supervisor and the children of a program that dies can be swept with it. Output goes straight to the
program's log file, which outlives any fault of ours, and is shown from there.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from cli.exits import CliError, ExitCode
from cli.loglines import concise

TICK_S = 0.1
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 10.0
"""A program that ran this long had started properly: its next end counts as the first."""
START_TRIES = 4
LOG_LIMIT_BYTES = 20_000_000
"""Beyond this a log is put aside, in place of the one put aside before."""
OLD = ".old.log"
CLOSING_LINES = 12
"""Lines of its log shown when a program is given up."""

Say = Callable[[str, str], None]


class StopRequested(Exception):
    """Ctrl-C or SIGTERM arrived."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. An exit code in ``final`` means that another start would not help."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    stops: int
    """Place in the order of ending, the smallest first."""
    grace_s: float = 10.0
    final: Mapping[int, str] = field(default_factory=dict)


class Signals:
    """Counts requests to stop; a signal never interrupts the code that starts a process."""

    CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self.CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self.count += 1


class Child:
    """A program and the process that runs it now."""

    def __init__(self, program: Program, leash: int) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.starts_at = 0.0
        self.started_at = 0.0
        self.failures = 0
        self.is_proven = False
        """Whether it has ever started properly; until then a few failures are enough to give up."""
        self._leash = leash
        self._tail: BinaryIO | None = None

    def start(self) -> None:
        log = self._open_log()
        self.process = subprocess.Popen(
            self.program.command,
            stdin=self._leash,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(self.program.environment),
            process_group=0,
        )
        log.close()
        self.started_at = time.monotonic()

    def _open_log(self) -> BinaryIO:
        path = self.program.log
        if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(OLD))
            self._tail = None
        log = path.open("ab")
        if self._tail is None:
            self._tail = path.open("rb")
            self._tail.seek(0, os.SEEK_END)
        return log

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.process:
            self.process.send_signal(number)

    def sweep(self) -> None:
        """Kill whatever is left of the process group."""
        try:
            if self.process:
                os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass  # nobody is left

    def new_lines(self) -> list[str]:
        """Complete lines written since the last call."""
        if self._tail is None:
            return []
        lines = self._tail.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            self._tail.seek(-len(lines.pop()), os.SEEK_CUR)
        self._rotate()
        return [line.decode(errors="replace").rstrip() for line in lines]

    def _rotate(self) -> None:
        """Put a large log aside while the program goes on writing to it.

        The content is copied and the file emptied, since the program keeps its descriptor, which appends. A
        line that it writes between the last read and the emptying is lost.
        """
        path = self.program.log
        if self._tail is None or self._tail.tell() <= LOG_LIMIT_BYTES:
            return
        with suppress(OSError):  # a full disk or a deleted log: the next look tries again
            shutil.copyfile(path, path.with_suffix(OLD))
            os.truncate(path, 0)
            self._tail.seek(0)

    def close(self) -> None:
        if self._tail:
            self._tail.close()
            self._tail = None


class Supervisor:
    """Runs programs until it is told to stop. All work happens in `tick`, in the caller's thread."""

    def __init__(self, say: Say, show_line: Say, signals: Signals) -> None:
        self.children: dict[str, Child] = {}
        self._say = say
        self._show_line = show_line
        self._signals = signals
        self._leash, self._leash_end = os.pipe()

    def add(self, program: Program) -> Child:
        """Start a program and look after it from now on."""
        child = self.children[program.name] = Child(program, self._leash)
        child.start()
        return child

    def run_once(self, program: Program) -> int:
        """Run a program to its end and return its exit code; `stop` ends it when it is interrupted."""
        child = self.add(program)
        while child.is_running():
            self._rest()
        self._show(child)
        child.close()
        del self.children[program.name]
        return child.process.returncode if child.process else 0

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Look after the programs until ``condition`` holds; raise `CliError` after ``timeout_s`` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if deadline is not None and time.monotonic() > deadline:
                raise CliError(f"{what} was not there within {timeout_s:g} s", ExitCode.UNAVAILABLE)
            self.tick()

    def tick(self) -> None:
        """Show new output, restart what died, rest; raise `StopRequested` or, when given up, `CliError`."""
        for child in self.children.values():
            self._show(child)
            if child.process is None:
                self._restart_when_due(child)
            elif child.process.poll() is not None:
                self._bury(child, child.process.returncode)
        self._rest()

    def kill(self, name: str, reason: str) -> None:
        """Kill a program that does not do its work; the next `tick` sees to its successor."""
        self._say(name, reason)
        self.children[name].send(signal.SIGKILL)

    def _rest(self) -> None:
        if self._signals.count:
            raise StopRequested
        time.sleep(TICK_S)

    def _show(self, child: Child) -> None:
        for line in child.new_lines():
            self._show_line(child.program.name, line)

    def _restart_when_due(self, child: Child) -> None:
        if time.monotonic() >= child.starts_at:
            self._say(child.program.name, "starting again")
            child.start()

    def _bury(self, child: Child, code: int) -> None:
        child.sweep()
        self._show(child)
        child.process = None
        steady = time.monotonic() - child.started_at > STEADY_S
        child.is_proven |= steady
        child.failures = 1 if steady else child.failures + 1
        self._give_up_if_hopeless(child, code)
        delay_s = min(FIRST_DELAY_S * 2 ** (child.failures - 1), LONGEST_DELAY_S)
        child.starts_at = time.monotonic() + delay_s
        self._say(child.program.name, f"{describe_end(code)}; starting it again in {delay_s:g} s")

    def _give_up_if_hopeless(self, child: Child, code: int) -> None:
        program = child.program
        end = f"{program.name} {describe_end(code)}"
        if code in program.final:
            raise CliError(f"{end}: {program.final[code]}. {closing_words(program)}", ExitCode(code))
        if code > 0 and child.failures >= START_TRIES and not child.is_proven:
            times = f"{child.failures} times in a row"
            raise CliError(f"{end}, {times}. {closing_words(program)}", ExitCode.UNAVAILABLE)

    def stop(self) -> None:
        """End every program, one after the other. A further Ctrl-C kills what is still there."""
        heard = self._signals.count
        for child in sorted(self.children.values(), key=lambda child: child.program.stops):
            self._end(child, lambda: self._signals.count > heard)
        os.close(self._leash)
        os.close(self._leash_end)

    def _end(self, child: Child, is_hurried: Callable[[], bool]) -> None:
        """SIGTERM, then SIGKILL for the whole group after the grace time or when hurried."""
        child.send(signal.SIGTERM)
        deadline = time.monotonic() + child.program.grace_s
        while child.is_running() and time.monotonic() < deadline and not is_hurried():
            time.sleep(TICK_S / 2)
        child.sweep()
        if child.process:
            child.process.wait()
        self._show(child)
        child.close()


def describe_end(code: int) -> str:
    """An exit code as Popen gives it, in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def closing_words(program: Program) -> str:
    """The end of a program's log, short where it is ours, for the message that gives it up."""
    text = program.log.read_text(errors="replace") if program.log.exists() else ""
    lines = text.splitlines()[-CLOSING_LINES:]
    shown = [words for line in lines if (words := concise(program.name, line))] or lines
    return "\n".join([f"The end of {program.log}:", *shown])
