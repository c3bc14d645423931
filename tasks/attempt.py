"""One attempt at a claimed job, from its plan to its end.

Files are stored under the attempt's own key first; one transaction then makes them visible and the job
completed. Every end names the attempt, so whoever lost the job in between changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from core import store, workers
from core.artifacts import NewArtifact, artifact_key
from core.errors import Unavailable
from core.lifecycle import JobState
from core.log import get_logger
from pipeline.errors import OutOfMemory, PipelineError, PlanNotSupported, Stopped
from policy.plan import RenderPlan
from policy.retry import DEVICE_LOST, classify
from tasks import inputs, provenance
from tasks.child import local_source
from tasks.engine import DEVICE_LOST_EXIT, Leads
from tasks.feeder import feed_batch
from tasks.outbox import send
from tasks.patience import DATABASE_ERRORS, patiently
from tasks.predecessor import RUN_TIMEOUT
from tasks.progress import Progress, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.lifecycle import Outcome
    from core.tables import Job
    from pipeline.rendering import Picture, Rendering
    from tasks.child import Child

INTERNAL = "internal_error"
#: What is told of an attempt whose end could not be written, or was written before.
UNKNOWN = "unknown"

_log = get_logger()


def run(me: Child, job: Job) -> str:
    """Render the job and bring it to its next state. Raises nothing but the stop of the process itself.

    A child whose device does not work any more stops itself: all that it took from then on would fail.

    Returns:
        How the attempt ended, and with which code.
    """
    _log.info("job.started", model=job.model)
    ended = UNKNOWN
    try:
        with _watch(me, job) as progress:
            ended = _work(me, job, progress)
    except DATABASE_ERRORS:
        # Nothing can be written, not even a failure; the lease ends and upkeep takes the job back.
        _log.exception("job.end_not_written")
    except SystemExit:
        # The signal may have come between the move that queued the job again and the sending of its id.
        with suppress(*DATABASE_ERRORS):
            _send_again(me, job)
        raise
    finally:
        _count(me)
    if not me.sound or _is_left_alone(me):
        raise SystemExit(DEVICE_LOST_EXIT)
    if job.batch_id is not None:
        _feed(me, job.batch_id)
    return ended


def _watch(me: Child, job: Job) -> Progress:
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
    except PipelineError as error:
        return _fail(me, job, error.code, error.message, error, retryable=error.retryable)
    except MemoryError as error:
        return _fail(
            me,
            job,
            OutOfMemory.code,
            "The worker's machine has too little memory for this.",
            error,
            retryable=True,
        )
    except DATABASE_ERRORS:
        raise
    except Unavailable as error:
        return _fail(me, job, error.code, "The artifact store did not answer.", error, retryable=True)
    except SystemExit:
        # The parent ends this process; the work is lost, the job is not.
        _hand_back(me, job)
        raise
    except Exception as error:  # noqa: BLE001 - a job's own fault must not take the worker with it
        message = f"The worker met an error it did not expect ({type(error).__name__}). Its log tells more."
        return _fail(me, job, INTERNAL, message, error, retryable=True)


def _render_and_complete(me: Child, job: Job, progress: Progress) -> str:
    started = time.monotonic()
    plan = _plan(me, job)
    safer = job.attempt > 1 and _wants_safer(me, job)
    if safer:
        plan = plan.model_copy(update={"cache": "off"})  # the file tells of what was done
    given = inputs.load(me, job, plan)
    rendering = me.engine.render(plan, on_step=progress.on_step, safer=safer, inputs=given)
    rendered = time.monotonic()
    files = [_keep(me, job, plan, rendering, picture) for picture in rendering.pictures]
    kept = time.monotonic()
    timings = {
        **rendering.timings_ms,
        "queue": _waited_ms(job),
        "save": _ms(kept - rendered),
        "total": _ms(kept - started),
    }
    ended = _end(me, job, store.complete, files, timings, rendering.acceleration)
    if ended:
        _log.info(
            "job.completed",
            model=job.model,
            pictures=len(files),
            timings_ms=timings,
            acceleration=rendering.acceleration,
        )
    else:
        _log.warning("job.lost", at="completion")
    return _words(ended)


def _plan(me: Child, job: Job) -> RenderPlan:
    """The job's plan.

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
        codes = [earlier.error_code for earlier in store.get_attempts(session, job.id) if earlier.error_code]
    return any(classify(code, 1, job.max_attempts, 0).safer for code in codes)


def _waited_ms(job: Job) -> float:
    return _ms((job.started_at - job.created_at).total_seconds()) if job.started_at else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _keep(me: Child, job: Job, plan: RenderPlan, rendering: Rendering, picture: Picture) -> NewArtifact:
    """Store one picture's file under this attempt's key; nobody sees it before the attempt completes."""
    from pipeline import encode

    told = provenance.describe(
        spec=me.setup.spec,
        policy=me.setup.policy,
        plan=plan,
        request=job.request,
        picture=picture,
        ran=rendering.acceleration,
        from_folder=local_source(me.setup) is not None,
    )
    content = encode.encode(picture, plan.output_format, told, plan.fps)
    extension = encode.extension(plan.output_format).removeprefix(".")
    key = artifact_key(job.id, job.attempt, picture.index, extension)
    patiently(me.artifacts.put)(key, content)
    frames = None if picture.frames is None else len(picture.frames)
    small = {} if frames is None else _keep_thumbnail(me, job, picture, told)
    return NewArtifact(
        index=picture.index,
        key=key,
        media_type=encode.media_type(plan.output_format),
        width=plan.width,
        height=plan.height,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        seed=picture.seed,
        frames=frames,
        fps=plan.fps if frames else None,
        duration_s=frames / plan.fps if frames and plan.fps else None,
        **small,
    )


def _keep_thumbnail(me: Child, job: Job, video: Picture, told: dict[str, object]) -> dict[str, Any]:
    from pipeline import encode, thumbnail

    content = encode.encode(thumbnail.thumbnail(video), thumbnail.FORMAT, told)
    key = artifact_key(job.id, job.attempt, f"{video.index}-thumbnail", thumbnail.FORMAT)
    patiently(me.artifacts.put)(key, content)
    return {
        "thumbnail_key": key,
        "thumbnail_bytes": len(content),
        "thumbnail_sha256": hashlib.sha256(content).hexdigest(),
    }


def _stop(me: Child, job: Job, progress: Progress, step: int) -> str:
    _log.info("job.stopped", step=step, reason=progress.stop and progress.stop.value)
    match progress.stop:
        case Stop.CANCELED:
            return _words(_end(me, job, store.stopped, step))
        case Stop.RUN_TIMEOUT:
            limit = f"{job.run_timeout_s:g} s"
            message = f"The attempt ran longer than its limit of {limit} and was stopped at step {step}."
            return _words(_end(me, job, store.fail, RUN_TIMEOUT, message, retryable=False), RUN_TIMEOUT)
        case Stop.DRAINING:
            return _hand_back(me, job)
        case _:
            # Another worker holds the job: what this one has belongs to nobody.
            return UNKNOWN


def _fail(me: Child, job: Job, code: str, message: str, error: Exception, *, retryable: bool) -> str:
    """Carry out what the retry rule says about this failure, or about the device if that is what failed."""
    if not _device_is_sound(me):
        code, retryable = DEVICE_LOST, True
        message = "The worker's GPU stopped working in the middle of the job; its log tells more."
    elif _is_left_alone(me):
        me.setup.board.close()  # before the job is queued again: it is for another child
    same = _earlier(me, job, code)
    verdict = classify(code, job.counted_attempts, job.max_attempts, same)
    _log.error("job.attempt_failed", code=code, verdict=verdict.kind, exc_info=error)
    if verdict.kind == "fail":
        return _words(_end(me, job, store.fail, code, message, retryable=retryable), code)
    ended = _end(me, job, store.retry, code, message, verdict.delay_s)
    if ended and verdict.delay_s <= 0:
        _send_again(me, job)
    return _words(ended, code)


def _device_is_sound(me: Child) -> bool:
    """Ask the device; when it does not work, close the gate at once, before anything is queued again."""
    from pipeline.memory import device_is_sound

    if not device_is_sound():
        me.sound = False
        me.setup.board.close()
    return me.sound


def _is_left_alone(me: Child) -> bool:
    """Whether a process that renders together with this one is gone."""
    return isinstance(me.engine, Leads) and not me.engine.sound


@patiently
def _earlier(me: Child, job: Job, code: str) -> int:
    with me.database.reading() as session:
        return store.attempts_with_code(session, job.id, code)


def _hand_back(me: Child, job: Job) -> str:
    ended = _end(me, job, store.hand_back)
    if ended:
        _log.info("job.handed_back")
        _send_again(me, job)
    return _words(ended)


def _words(ended: Outcome | None, code: str | None = None) -> str:
    if ended is None:
        return UNKNOWN
    return f"{ended}: {code}" if code else str(ended)


@patiently
def _end(
    me: Child, job: Job, move: Callable[..., Outcome | None], *values: object, **named: object
) -> Outcome | None:
    """Make the move that ends this attempt; None when somebody else has moved the job."""
    with me.database.transaction() as session:
        return move(session, job.id, job.attempt, me.setup.worker_id, *values, **named)


def _send_again(me: Child, job: Job) -> None:
    """Send the id at once, if the job is to be run now and was not sent; upkeep sends it if this fails."""
    with me.database.reading() as session:
        again = store.find_job(session, job.id)
    if again is None or again.state != JobState.QUEUED or again.held:
        return
    if again.published_at is None and again.run_after is None:
        send(me.database, me.settings, again)


def _feed(me: Child, batch_id: str) -> None:
    """Let the batch's next job follow at once; upkeep does it a little later if this fails."""
    try:
        feed_batch(me.database, me.settings, batch_id)
    except (*DATABASE_ERRORS, Unavailable):
        _log.warning("batch.not_fed", batch=batch_id)


def _count(me: Child) -> None:
    try:
        with me.database.transaction() as session:
            workers.count_job(session, me.setup.worker_id)
    except DATABASE_ERRORS:
        _log.warning("worker.row_not_written")
