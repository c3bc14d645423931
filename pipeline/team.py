"""The followers of a leading engine: started, told what to do, watched, and ended.

They are programs of their own (`pipeline.follower`): a worker's child may not fork through multiprocessing,
and a forked process could not use a GPU. Whoever dies in the middle of a job leaves the others waiting in an
exchange. Between processes on CPUs the exchange then fails; between GPUs nothing happens. So a thread per
follower hears of its end, and where the leader does not come back from the job by itself, `abandon` is
called.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch.distributed as dist

from pipeline.channel import Channel, Message
from pipeline.errors import FollowerLost, OutOfMemory, PipelineError
from pipeline.memory import STEP_S

#: A leader that a follower's death finds in a job has this long to fail by itself.
GRACE_S = 10.0
#: What happened to a follower is heard this soon after an exchange failed.
HEAR_S = 2.0
#: After a job that failed here, followers in the same place have failed as well by then.
SETTLE_S = 20.0
#: After one that was done here, followers have decoded their picture by then.
FINISH_S = 300.0
#: A follower has imported what it needs by then,
HERE_S = 600.0
#: and is prepared so long after its leader, which does the same beside it.
READY_S = 1800.0
_END_S = 5.0


class Abandon(Protocol):
    """Hears why a leader's process can render no more, and whether it is stuck in a job."""

    def __call__(self, lost: PipelineError, /, *, stuck: bool) -> None: ...


@dataclass(slots=True)
class _Follower:
    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel
    failure: Message | None = None
    gone: threading.Event = field(default_factory=threading.Event)


class Team:
    """The followers of one leader."""

    def __init__(self, count: int, name: str, setup: Message, abandon: Abandon) -> None:
        """Starts them.

        Args:
            count: How many.
            name: What they show in the list of processes.
            setup: What each is told first.
            abandon: Told, most often in another thread, why this process cannot go on, when one is gone and
                the leader does not notice, being idle, or stuck in a job.
        """
        self._abandon = abandon
        self._working = threading.Lock()
        self._closing = False
        self._lost: str | None = None
        self._followers: list[_Follower] = []
        for rank in range(1, count + 1):
            self._followers.append(self._start(rank, name))
            self._followers[-1].channel.send(**setup)

    @property
    def lost(self) -> str | None:
        """Why there can be no more jobs, None while all follow."""
        return self._lost

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [follower.process.pid for follower in self._followers]

    def tell(self, **message: object) -> None:
        """Sends a message to all."""
        for follower in self._followers:
            follower.channel.send(**message)

    def asking(self, on_step: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
        """Returns `on_step` such that all stop where it says so, or where it fails."""

        def told(done: int, total: int) -> bool:
            go = False
            try:
                go = on_step(done, total)
            finally:
                self.tell(go=go)
            return go

        return told

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work in which all take part; what comes of a follower's end is told as such.

        Raises:
            FollowerLost: A follower died, or failed alone.
            OutOfMemory: It failed because its memory ran out.
        """
        if self._lost:
            raise FollowerLost(self._lost)
        with self._working:
            try:
                yield
            except Exception as error:
                if not isinstance(error, PipelineError) or _is_broken_exchange(error):
                    self._hear()
                    failure = self._failure()
                    if failure is not None:
                        raise failure from error
                raise
            finally:
                for follower in self._followers:
                    follower.failure = None  # who ends between two jobs does not end of one

    def expect(self, report: str, timeout_s: float) -> None:
        """Waits until all have reported, for each of them this long.

        Raises:
            FollowerLost: One did not.
        """
        for follower in self._followers:
            if (follower.channel.receive(timeout_s) or {}).get("report") != report:
                silent = follower.process.poll() is None and not follower.gone.is_set()
                self._lose(follower, f" was not {report} after {timeout_s:g} s" if silent else " ended")
                raise self._failure() or FollowerLost(str(self._lost))

    @contextmanager
    def leaving(self, settles: Callable[[float], bool]) -> Iterator[None]:
        """A job, which all have left when this is left; whoever has not is lost.

        Args:
            settles: Whether this process's device comes to its end within so many seconds.
        """
        try:
            yield
        except Exception as error:
            if not isinstance(error, PipelineError):
                self._hear()
            if not settles(STEP_S):
                self._lost = self._lost or "rank 0 of the worker waits in an exchange that the others left"
                self._abandon(self._failure_of(error), stuck=True)
            self._leave(SETTLE_S)
            raise
        self._leave(FINISH_S)

    def _leave(self, timeout_s: float) -> None:
        self.tell(order="leave")
        for follower in self._followers:
            if follower.channel.receive(0 if self._lost else timeout_s) is None:
                self._lose(follower, " did not leave a job")

    def _hear(self) -> None:
        """Gives a follower that broke an exchange by its end the time to be heard of."""
        for follower in self._followers:
            follower.gone.wait(HEAR_S / len(self._followers))

    def close(self) -> None:
        """Ends all; returns when they are gone."""
        self._closing = True
        for follower in self._followers:
            follower.channel.close()
        for follower in self._followers:
            try:
                follower.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
        self._followers = []

    def _start(self, rank: int, name: str) -> _Follower:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "pipeline.follower", str(rank), str(theirs.fileno()), name]
        # It is to import what this process imports, wherever that was found.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        channel = Channel(ours, lambda: self._ended(rank), lambda message: self._heard(rank, message))
        return _Follower(rank, process, channel)

    def _of(self, rank: int) -> _Follower | None:
        return next((follower for follower in self._followers if follower.rank == rank), None)

    def _heard(self, rank: int, message: Message) -> None:
        follower = self._of(rank)
        if follower is not None and message.get("report") == "failed":
            follower.failure = message

    def _ended(self, rank: int) -> None:
        follower = self._of(rank)
        if self._closing or follower is None:
            return
        self._lose(follower)
        follower.gone.set()
        stuck = self._working.locked()
        if stuck and self._working.acquire(timeout=GRACE_S):
            self._working.release()  # it came out by itself, and tells what happened
        elif not self._closing:
            self._abandon(self._failure() or FollowerLost(str(self._lost)), stuck=stuck)

    def _lose(self, follower: _Follower, how: str = " ended") -> None:
        words = f": {follower.failure['words']}" if follower.failure else how
        self._lost = (
            self._lost or f"rank {follower.rank} of the worker, process {follower.process.pid},{words}"
        )

    def _failure_of(self, error: Exception) -> PipelineError:
        """What a job ends with that failed here, and cannot be left."""
        own = error if isinstance(error, PipelineError) and error.retryable else None
        return own or self._failure() or FollowerLost(str(self._lost))

    def _failure(self) -> PipelineError | None:
        """What a follower's failure or end means for a job."""
        memory = [each for each in self._followers if (each.failure or {}).get("code") == OutOfMemory.code]
        if memory:
            return OutOfMemory(f"on rank {memory[0].rank}: {(memory[0].failure or {})['words']}")
        return FollowerLost(self._lost) if self._lost else None


def _is_broken_exchange(error: BaseException) -> bool:
    """Whether another rank's end is behind this; gloo raises a plain RuntimeError, and says who it is."""
    cause = error.__cause__
    if cause is None:
        return False
    return isinstance(cause, dist.DistError) or "gloo" in str(cause).lower()
