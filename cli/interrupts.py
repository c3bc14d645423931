"""Ctrl-C while a command waits: the first one ends it in words, and more of them change nothing."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heard_once() -> Iterator[None]:
    """Let the first Ctrl-C end the block with `KeyboardInterrupt`, and ignore those after it to the end.

    Without that a second one would cut the last words short, or end the interpreter with a traceback. A
    program that ignores the signal, as in the background of a shell, goes on ignoring it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    # Blocked and not ignored: Python complains of a signal that comes while its handler is taken away.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt
