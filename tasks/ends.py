"""How an attempt ends: the move that ends it, the retry rule, and what follows at once.

Every end names the attempt, so whoever lost the job in between changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core import store, workers
from core.errors import Unavailable
from core.lifecycle import JobState
from core.log import get_logger
from pipeline.errors import OutOfMemory, PipelineError
from policy.retry import DEVICE_LOST, classify
from tasks.engine import Leads
from tasks.feeder import feed_batch
from tasks.outbox import send
from tasks.patience import DATABASE_ERRORS, patiently

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.lifecycle import Outcome
    from core.tables import Job
    from tasks.child import Child

INTERNAL = "internal_error"
#: What is told of an attempt whose end could not be written, or was written before.
UNKNOWN = "unknown"

_log = get_logger()


class Failure(NamedTuple):
    """A failure as the job's row tells of it; ``retryable``: the same request may succeed another time."""

    code: str
    message: str
    retryable: bool


_NO_DEVICE = Failure(
    DEVICE_LOST, "The worker's GPU stopped working in the middle of the job; its log tells more.", True
)


def failure_of(error: Exception) -> Failure:
    """Say what an error means for the job that met it."""
    if isinstance(error, PipelineError):
        return Failure(error.code, error.message, error.retryable)
    if isinstance(error, MemoryError):
        return Failure(OutOfMemory.code, "The worker's machine has too little memory for this.", True)
    if isinstance(error, Unavailable):
        return Failure(error.code, "The artifact store did not answer.", True)
    message = f"The worker met an error it did not expect ({type(error).__name__}). Its log tells more."
    return Failure(INTERNAL, message, True)


def fail(me: Child, job: Job, error: Exception) -> str:
    """Carry out what the retry rule says about this failure, or about the device if that is what failed."""
    # A device that waits for a rank that is gone would not answer.
    answers = is_left_alone(me) or device_is_sound(me)
    code, message, retryable = failure_of(error) if answers else _NO_DEVICE
    if is_left_alone(me):
        me.setup.board.close()  # before the job is queued again: it is for another child
    same = _earlier(me, job, code)
    verdict = classify(code, job.counted_attempts, job.max_attempts, same)
    _log.error("job.attempt_failed", code=code, verdict=verdict.kind, exc_info=error)
    if verdict.kind == "fail":
        return words(end(me, job, store.fail, code, message, retryable=retryable), code)
    ended = end(me, job, store.retry, code, message, verdict.delay_s)
    if ended and verdict.delay_s <= 0:
        send_again(me, job)
    return words(ended, code)


def device_is_sound(me: Child) -> bool:
    """Ask the device; when it does not work, close the gate at once, before anything is queued again."""
    from pipeline import memory

    if not memory.device_is_sound():
        me.sound = False
        me.setup.board.close()
    return me.sound


def is_left_alone(me: Child) -> bool:
    """Whether a process that renders together with this one is gone."""
    return isinstance(me.engine, Leads) and not me.engine.sound


@patiently
def _earlier(me: Child, job: Job, code: str) -> int:
    with me.database.reading() as session:
        return store.attempts_with_code(session, job.id, code)


def hand_back(me: Child, job: Job) -> str:
    """Queue the job again, uncounted, because the worker stops."""
    ended = end(me, job, store.hand_back)
    if ended:
        _log.info("job.handed_back")
        send_again(me, job)
    return words(ended)


def hand_apart(me: Child, job: Job, failure: Failure) -> str:
    """Queue a job again, uncounted, because the pass that it shared failed; its next one is its own."""
    ended = end(me, job, store.hand_back, failure.code, failure.message)
    if ended:
        _log.warning("job.handed_back", code=failure.code, reason="its pass failed, and it tries again alone")
    send_again(me, job)  # also where the thread of the heartbeat has just queued it
    return words(ended, failure.code)


def words(ended: Outcome | None, code: str | None = None) -> str:
    """Say how an attempt ended, for Flower."""
    if ended is None:
        return UNKNOWN
    return f"{ended}: {code}" if code else str(ended)


def end_now(
    me: Child, job: Job, move: Callable[..., Outcome | None], *values: object, **named: object
) -> Outcome | None:
    """Make the move that ends this attempt; None when somebody else has moved the job."""
    with me.database.transaction() as session:
        return move(session, job.id, job.attempt, me.setup.worker_id, *values, **named)


end = patiently(end_now)


def send_again(me: Child, job: Job) -> None:
    """Send the id at once, if the job is to be run now and was not sent; upkeep sends it if this fails."""
    try:
        with me.database.reading() as session:
            again = store.find_job(session, job.id)
        if again is None or again.state != JobState.QUEUED or again.held:
            return
        if again.published_at is None and again.run_after is None:
            send(me.database, me.settings, again)
    except DATABASE_ERRORS:
        _log.warning("job.not_sent_again")


def feed(me: Child, batch_id: str) -> None:
    """Let the batch's next job follow at once; upkeep does it a little later if this fails."""
    try:
        feed_batch(me.database, me.settings, batch_id)
    except (*DATABASE_ERRORS, Unavailable):
        _log.warning("batch.not_fed", batch=batch_id)


def count(me: Child, jobs: int = 1) -> None:
    """Note on the worker's row that so many attempts have ended."""
    try:
        with me.database.transaction() as session:
            workers.count_jobs(session, me.setup.worker_id, jobs)
    except DATABASE_ERRORS:
        _log.warning("worker.row_not_written")
