"""What a worker's parent and its child tell each other, in shared memory.

The parent makes the board before the child is forked; each cell is one aligned machine word and has one
writer at a time, so no lock is needed. Times are ``time.monotonic()``, which both processes read from the
same clock; 0 means "not".
"""

from __future__ import annotations

import ctypes
import os
import time
from multiprocessing.sharedctypes import RawValue


class _Cells(ctypes.Structure):
    _fields_ = (
        ("warm_pid", ctypes.c_longlong),
        ("child_pid", ctypes.c_longlong),
        ("failed", ctypes.c_longlong),
        ("cold_starts", ctypes.c_longlong),
        ("drain_until", ctypes.c_double),
        ("job_since", ctypes.c_double),
        ("beat_at", ctypes.c_double),
        ("kill_at", ctypes.c_double),
    )

    warm_pid: int
    child_pid: int
    failed: int
    cold_starts: int
    drain_until: float
    job_since: float
    beat_at: float
    kill_at: float


class Board:
    """The cells, and the questions asked of them."""

    def __init__(self) -> None:
        self.cells: _Cells = RawValue(_Cells)

    @property
    def warm(self) -> bool:
        """Whether the child that said it is warm still lives."""
        pid = self.cells.warm_pid
        return pid != 0 and lives(pid)

    @property
    def open(self) -> bool:
        """Whether a message may be read from Redis."""
        return self.warm and not self.draining

    @property
    def draining(self) -> bool:
        return self.cells.drain_until > 0

    @property
    def busy(self) -> bool:
        return self.cells.job_since > 0

    def begin_child(self) -> None:
        """Say that this process is the child now, and cold."""
        self.cells.warm_pid = 0
        self.end_job()
        self.cells.child_pid = os.getpid()
        self.cells.cold_starts += 1

    def say_warm(self) -> None:
        """Open the gate for this child."""
        self.cells.cold_starts = 0
        self.cells.warm_pid = os.getpid()

    def close(self) -> None:
        """Close the gate: this child takes no more jobs."""
        self.cells.warm_pid = 0

    def begin_job(self) -> None:
        self.cells.kill_at = 0
        self.cells.beat_at = self.cells.job_since = time.monotonic()

    def end_job(self) -> None:
        self.cells.job_since = self.cells.kill_at = self.cells.beat_at = 0

    def beat(self) -> None:
        """Say that the job's heartbeat thread still runs."""
        self.cells.beat_at = time.monotonic()

    def drain(self, seconds: float) -> None:
        """Take no more jobs, and have the running one end within ``seconds``; a second call means now."""
        now = time.monotonic()
        self.cells.drain_until = now if self.draining else now + seconds

    def kill_after(self, seconds: float) -> None:
        """Have the parent kill the child if its job has not ended in ``seconds``; the first call counts."""
        if self.cells.kill_at == 0:
            self.cells.kill_at = time.monotonic() + seconds


def lives(pid: int) -> bool:
    """Say whether a child of this process runs; one that has died and is not yet reaped does not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
