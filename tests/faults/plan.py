"""Which faults there are, and a plan of them drawn from a seed.

A cell is a component, what is done to it, and the phase of a job in which it is done. Every cell comes once
before any comes again, in an order that the seed decides; a run is too short for all of them, so three
seeds in a row each begin with another third.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.faults.phases import PHASES
from tests.faults.system import WORKERS

PROCESS = ("kill", "terminate", "stop", "restart")
LINE = ("cut", "stall", "refuse")
KINDS: Mapping[str, tuple[str, ...]] = {
    "api": PROCESS,
    "worker parent": PROCESS,
    "worker child": ("kill", "stop"),
    "worker host": ("kill", "stop"),
    "upkeep": PROCESS,
    "redis": (*PROCESS, "forget"),
    "redis connection": LINE,
}
"""What can be done to what, on every database. ``stop`` is SIGSTOP, later SIGCONT; ``forget`` is a server
that comes back without its data; a worker's host is its parent and child at once."""
ON_DATABASE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sqlite": {"database": ("lock",)},
    "postgresql": {"database connection": LINE, "database server": ("kill", "restart")},
}
"""SQLite has no connection to cut: another process holds its write lock instead."""
ALONE: Mapping[str, tuple[str, ...]] = {
    "database server": ("standby",),
    "disk": ("full",),
    "redis": ("refuses writes",),
    "queue": ("junk",),
    "worker row": ("removed",),
}
"""What a test of its own does and chance does not."""
THIRDS = 3
"""A run of 1,000 jobs sees more than half of the cells."""
ALL = "all"
SHORT_S = (0.3, 3.0)
LONG_S = (5.5, 9.0)
"""Longer than a lease."""
LONG_SHARE = 0.2
LATE = {"worker child", "worker host", "database", "database connection", "database server"}
LATE_SHARE = 0.6
"""Of the stops and outages after which a worker comes back with the result of a job that it may have lost."""
GAP_S = 1.2
LONGEST_GAP_S = 4.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to do to the system.

    Attributes:
        gap_s: Seconds after the fault before.
        worker: The worker that is hit, or whose job's phase decides the moment.
        whose: The process that is cut off, or ``all``; for connections only.
        lasts_s: Seconds until it is repaired, where there is something to repair.
        chance: Seeds what is drawn within the phase.
    """

    component: str
    kind: str
    phase: str
    gap_s: float
    worker: str
    whose: str
    lasts_s: float
    chance: int

    @property
    def name(self) -> str:
        return f"{self.component}: {self.kind}"

    @property
    def cell(self) -> str:
        return f"{self.name}, {self.phase}"


def cells(database: str) -> list[tuple[str, str, str]]:
    """Every component, kind and phase on this kind of database."""
    every = {**KINDS, **ON_DATABASE[database]}
    return [(name, kind, phase) for name, kinds in every.items() for kind in kinds for phase in PHASES]


def draw_plan(seed: int, database: str) -> Iterator[Fault]:
    """An endless plan; the same seed and kind of database give the same one."""
    draw = random.Random(f"{seed} {database}")
    while True:
        for component, kind, phase in _shuffled(draw, seed, database):
            yield Fault(
                component,
                kind,
                phase,
                gap_s=min(draw.expovariate(1 / GAP_S), LONGEST_GAP_S),
                worker=draw.choice(WORKERS),
                whose=draw.choice((ALL, "api", "upkeep", *WORKERS)),
                lasts_s=_draw_length(draw, LATE_SHARE if component in LATE else LONG_SHARE),
                chance=draw.randrange(2**32),
            )


def _shuffled(draw: random.Random, seed: int, database: str) -> list[tuple[str, str, str]]:
    """Every cell, those of the seed's third first."""
    every = cells(database)
    random.Random(database).shuffle(every)
    mine = every[seed % THIRDS :: THIRDS]
    others = [cell for cell in every if cell not in mine]
    draw.shuffle(mine)
    draw.shuffle(others)
    return mine + others


def _draw_length(draw: random.Random, long_share: float) -> float:
    return draw.uniform(*(LONG_S if draw.random() < long_share else SHORT_S))
