"""A process that the harness owns: it is killed, stopped, started again, and does not outlive its owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.fixtures.postgres import PostgresServer
from tests.fixtures.processes import descendants

LOOK_S = 0.01


class Owned:
    """One program and the process that runs it now.

    Its standard input is a pipe that the owner holds: ours end when it closes (``--leashed``), a program of
    others runs below a small parent that does the same (``cli.leash``).
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, leash: int
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._command = tuple(command)
        self._environment = dict(environment)
        self._leash = leash
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=self._leash,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
        self.starts += 1

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send_all(self, number: signal.Signals) -> None:
        """Send it to the process and to all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Kill it and what it has started, whatever state they are in."""
        if self._process is not None:
            self.send_all(signal.SIGKILL)
            self._process.wait()

    def said(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""


class OwnedServer(Owned):
    """A program of others; ``pid`` is its own, not that of the small parent that holds the leash."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, leash: int
    ) -> None:
        leashed = (sys.executable, "-P", "-m", "cli.leash", *command)
        super().__init__(name, leashed, environment, log, leash)

    @property
    def server_pid(self) -> int | None:
        """None while the small parent has not started it yet, or when it has ended."""
        return next(iter(descendants(self.pid)), None)

    def send(self, number: signal.Signals) -> None:
        """Send it to the server, which its parent may just be starting."""
        while self.runs and (pid := self.server_pid) is None:
            time.sleep(LOOK_S)
        if self.runs and pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class OwnedDatabase(Owned):
    """A PostgreSQL server, which its own context ends; SIGTERM is the shutdown that waits for nobody."""

    def __init__(self, name: str, server: PostgresServer) -> None:
        super().__init__(name, (), {}, server.log, -1)
        self._server = server
        self._process = server.process

    def start(self) -> None:
        self._server.start()
        self._process = self._server.process
        self.starts += 1

    def send(self, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self._server.kill()
        else:
            super().send(signal.SIGINT if number == signal.SIGTERM else number)

    def end(self) -> None:
        """Leave the end to its context."""
