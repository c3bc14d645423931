"""One run: a system, callers who order all the while, faults by a plan, and the check of every promise."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from core.errors import AppError
from core.lifecycle import ENDED_BATCH, TERMINAL
from core.tables import Attempt, Batch, Job
from tests.faults.callers import Callers, Told
from tests.faults.check import Findings, check_files, check_inside, check_outside
from tests.faults.orders import draw_orders
from tests.faults.plan import Fault, draw_plan
from tests.faults.rescue import rescue_times, summarise
from tests.faults.strike import Striker
from tests.faults.system import Layout, System, left_behind, run_system
from tests.faults.watch import RowWatch

DRAIN_S = 180.0
"""Seconds for the last jobs when all faults are over."""
TIDY_S = 30.0
LOOK_S = 0.1
ORDER_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What to run: ``database`` as in `Layout`; orders and faults are drawn from the seed."""

    folder: Path
    jobs: int
    seconds: float
    seed: int
    database: str = "sqlite"
    lease_s: float = 5.0
    most_faults: int | None = None
    microbatch: int = 1


@dataclass(slots=True)
class Result:
    """What came of it. ``findings`` is empty when every promise held."""

    wish: Wish
    told: Told
    findings: Findings
    states: Counter[str]
    faults: Counter[str]
    cells: Counter[str]
    rescue_s: list[float]
    lost_attempts: int
    duration_s: float
    own_ends: Counter[str]
    restarts: dict[str, int] = field(default_factory=dict)
    shared_attempts: int = 0

    def report(self) -> dict[str, Any]:
        """Counts as plain JSON values."""
        return {
            "jobs": self.wish.jobs,
            "accepted": self.told.accepted,
            "completed": self.states["completed"],
            "failed": self.states["failed"],
            "canceled": self.states["canceled"],
            "expired": self.states["expired"],
            "lost": count_orders(self.findings.lost),
            "doubled": count_orders(self.findings.doubled),
            "terminal_changed": count_orders(self.findings.changed),
            "other": len(self.findings.other),
            "rescue_s": summarise(self.rescue_s),
            "rescued": len(self.rescue_s),
            "lost_attempts": self.lost_attempts,
            "shared_attempts": self.shared_attempts,
            "slowest_answer_s": round(self.told.slowest_s, 2),
            "faults": dict(sorted(self.faults.items())),
            "ended_by_itself": dict(self.own_ends),
            "cells": len(self.cells),
            "duration_s": round(self.duration_s, 1),
            "seed": self.wish.seed,
            "database": self.wish.database.partition(":")[0],
            "persistent_redis": is_persistent(self.wish.seed),
        }


def count_orders(findings: Iterable[str]) -> int:
    """How many jobs or batches the findings tell of; one without an id counts as one of its own."""
    return len({found[0] if (found := ORDER_ID.search(words)) else words for words in findings})


def is_persistent(seed: int) -> bool:
    """Every other seed runs with a Valkey that keeps nothing."""
    return seed % 2 == 1


def run(wish: Wish, say: Say = lambda _: None) -> Result:
    """Run it to its end; the folder is the caller's to remove."""
    began = time.monotonic()
    layout = Layout(
        wish.folder,
        wish.database,
        persistent=is_persistent(wish.seed),
        lease_s=wish.lease_s,
        microbatch=wish.microbatch,
    )
    with run_system(layout) as system:
        say(f"the system runs at {system.url}, its logs lie in {layout.folder / 'logs'}")
        result = run_on(system, wish, say)
        result.duration_s = time.monotonic() - began
        result.findings.other += [f"{name} ended with {code}" for name, code in system.stop().items() if code]
        left = left_behind(wish.folder).values()
        result.findings.other += [f"left behind: {command}" for command in left]
    return result


def run_on(system: System, wish: Wish, say: Say = lambda _: None) -> Result:
    """Run it on a system that is there and whole, and leave it so."""
    findings = Findings()
    striker = Striker(system)
    with RowWatch(system.database) as watch:
        told = _storm(wish, system, striker, say)
        say("the faults are over")
        _drain(system, striker, findings)
        states = check_inside(system.database, system.artifacts, findings)
        check_outside(system.url, told, states, findings)
    findings.changed += watch.changed
    findings.other += striker.troubles
    return _result(wish, system, striker, told, findings, states)


def _storm(wish: Wish, system: System, striker: Striker, say: Say) -> Told:
    """Order and strike until every order was answered."""
    callers = Callers(system.url, draw_orders(wish.seed, wish.jobs), wish.seconds)
    kind = system.database.url.get_backend_name()
    plan = itertools.islice(_possible(system, draw_plan(wish.seed, kind)), wish.most_faults)
    callers.start()
    with _told_often(say, striker, callers) as is_over:
        striker.carry_out(plan, is_over)
        while not callers.done:
            striker.look_after()
            time.sleep(LOOK_S)
    return callers.finish()


def _possible(system: System, plan: Iterable[Fault]) -> Iterator[Fault]:
    return (fault for fault in plan if system.can_suffer(fault.component))


@contextmanager
def _told_often(say: Say, striker: Striker, callers: Callers) -> Iterator[Callable[[], bool]]:
    """What asks whether the callers are done, and says every ten seconds how it goes."""
    began = last = time.monotonic()

    def is_over() -> bool:
        nonlocal last
        if time.monotonic() > last + 10:
            last = time.monotonic()
            say(f"{last - began:4.0f} s: {callers.told.accepted} accepted, {striker.counts.total()} faults")
        return callers.done

    yield is_over


def _drain(system: System, striker: Striker, findings: Findings) -> None:
    """Wait until nothing is live, with every process whole; what does not come is a finding."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline and not _is_quiet(system):
        striker.look_after()
        time.sleep(LOOK_S)
    if not _is_quiet(system):
        findings.other.append(f"not quiet after {DRAIN_S:g} s: {system.messages()} messages in the queue")
    system.wait_ready()
    _tidy(system, findings)


def _is_quiet(system: System) -> bool:
    with suppress(SQLAlchemyError, AppError), system.database.reading() as session:
        live = select(func.count()).where(Job.state.not_in(TERMINAL))
        open_batches = select(func.count()).where(Batch.state.not_in(ENDED_BATCH))
        if session.scalars(live).one() or session.scalars(open_batches).one():
            return False
        return system.messages() == 0
    return False


def _tidy(system: System, findings: Findings) -> None:
    """Start upkeep anew, which tidies up first, and look that no file of a lost attempt is left."""
    upkeep = system.owned["upkeep"]
    upkeep.end()
    upkeep.start()
    deadline = time.monotonic() + TIDY_S
    while (left := check_files(system.database, system.artifacts)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    findings.other += [f"{key} belongs to no completed attempt" for key in left]


def _result(
    wish: Wish, system: System, striker: Striker, told: Told, findings: Findings, states: dict[str, str]
) -> Result:
    with system.database.reading() as session:
        lost = session.scalars(select(func.count()).where(Attempt.outcome == "lost")).one()
        shared = session.scalars(select(func.count()).where(Attempt.pass_of.is_not(None))).one()
    return Result(
        replace(wish),
        told,
        findings,
        Counter(states.values()),
        striker.counts,
        striker.cells,
        rescue_times(system.database, striker.hits),
        lost,
        0.0,
        striker.own_ends,
        {name: owned.starts - 1 for name, owned in system.owned.items()},
        shared_attempts=shared,
    )
