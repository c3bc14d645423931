"""One attempt at a claimed job, from its plan to its end.

Files are stored under the attempt's own key first; one transaction then makes them visible and the job
completed. Every end names the attempt, so whoever lost the job in between changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pydantic import ValidationError

from core import store
from core.lifecycle import Outcome
from core.log import get_logger
from pipeline.errors import PlanNotSupported, Stopped
from policy.plan import RenderPlan
from policy.retry import classify
from tasks import ends, inputs
from tasks.engine import DEVICE_LOST_EXIT
from tasks.keep import keep
from tasks.patience import DATABASE_ERRORS, patiently
from tasks.predecessor import RUN_TIMEOUT
from tasks.progress import Progress, Stop

if TYPE_CHECKING:
    from core.tables import Job
    from pipeline.rendering import Rendering
    from tasks.child import Child

_log = get_logger()


def run(me: Child, job: Job) -> str:
    """Render the job and bring it to its next state. Raises nothing but the stop of the process itself.

    A child whose device does not work any more stops itself: all that it took from then on would fail.

    Returns:
        How the attempt ended, and with which code.
    """
    _log.info("job.started", model=job.model)
    ended = ends.UNKNOWN
    try:
        with watch(me, job) as progress:
            ended = _work(me, job, progress)
    except DATABASE_ERRORS:
        # Nothing can be written, not even a failure; the lease ends and upkeep takes the job back.
        _log.exception("job.end_not_written")
    except SystemExit:
        # The signal may have come between the move that queued the job again and the sending of its id.
        ends.send_again(me, job)
        raise
    finally:
        ends.count(me)
    if not me.sound or ends.is_left_alone(me):
        raise SystemExit(DEVICE_LOST_EXIT)
    if job.batch_id is not None:
        ends.feed(me, job.batch_id)
    return ended


def watch(me: Child, job: Job) -> Progress:
    """Make what watches over an attempt of this job."""
    settings, setup = me.settings, me.setup
    return Progress(
        job,
        me.database,
        setup.board,
        lease_s=settings.lease_s,
        heartbeat_s=settings.heartbeat_s,
        kill_grace_s=setup.kill_grace_s,
    )


def _work(me: Child, job: Job, progress: Progress) -> str:
    try:
        return _render_and_complete(me, job, progress)
    except Stopped as stop:
        return _stop(me, job, progress, stop.step)
    except DATABASE_ERRORS:
        raise
    except SystemExit:
        # The parent ends this process; the work is lost, the job is not.
        ends.hand_back(me, job)
        raise
    except Exception as error:  # noqa: BLE001 - a job's own fault must not take the worker with it
        return ends.fail(me, job, error)


def _render_and_complete(me: Child, job: Job, progress: Progress) -> str:
    started = time.monotonic()
    plan = read_plan(me, job)
    safer = job.attempt > 1 and _wants_safer(me, job)
    if safer:
        plan = plan.model_copy(update={"cache": "off"})  # the file tells of what was done
    given = inputs.load(me, job, plan)
    rendering = me.engine.render(plan, on_step=progress.on_step, safer=safer, inputs=given)
    return complete(me, job, plan, rendering, time.monotonic() - started)


def complete(
    me: Child, job: Job, plan: RenderPlan, rendering: Rendering, took_s: float, pass_of: str | None = None
) -> str:
    """Keep what was rendered and end the job.

    Args:
        me: The child.
        job: The job.
        plan: What was rendered.
        rendering: What came of it.
        took_s: Seconds since the attempt began.
        pass_of: Id of the job that led its pass, as far as its caller may know of that one.
    """
    rendered = time.monotonic()
    acceleration = {**rendering.acceleration, "pass_of": pass_of}
    files = [keep(me, job, plan, rendering, picture) for picture in rendering.pictures]
    save_s = time.monotonic() - rendered
    timings = {
        **rendering.timings_ms,
        "queue": _waited_ms(job),
        "save": _ms(save_s),
        "total": _ms(took_s + save_s),
    }
    ended = ends.end(me, job, store.complete, files, timings, acceleration)
    if ended:
        _log.info(
            "job.completed",
            model=job.model,
            pictures=len(files),
            timings_ms=timings,
            acceleration=acceleration,
        )
    else:
        _log.warning("job.lost", at="completion")
    return ends.words(ended)


def read_plan(me: Child, job: Job) -> RenderPlan:
    """Return the job's plan.

    Raises:
        PlanNotSupported: It is not one that this worker can carry out as it stands.
    """
    spec = me.setup.spec
    try:
        plan = RenderPlan.model_validate(job.plan)
    except ValidationError as error:
        fields = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}))
        raise PlanNotSupported(
            f"The job was planned by another version of renderq than this worker's ({fields}). "
            "Bring API and workers to the same version and send the request again."
        ) from error
    if (plan.model, plan.revision) != (spec.id, spec.revision):
        raise PlanNotSupported(
            f"The job was planned for {_named(plan.model, plan.revision)}, and this worker holds "
            f"{_named(spec.id, spec.revision)}. Give API and workers the same catalogue and send the request "
            "again."
        )
    return plan


def _named(model: str, revision: str | None) -> str:
    return f"model {model} at revision {revision}" if revision else f"model {model} without a revision"


@patiently
def _wants_safer(me: Child, job: Job) -> bool:
    """Whether an earlier attempt failed in a way that the acceleration may have caused."""
    with me.database.reading() as session:
        earlier = store.get_attempts(session, job.id)
    # What handed it back was the fault of its pass, or nobody's.
    codes = [tried.error_code for tried in earlier if tried.outcome != Outcome.HANDED_BACK]
    return any(code and classify(code, 1, job.max_attempts, 0).safer for code in codes)


def _waited_ms(job: Job) -> float:
    return _ms((job.started_at - job.created_at).total_seconds()) if job.started_at else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _stop(me: Child, job: Job, progress: Progress, step: int) -> str:
    _log.info("job.stopped", step=step, reason=progress.stop and progress.stop.value)
    match progress.stop:
        case Stop.CANCELED:
            return ends.words(ends.end(me, job, store.stopped, step))
        case Stop.RUN_TIMEOUT:
            message = ran_too_long(job, step)
            ended = ends.end(me, job, store.fail, RUN_TIMEOUT, message, retryable=False)
            return ends.words(ended, RUN_TIMEOUT)
        case Stop.DRAINING:
            return ends.hand_back(me, job)
        case _:
            # Another worker holds the job: what this one has belongs to nobody.
            return ends.UNKNOWN


def ran_too_long(job: Job, step: int) -> str:
    """Say that an attempt was stopped by its limit."""
    return f"The attempt ran longer than its limit of {job.run_timeout_s:g} s and was stopped at step {step}."
