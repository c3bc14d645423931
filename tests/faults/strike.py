"""Does what a plan says to a running system, and repairs it when its time has come."""

import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from core.errors import AppError
from tasks.child import LOAD_FAILED
from tasks.hearing import DEAF
from tests.faults.owned import Owned
from tests.faults.phases import LOOK_S, wait_phase
from tests.faults.plan import ALL, Fault
from tests.faults.proxy import Proxy
from tests.faults.system import System

PHASE_S = 5.0
"""How long a fault waits for its phase; then it strikes anyway, and counts as one while queued."""
OWN_ENDS = {DEAF: "deaf", LOAD_FAILED: "not made ready"}
"""Exit codes of a worker that no message reaches, or whose children were killed while they loaded."""
END_S = 90.0
"""A process that was told to end has this long."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that was done to a worker: when, by the clock of this machine, and to which boot of it."""

    at: float
    fault: Fault
    parent: int


@dataclass(slots=True)
class Repair:
    """What makes a component whole again, and when."""

    due: float
    mend: Callable[[], bool]
    """False when it is to be called again."""


class Striker:
    """Works in the thread of its owner, which calls it between two faults, too."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.hits: list[Hit] = []
        self.counts: Counter[str] = Counter()
        self.cells: Counter[str] = Counter()
        self.own_ends: Counter[str] = Counter()
        """How often a worker ended by itself, as it should have, to be started again."""
        self.troubles: list[str] = []
        """What a process did that it should not have done."""
        self._repairs: dict[str, Repair] = {}

    def carry_out(self, plan: Iterable[Fault], is_over: Callable[[], bool]) -> None:
        """Do the faults one after the other until it is over, and leave everything whole."""
        for fault in plan:
            self._rest_until_due(fault)
            if is_over():
                break
            self.strike(fault)
        self.repair_all()

    def repair_all(self) -> None:
        """Repair everything now and look that every process runs."""
        for repair in self._repairs.values():
            repair.due = 0.0
        self._rest(lambda: not self._repairs)
        self.look_after()

    def strike(self, fault: Fault) -> None:
        """Wait for the phase and do it."""
        chance = random.Random(fault.chance)
        came = wait_phase(
            fault.phase, lambda: self.system.see(fault.worker), chance, PHASE_S, lambda: self._pause(LOOK_S)
        )
        self.counts[fault.name] += 1
        self.cells[fault.cell if came else f"{fault.name}, queued"] += 1
        self._write_down(fault, came=came)
        self._do(fault)

    def look_after(self) -> None:
        """Make the repairs that are due, and start what has ended by itself."""
        for name, repair in list(self._repairs.items()):
            if time.monotonic() >= repair.due and repair.mend():
                del self._repairs[name]
        for name, owned in self.system.owned.items():
            if not owned.runs and name not in self._repairs:
                self._note_end(owned)
                owned.start()

    def _note_end(self, owned: Owned) -> None:
        if owned.code in OWN_ENDS:
            self.own_ends[OWN_ENDS[owned.code]] += 1
        else:
            self.troubles.append(f"{owned.name} ended by itself with {owned.code}: {owned.said(500)}")

    def _rest(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._pause(0.02)

    def _rest_until_due(self, fault: Fault) -> None:
        """Wait for its time, and for what it touches to be whole."""
        due, names = time.monotonic() + fault.gap_s, self._touched(fault)
        self._rest(lambda: time.monotonic() > due and not names & self._repairs.keys())

    def _pause(self, seconds: float) -> None:
        self.look_after()
        time.sleep(seconds)

    def _write_down(self, fault: Fault, *, came: bool) -> None:
        """Keep a list beside the logs of the processes, for whoever has to find out what happened."""
        phase = fault.phase if came else "queued"
        line = f"{datetime.now(UTC):%H:%M:%S.%f} {fault.name}, {phase}: {fault.worker}, {fault.whose}"
        with (self.system.folder / "logs" / "faults.log").open("a") as log:
            log.write(f"{line}, for {fault.lasts_s:.1f} s\n")

    def _touched(self, fault: Fault) -> set[str]:
        """The names under which repairs of the same things stand."""
        if fault.component.endswith("connection"):
            return set(self._lines(fault))
        return {_owner(fault)}

    def _do(self, fault: Fault) -> None:
        match fault.component:
            case "redis connection" | "database connection":
                self._break_lines(fault)
            case "database":
                self._plan_repair("database", fault.lasts_s, hold_lock(self.system, fault.lasts_s))
            case "worker child":
                self._hit_child(fault)
            case _:
                self._hit_process(fault)

    # --- connections ------------------------------------------------------------------------------------

    def _lines(self, fault: Fault) -> dict[str, Proxy]:
        redis = fault.component == "redis connection"
        proxies = self.system.redis_proxies if redis else self.system.database_proxies
        chosen = proxies if fault.whose == ALL else {fault.whose: proxies[fault.whose]}
        return {f"{fault.component} of {name}": proxy for name, proxy in chosen.items()}

    def _break_lines(self, fault: Fault) -> None:
        for name, proxy in self._lines(fault).items():
            getattr(proxy, fault.kind)()
            if fault.kind != "cut":
                self._plan_repair(name, fault.lasts_s, _always(proxy.mend))

    # --- processes --------------------------------------------------------------------------------------

    def _hit_child(self, fault: Fault) -> None:
        moment = self.system.see(fault.worker)
        pid = moment.child if moment else self._child_of_row(fault.worker)
        if pid is None:
            return
        self._note_hit(fault)
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
        _send(pid, number)
        if fault.kind == "stop":
            self._plan_repair(_owner(fault), fault.lasts_s, _always(lambda: _send(pid, signal.SIGCONT)))

    def _child_of_row(self, worker: str) -> int | None:
        with suppress(SQLAlchemyError, AppError):
            return self.system.child_pid(worker)
        return None

    def _hit_process(self, fault: Fault) -> None:
        owned = self.system.owned[_owner(fault)]
        if fault.component.startswith("worker"):
            self._note_hit(fault)
        tell = owned.send_all if fault.component == "worker host" else owned.send
        if fault.kind == "stop":
            tell(signal.SIGSTOP)
            self._plan_repair(owned.name, fault.lasts_s, _always(lambda: tell(signal.SIGCONT)))
            return
        tell(signal.SIGKILL if fault.kind in ("kill", "forget") else signal.SIGTERM)
        delay_s = 0.0 if fault.kind == "restart" else fault.lasts_s
        self._plan_repair(owned.name, delay_s, self._starter(owned, forget=fault.kind == "forget"))

    def _starter(self, owned: Owned, *, forget: bool) -> Callable[[], bool]:
        began = time.monotonic()

        def start() -> bool:
            if owned.runs:
                if time.monotonic() < began + END_S:
                    return False
                self.troubles.append(f"{owned.name} did not end within {END_S:g} s")
                owned.end()
            if forget:
                self.system.forget()
            owned.start()
            return True

        return start

    def _note_hit(self, fault: Fault) -> None:
        self.hits.append(Hit(time.time(), fault, self.system.owned[fault.worker].pid))

    def _plan_repair(self, name: str, delay_s: float, mend: Callable[[], bool]) -> None:
        self._repairs[name] = Repair(time.monotonic() + delay_s, mend)


def hold_lock(system: System, seconds: float) -> Callable[[], bool]:
    """Keep everybody from writing to the SQLite file, as a backup does; says whether that is over."""
    path = str(system.database.url.database)
    done = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(path, timeout=20, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        finally:
            connection.close()
            done.set()

    threading.Thread(target=hold, name="lock", daemon=True).start()
    return done.is_set


def _owner(fault: Fault) -> str:
    """The process that a fault is done to, or ``database``."""
    return fault.worker if fault.component.startswith("worker") else fault.component


def _always(act: Callable[[], object]) -> Callable[[], bool]:
    def mend() -> bool:
        act()
        return True

    return mend


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
