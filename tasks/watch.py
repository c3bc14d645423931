"""The parent's watch: a thread that keeps the row alive, drains, and ends what hangs: child, loop or worker.

Celery's event loop forks children while this thread may be talking to the database or writing a log line, and
a child would inherit locks that nobody ever frees. So each look holds ``FORK``, which the fork itself takes
first, and no connection is open when the look ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from core import workers
from core.db import Database
from core.log import get_logger
from core.workers import WorkerState
from tasks.board import lives, tell
from tasks.hearing import DEAF, Hearing
from tasks.idle import CALL_BACK
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.child import Setup

LOOK_S = 0.2
#: A child whose job was to end now has this long to hand it back before it is killed.
QUIT_GRACE_S = 10.0
#: Celery's loop has this long to end once it is told to and no job runs; it may hang in a call to Redis.
LEAVE_S = 8.0
#: A child is gone this long after it was killed.
DEATH_S = 5.0
#: A heartbeat thread that is silent for so many leases has lost its job long ago, and is stuck.
FROZEN_LEASES = 2
#: The same for a job that is over its time: its end is to be told before the lease runs out.
OVERDUE_LEASES = 0.5

FORK = threading.Lock()

_log = get_logger()


def hold_forks() -> None:
    """Make every later fork of this process wait for ``FORK``."""
    os.register_at_fork(before=FORK.acquire, after_in_parent=FORK.release, after_in_child=FORK.release)


class Watch(threading.Thread):
    """Looks at the board until finished.

    Args:
        setup: What the worker is.
        stop: Has the worker end with an exit code; called again and again from then on.
        failed_code: The code when the child could not be made ready.
        leave: What remains to be done for a worker whose main thread does not come to its end; the watch then
            does this and ends the process. None: it is waited for.
        register: Makes the worker's row; called when it is gone, as after a backup was put back.
    """

    def __init__(
        self,
        setup: Setup,
        stop: Callable[[int], None],
        failed_code: int,
        leave: Callable[[], None] | None = None,
        register: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._setup = setup
        self._board = setup.board
        self._database = Database(setup.settings.database_url, keeps=False)
        self._stop_worker = stop
        self._failed_code = failed_code
        self._leave = leave
        self._register = register
        self._hearing = Hearing(setup)
        self._end = threading.Event()
        self._told: WorkerState | None = None
        self._beat_at = 0.0
        self._quit_at = 0.0
        self._end_by = 0.0

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            with FORK:
                try:
                    self._look()
                except Exception:  # noqa: BLE001 - the next one may succeed; without any the worker counts as gone
                    _log.exception("worker.look_failed")

    def finish(self) -> None:
        """Stop looking; returns when the thread has ended."""
        self._end.set()
        self.join()

    def _look(self) -> None:
        if self._board.cells.failed:
            self._end_worker(self._failed_code)
            return
        if self._board.draining:
            self._drain()
        self._kill_hung()
        self._call_back()
        self._hearing.look()
        self._beat()
        if self._board.cells.deaf:
            self._end_worker(DEAF)
        elif self._hearing.deaf:
            self._give_up()

    def _drain(self) -> None:
        """Stop the worker once its child holds no job, and see to it that this comes in time."""
        if not self._board.warm:
            self._kill("it is not ready and the worker stops")
            self._end_worker(0)
        elif not self._board.busy:
            self._end_worker(0)
        elif time.monotonic() > self._board.cells.drain_until:
            self._end_job()

    def _end_job(self) -> None:
        """Interrupt the job, which then hands itself back; kill a child that does not get to it."""
        now = time.monotonic()
        if not self._quit_at:
            self._quit_at = now
            _log.info("worker.job_interrupted", child_pid=self._board.cells.child_pid)
            tell(self._board.cells.child_pid, signal.SIGQUIT)
        elif now > self._quit_at + QUIT_GRACE_S:
            self._kill("its job does not end and the worker stops")
            self._end_worker(0)

    def _end_worker(self, code: int) -> None:
        """Have Celery's loop end the worker, or end it here if the loop does not."""
        self._stop_worker(code)
        now = time.monotonic()
        if self._board.busy or not self._end_by:
            self._end_by = now + LEAVE_S
        elif now > self._end_by and self._leave is not None:
            self._end_now(code, self._leave)

    def _end_now(self, code: int, leave: Callable[[], None]) -> NoReturn:
        _log.warning("worker.loop_hangs", code=code)
        self._kill("the worker stops and its loop hangs")
        deadline = time.monotonic() + DEATH_S
        while lives(self._board.cells.child_pid) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        leave()
        os._exit(code)

    def _give_up(self) -> None:
        """Begin the end of a worker that no message reaches; whoever started it starts another."""
        _log.error("worker.deaf", trouble=self._hearing.trouble)
        self._board.cells.deaf = 1
        self._kill("no message reaches it")

    def _kill_hung(self) -> None:
        cells, now = self._board.cells, time.monotonic()
        # Each is read once: the child may set it to 0 at any moment.
        kill_at, beat_at, due_at = cells.kill_at, cells.beat_at, cells.due_at
        # Its heartbeat may also wait for a database that hangs; then the job itself does not.
        overdue = bool(due_at) and now > due_at and not cells.asking
        frozen_s = self._setup.settings.lease_s * (OVERDUE_LEASES if overdue else FROZEN_LEASES)
        if kill_at and now > kill_at:
            self._kill("its job did not stop when it had to")
        elif self._board.busy and beat_at and now > beat_at + frozen_s:
            self._kill("its heartbeat stands still")

    def _call_back(self) -> None:
        """Have the child leave what it warms: a signal may have come at a moment when it was not heeded."""
        cells, now = self._board.cells, time.monotonic()
        if not cells.warming:
            return
        if self._board.ends:
            self._board.call_back()
        if self._board.called_back:
            tell(cells.child_pid, CALL_BACK)
        called_back_at = cells.called_back_at
        if called_back_at and now > called_back_at + self._setup.kill_grace_s:
            self._kill("it does not leave the shape that it warms")

    def _kill(self, reason: str) -> None:
        pid = self._board.cells.child_pid
        self._board.end_job()
        if pid and lives(pid):
            _log.warning("worker.child_killed", child_pid=pid, reason=reason)
            tell(pid, signal.SIGKILL)

    def _beat(self) -> None:
        state, now = self._state(), time.monotonic()
        if state == self._told and now < self._beat_at + self._setup.settings.heartbeat_s:
            return
        try:
            self._write(state)
        except DATABASE_ERRORS as error:
            _log.warning("worker.heartbeat_failed", error=type(error).__name__)
        else:
            self._told = state
        finally:
            self._beat_at = now

    def _state(self) -> WorkerState | None:
        """What the parent knows better than the row; None while a child tells of its own preparation."""
        if self._board.draining:
            return WorkerState.DRAINING
        if self._board.warm:
            return WorkerState.READY if self._hearing.connected else WorkerState.DISCONNECTED
        pid = self._board.cells.child_pid
        return WorkerState.LOADING if pid and not lives(pid) else None

    def _write(self, state: WorkerState | None) -> None:
        if not self._update(state) and self._register is not None:
            _log.warning("worker.row_missing")
            self._register()
            self._update(state)

    def _update(self, state: WorkerState | None) -> bool:
        """Write the state, if there is one to tell, and count it as a heartbeat; False without a row."""
        with self._database.transaction() as session:
            if state is None:
                return workers.update_worker(session, self._setup.worker_id)
            return workers.update_worker(session, self._setup.worker_id, state=state)
