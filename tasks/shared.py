"""Several claimed jobs in one pass, each brought to its own end.

A job that is cancelled, or runs beyond its limit, leaves at the next step: its picture is dropped, and the
others go on; without any left the pass stops. What fails costs no job an attempt: whoever is not done is
queued again, uncounted, and has its next pass for itself (`policy.microbatch`), so a broken job ends alone
and in its own words. A device that is lost, or a worker that is killed, costs each of them an attempt.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from structlog.contextvars import bound_contextvars

from core import store
from core.log import get_logger
from pipeline.errors import PipelineError, Stopped
from tasks import attempt, ends
from tasks.ends import Failure
from tasks.engine import DEVICE_LOST_EXIT, SharesPasses
from tasks.patience import DATABASE_ERRORS
from tasks.predecessor import RUN_TIMEOUT
from tasks.progress import Heartbeat, Progress, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.tables import Job
    from pipeline.rendering import Rendering
    from policy.plan import RenderPlan
    from tasks.child import Child
    from tasks.mates import Member

_log = get_logger()


def run(me: Child, members: Sequence[Member]) -> str:
    """Render the jobs in one pass and bring each to its next state; as `attempt.run` does it for one.

    Returns:
        How the leader's attempt ended, and how many others there were.
    """
    jobs = [member.job for member in members]
    _log.info("pass.started", model=jobs[0].model, jobs=[job.id for job in jobs])
    shared = SharedPass(me, members)
    try:
        shared.render()
    except DATABASE_ERRORS:
        # Nothing can be written, not even a failure; the leases end and upkeep takes the jobs back.
        _log.exception("pass.ends_not_written")
    except SystemExit:
        for job in jobs:
            ends.send_again(me, job)
        raise
    finally:
        ends.count(me, len(jobs))
    if not me.sound:
        raise SystemExit(DEVICE_LOST_EXIT)
    for batch_id in dict.fromkeys(job.batch_id for job in jobs if job.batch_id is not None):
        ends.feed(me, batch_id)
    others = "1 other" if len(jobs) == 2 else f"{len(jobs) - 1} others"
    return f"{shared.ended.get(jobs[0].id, ends.UNKNOWN)}, with {others} in its pass"


class SharedPass:
    """One pass.

    Attributes:
        ended: How each attempt ended, by the job's id; without those of which it is not known.
    """

    def __init__(self, me: Child, members: Sequence[Member]) -> None:
        self.ended: dict[str, str] = {}
        self._me = me
        self._members = members
        self._watched = {member.job.id: attempt.watch(me, member.job) for member in members}
        self._leader = members[0].job

    def render(self) -> None:
        """Render, and end every job.

        Raises:
            SystemExit: The process has to stop; every job that was not done is queued again.
        """
        try:
            with Heartbeat(list(self._watched.values()), end=self._end_early):
                self._render_and_complete()
        except SystemExit:
            self._for_each_left(lambda job: ends.hand_back(self._me, job))
            raise

    def _render_and_complete(self) -> None:
        engine, started = self._me.engine, time.monotonic()
        assert isinstance(engine, SharesPasses)  # noqa: S101 - it has named the sizes
        try:
            results = engine.render_together([member.plan for member in self._members], self._on_step)
        except Stopped:
            self._for_each_left(self._stop)
            return
        except DATABASE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - nobody knows whose fault it is
            self._for_each_left(partial(self._fail, error=error))
            return
        took_s = time.monotonic() - started
        for member, result in zip(self._members, results, strict=True):
            self._for_one(member.job, partial(self._complete, plan=member.plan, result=result, took_s=took_s))

    def _on_step(self, step: int, steps: int) -> bool:
        """Note a step for each job; False when none is left to go on for."""
        going_on = [
            progress.on_step(step, steps) for progress in self._watched.values() if progress.stop is None
        ]
        return any(going_on)

    def _complete(
        self, job: Job, *, plan: RenderPlan, result: Rendering | PipelineError, took_s: float
    ) -> str:
        if self._watched[job.id].stop is not None:
            return self._stop(job)
        if isinstance(result, PipelineError):
            return self._fail(job, result)
        known = self._leader.id if job.caller == self._leader.caller else None
        try:
            return attempt.complete(self._me, job, plan, result, took_s, pass_of=known)
        except DATABASE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - what cannot be kept of one leaves the others
            return ends.fail(self._me, job, error)

    def _fail(self, job: Job, error: Exception) -> str:
        if not ends.device_is_sound(self._me):
            return ends.fail(self._me, job, error)
        return ends.hand_apart(self._me, job, ends.failure_of(error))

    def _stop(self, job: Job) -> str:
        """End a job that has left the pass, if that was not done yet."""
        progress = self._watched[job.id]
        match progress.stop:
            case Stop.CANCELED:
                return ends.words(ends.end(self._me, job, store.stopped, progress.step))
            case Stop.RUN_TIMEOUT:
                return ends.hand_apart(self._me, job, _too_long(job, progress))
            case Stop.DRAINING:
                return ends.hand_back(self._me, job)
            case _:
                return ends.UNKNOWN

    def _end_early(self, progress: Progress) -> None:
        """The same while the others go on, in the thread of the heartbeat, which tries again if need be."""
        job, me = progress.job, self._me
        moves: dict[Stop, Callable[[], object]] = {
            Stop.CANCELED: lambda: ends.end_now(me, job, store.stopped, progress.step),
            Stop.RUN_TIMEOUT: lambda: ends.end_now(me, job, store.hand_back, *_too_long(job, progress)[:2]),
        }
        if (move := moves.get(progress.stop or Stop.LOST)) is not None:
            self.ended[job.id] = str(move() or ends.UNKNOWN)
            with bound_contextvars(job_id=job.id, attempt=job.attempt):
                _log.info("job.left_pass", step=progress.step, reason=progress.stop and progress.stop.value)

    def _for_each_left(self, do: Callable[[Job], str]) -> None:
        for member in self._members:
            self._for_one(member.job, do)

    def _for_one(self, job: Job, do: Callable[[Job], str]) -> None:
        if job.id in self.ended:
            ends.send_again(self._me, job)  # a job that was queued again while the others went on
            return
        with bound_contextvars(job_id=job.id, attempt=job.attempt, pass_of=self._leader.id):
            try:
                self.ended[job.id] = do(job)
            except SQLAlchemyError:
                # The row of this one refuses; its lease ends, and the others are not to wait for that.
                _log.exception("job.end_not_written")


def _too_long(job: Job, progress: Progress) -> Failure:
    return Failure(RUN_TIMEOUT, attempt.ran_too_long(job, progress.step), retryable=False)
