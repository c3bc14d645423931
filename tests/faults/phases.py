"""Which phase the job of a worker is in, as its stand-in engine tells it from outside the queue."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.processes import is_gone

PHASES = ("queued", "starting", "step", "saving", "committing")
LOOK_S = 0.002
SAVING_S = 0.004
COMMITTING_S = 0.02
"""Saving a small picture and committing its job take some 20 ms; nobody can look in between: it is timed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a worker told last; ``count`` rises with each."""

    child: int
    count: int
    phase: str


def look(folder: Path, parent: int) -> Moment | None:
    """What the worker with this parent told last; None before its first job or when that child is dead."""
    try:
        child, count, phase = (folder / f"{parent}.phase").read_text().strip().split(" ", 2)
    except (OSError, ValueError):
        return None
    return None if is_gone(int(child)) else Moment(int(child), int(count), phase)


def wait_phase(
    phase: str,
    see: Callable[[], Moment | None],
    chance: random.Random,
    timeout_s: float,
    pause: Callable[[], None],
) -> bool:
    """Return at a moment within the phase; False when it did not come in time.

    Args:
        phase: One of `PHASES`; ``queued`` is any moment.
        see: Tells what the worker told last.
        chance: Draws the moment within a phase that has no marks of its own.
        timeout_s: Seconds to wait.
        pause: Called between two looks.
    """
    if phase == "queued":
        return True
    word = {"committing": "saving"}.get(phase, phase)
    before = see()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = see()
        if now and now != before and now.phase.startswith(word):
            time.sleep(chance.random() * SAVING_S if phase == "saving" else 0)
            time.sleep(SAVING_S + chance.random() * COMMITTING_S if phase == "committing" else 0)
            return True
        pause()
    return False
