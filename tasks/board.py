"""What a worker's parent and its child tell each other, in shared memory.

The parent makes the board before the child is forked; each cell is one aligned machine word and has one
writer at a time, so no lock is needed. Times are ``time.monotonic()``, which both processes read from the
same clock; 0 means "not".
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from multiprocessing.sharedctypes import RawValue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


#: Room for why a child ended itself; a code and a message take less.
WORDS_BYTES = 1024


class _Cells(ctypes.Structure):
    _fields_ = (
        ("warm_pid", ctypes.c_longlong),
        ("child_pid", ctypes.c_longlong),
        ("failed", ctypes.c_longlong),
        ("deaf", ctypes.c_longlong),
        ("cold_starts", ctypes.c_longlong),
        ("drain_until", ctypes.c_double),
        ("job_since", ctypes.c_double),
        ("beat_at", ctypes.c_double),
        ("kill_at", ctypes.c_double),
        ("due_at", ctypes.c_double),
        ("asking", ctypes.c_longlong),
        ("holding", ctypes.c_longlong),
        ("idle_since", ctypes.c_double),
        ("turned_at", ctypes.c_double),
        ("listened_at", ctypes.c_double),
        ("wanted", ctypes.c_longlong),
        ("warming", ctypes.c_longlong),
        ("died_warming", ctypes.c_longlong),
        ("offered", ctypes.c_longlong),
        ("called_back_at", ctypes.c_double),
        ("last_words", ctypes.c_char * WORDS_BYTES),
    )

    warm_pid: int
    child_pid: int
    failed: int
    deaf: int
    cold_starts: int
    drain_until: float
    job_since: float
    beat_at: float
    kill_at: float
    due_at: float
    asking: int
    holding: int
    idle_since: float
    turned_at: float
    listened_at: float
    wanted: int
    warming: int
    died_warming: int
    offered: int
    called_back_at: float
    last_words: bytes


#: Seconds that the parent's event loop may take for a turn before it counts as stuck; a busy machine needs
#: some, a turn takes a quarter of a second at most when there is nothing to do.
STUCK_S = 5.0
#: So many children may be killed while they warm a shape when idle; the worker then leaves it.
WARMING_DEATHS = 2


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
    def ends(self) -> bool:
        """Whether the worker comes to its end, so that another child would be one too many."""
        return bool(self.draining or self.cells.failed or self.cells.deaf)

    @property
    def busy(self) -> bool:
        return self.cells.job_since > 0

    @property
    def idle(self) -> bool:
        """Whether a message could be taken now: a warm child that holds none, and no stop."""
        return self.open and not self.cells.holding and not self.busy and not self.called_back

    @property
    def offered(self) -> bool:
        """Whether the child was given a shape to warm and has not come back from it."""
        return bool(self.cells.offered)

    @property
    def called_back(self) -> bool:
        """Whether the child is to leave the shape that it warms, because a message has come."""
        return self.cells.called_back_at > 0

    def may_warm(self, idle_s: float) -> bool:
        """Whether shapes are wanted and there has been nothing else to do for ``idle_s`` seconds."""
        rested = time.monotonic() - self.cells.idle_since > idle_s
        return (
            bool(self.cells.wanted) and rested and self.idle and not self.offered and not self.warms_no_more
        )

    @property
    def warms_no_more(self) -> bool:
        """Whether shapes are left cold, because children were killed while they warmed some."""
        return self.cells.died_warming >= WARMING_DEATHS

    def offer(self) -> None:
        """Say that the child is given a shape to warm."""
        self.cells.called_back_at = 0
        self.cells.offered = 1

    def withdraw(self) -> None:
        """Say that the child has come back from it, or is dead."""
        self.cells.called_back_at = self.cells.offered = 0

    def call_back(self) -> None:
        """Say that the child is to leave it."""
        self.cells.called_back_at = self.cells.called_back_at or time.monotonic()

    @property
    def turns(self) -> bool:
        """Whether the parent's event loop runs, with its connection to Redis."""
        return time.monotonic() - self.cells.turned_at < STUCK_S

    @property
    def listens(self) -> bool:
        """Whether an idle worker asked Redis for a message lately."""
        return time.monotonic() - max(self.cells.listened_at, self.cells.idle_since) < STUCK_S

    def turn(self) -> None:
        """Say that the parent's event loop is at its next turn."""
        self.cells.turned_at = time.monotonic()

    def listen(self) -> None:
        """Say that the parent asks Redis for a message now."""
        self.cells.listened_at = time.monotonic()

    def take(self) -> None:
        """Say that the child holds a message."""
        self.cells.holding = 1

    def release(self) -> None:
        """Say that the child is done with its message."""
        self.cells.idle_since = time.monotonic()
        self.cells.holding = 0

    def begin_child(self) -> None:
        """Say that this process is the child now, and cold; one that left warming unfinished was killed."""
        self.cells.died_warming += self.cells.warming
        self.cells.warm_pid = self.cells.warming = self.cells.wanted = 0
        self.end_job()
        self.release()
        self.cells.child_pid = os.getpid()
        self.cells.cold_starts += 1

    def leave_words(self, code: str, message: str) -> None:
        """Say, to the child that comes after it, what ended this one."""
        self.cells.last_words = f"{code}\n{message}".encode()[:WORDS_BYTES]

    def take_words(self) -> tuple[str, str] | None:
        """Return the code and the message that the last child left, once; None: it left none."""
        words, self.cells.last_words = self.cells.last_words, b""
        code, _, message = words.decode(errors="ignore").partition("\n")
        return (code, message) if code else None

    def say_warm(self) -> None:
        """Open the gate for this child."""
        self.cells.cold_starts = 0
        self.release()
        self.cells.warm_pid = os.getpid()

    def close(self) -> None:
        """Close the gate: this child takes no more jobs."""
        self.cells.warm_pid = 0

    def begin_job(self, limit_s: float | None = None) -> None:
        """Say that a job runs, which may do so for ``limit_s`` seconds."""
        self.cells.kill_at = self.cells.asking = 0
        self.cells.due_at = time.monotonic() + limit_s if limit_s else 0
        self.cells.beat_at = self.cells.job_since = time.monotonic()

    def end_job(self) -> None:
        self.cells.job_since = self.cells.kill_at = self.cells.beat_at = self.cells.due_at = 0

    def beat(self, *, asking: bool = False) -> None:
        """Say that the job's heartbeat thread still runs, and whether it waits for the database now."""
        self.cells.beat_at = time.monotonic()
        self.cells.asking = asking

    def drain(self, seconds: float) -> None:
        """Take no more jobs, and have the running one end within ``seconds``; a second call means now."""
        now = time.monotonic()
        self.cells.drain_until = now if self.draining else now + seconds

    def kill_after(self, seconds: float) -> None:
        """Have the parent kill the child if its job has not ended in ``seconds``; the first call counts."""
        if self.cells.kill_at == 0:
            self.cells.kill_at = time.monotonic() + seconds

    def spare(self) -> None:
        """Say that no job has to end any more but in its own time."""
        self.cells.kill_at = 0


def lives(pid: int) -> bool:
    """Say whether a child of this process runs; one that has died and is not yet reaped does not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def tell(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child that may have died and been reaped since it was looked at."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
