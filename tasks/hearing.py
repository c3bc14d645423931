"""Finds the worker that is alive and takes nothing.

A warm, idle worker whose consumer is stuck looks in order from everywhere: its process lives, it answers
pings, its heartbeat goes on. Two signs give it away: its event loop asks Redis for nothing any more, or
messages stand in its queue though it has nothing to do. Either may be the fault of Redis, so nothing counts
while Redis does not answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tasks.broker import Broker

if TYPE_CHECKING:
    from tasks.child import Setup

#: Exit code of a worker that has to be started again since no message reaches it (EX_TEMPFAIL of sysexits.h).
DEAF = 75
#: The worker has so many times its ``deaf_s`` while its event loop stands: a call to Redis that was under way
#: waits 30 s for its answer, and so does the first one of the next connection.
RECONNECTING = 6
#: Seconds between two looks at Redis.
LOOK_S = 2.0


class Hearing:
    """Looks at an idle worker's queue from time to time; for one thread alone.

    Attributes:
        trouble: What the last look found, in words; empty when nothing.
    """

    def __init__(self, setup: Setup) -> None:
        self.trouble = ""
        self._model = setup.spec.id
        self._board = setup.board
        self._broker = Broker(setup.settings)
        self._deaf_s = setup.deaf_s
        self._pause_s = min(LOOK_S, setup.deaf_s / 4)
        self._looked_at = self._silent_at = self._bad_since = 0.0

    @property
    def connected(self) -> bool:
        """Whether a message that came now would be taken, or one has been."""
        if not self._board.idle:
            return True
        # One bad look may be a message that has just come.
        return self._board.listens and self._bad_for_s() < self._pause_s / 2

    @property
    def deaf(self) -> bool:
        """Whether the trouble has lasted so long that the worker has to be started again."""
        limit_s = self._deaf_s * (1 if self._board.turns else RECONNECTING)
        return self._board.idle and self._bad_for_s(self._silent_at) > limit_s

    def look(self) -> None:
        """Look again, if it is time and the worker is idle."""
        now = time.monotonic()
        since_s = now - self._looked_at
        if since_s < self._pause_s:
            return
        self._looked_at = now
        # After a pause of our own, as of a stopped process, the event loop deserves a new chance as well.
        if not self._board.idle or since_s > self._deaf_s:
            self.trouble, self._bad_since = "", 0.0
            return
        waiting = self._broker.waiting(self._model)
        if waiting is None:
            self._silent_at = now
        self.trouble = self._judge(waiting)
        self._bad_since = (self._bad_since or now) if self.trouble else 0.0

    def _judge(self, waiting: int | None) -> str:
        if waiting is None:
            return "Redis does not answer"
        if waiting:
            return f"it is idle and takes none of the messages in its queue ({waiting})"
        return "" if self._board.listens else "it does not ask Redis for messages"

    def _bad_for_s(self, *later: float) -> float:
        """Seconds between the first and the latest of the bad looks since the last message was taken."""
        if not self._bad_since:
            return 0.0
        return self._looked_at - max(self._bad_since, self._board.cells.idle_since, *later)
