"""A way out of idle work at any moment: a signal handler raises in the middle of it.

A compile takes minutes and asks nobody whether it may go on, so it is left by an exception from outside. Such
an exception is raised only while `Interruption.run` runs something, and not in the middle of tidying up (an
``__exit__`` or ``finally``, an import, a weak reference's callback), where it would leave half of it undone:
whoever strikes, strikes again a little later. What swallowed one strike meets the next.
"""

import linecache
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")

#: An interruption that was raised and has not arrived by then was swallowed.
AGAIN_S = 1.0
#: Tidying up that takes longer is no tidying up.
TIDYING_S = 5.0

_TIDYING = frozenset({"__enter__", "__exit__", "__del__"})
_TIDYING_FILES = ("/weakref.py", "/_weakrefset.py", "/weak.py")


class Interrupted(BaseException):
    """Idle work was left because a job came. Like KeyboardInterrupt, nothing may take it for an error."""


class Interruption:
    """Work that can be left, for one thread: the main one, where signals are handled."""

    def __init__(self, *, at_once: Callable[[], bool] = lambda: False) -> None:
        """Takes note of what to ask.

        Args:
            at_once: Whether the work is to be left already; asked at its start.
        """
        self._at_once = at_once
        self._runs = False
        self._struck_at = 0.0
        self._raised_at = 0.0

    @property
    def struck(self) -> bool:
        """Whether the work was to be left."""
        return self._struck_at > 0

    def run(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which `strike` may leave.

        Raises:
            Interrupted: It was left.
        """
        try:
            self._runs = True
            self.check()
            return work()
        finally:
            self._runs = False

    def check(self) -> None:
        """Raises if the work is to be left already."""
        if self.struck or self._at_once():
            self._struck_at = self._struck_at or time.monotonic()
            raise Interrupted

    def strike(self, frame: FrameType | None) -> None:
        """Called by the signal's handler with the frame that was interrupted.

        Raises:
            Interrupted: Here, if this is a moment at which the work can be left.
        """
        now = time.monotonic()
        self._struck_at = self._struck_at or now
        if not self._runs or now < self._raised_at + AGAIN_S:
            return
        if now < self._struck_at + TIDYING_S and self._tidies(frame):
            return
        self._raised_at = now
        raise Interrupted

    def _tidies(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if _is_tidying(frame):
                return True
            if frame.f_code is Interruption.run.__code__:
                return False
            frame = frame.f_back
        return False


def _is_tidying(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_name in _TIDYING or code.co_filename.startswith("<frozen importlib"):
        return True
    return code.co_filename.endswith(_TIDYING_FILES) or _is_in_finally(code.co_filename, frame.f_lineno)


def _is_in_finally(file: str, number: int | None) -> bool:
    """Whether a line stands in a ``finally``, by its indentation."""
    if number is None:
        return False
    indent = _indent(linecache.getline(file, number))
    while indent and number > 1:
        number -= 1
        line = linecache.getline(file, number)
        if line.strip() and _indent(line) < indent:
            indent = _indent(line)
            if line.lstrip().startswith("finally:"):
                return True
            if line.lstrip().startswith(("def ", "async def ")):
                return False
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
