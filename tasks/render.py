"""The render task: a job id comes, the job is claimed, rendered, kept and finished.

The message is a hint, the claim decides: an id that is unknown, taken or finished ends here at once, so a
message that comes twice does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from structlog.contextvars import bound_contextvars

from core import passes, store, workers
from core.ids import is_id
from core.log import get_logger
from tasks import attempt, child, mates, shapes, shared
from tasks.outbox import send
from tasks.patience import DATABASE_ERRORS, patiently

if TYPE_CHECKING:
    from core.tables import Job

#: Exit code of a child that has no memory left for its own work; its parent forks another.
OUT_OF_MEMORY_EXIT = 72

_log = get_logger()


def render(job_id: object) -> str:
    """Run one attempt of the job in this child, if it is there to be taken.

    Args:
        job_id: A job's id, unless somebody else put the message there.

    Returns:
        What came of it, for Flower's column of results; nothing here reads it.
    """
    me = child.current()
    board = me.setup.board
    board.take()
    try:
        return _render(me, job_id)
    except MemoryError:
        # Celery's parent would end the whole worker for it. Only this process has no memory left: its
        # successor takes back what it holds.
        board.close()
        _log.exception("worker.out_of_memory")
        raise SystemExit(OUT_OF_MEMORY_EXIT) from None
    finally:
        board.release()


def _render(me: child.Child, job_id: object) -> str:
    if not isinstance(job_id, str) or not is_id(job_id):
        _log.warning("job.no_id", message=repr(job_id)[:100])
        return "no id"
    if me.setup.board.draining:
        _return(me, job_id)
        return "sent back"
    job = _claim(me, job_id)
    if job is None:
        _log.info("job.not_claimed", job_id=job_id)
        return _why_not(me, job_id)
    with bound_contextvars(job_id=job.id, attempt=job.attempt, worker=me.setup.worker_id):
        members = mates.take_along(me, job)
        ended = shared.run(me, members) if members else attempt.run(me, job)
    shapes.tell_shapes(me)
    return ended


@patiently
def _claim(me: child.Child, job_id: str) -> Job | None:
    with me.database.transaction() as session:
        job = store.claim(session, job_id, me.setup.worker_id, me.settings.lease_s)
        if job is not None:
            workers.update_worker(session, me.setup.worker_id, current_job_id=job.id)
        return job


def _why_not(me: child.Child, job_id: str) -> str:
    """Say what is known of a job that is not to be claimed, for Flower; most often it was taken along."""
    try:
        with me.database.reading() as session:
            led = passes.led(session, job_id)
    except DATABASE_ERRORS:
        led = None
    if led is None or led.leader == job_id:
        return "not there to be taken"
    return f"{led.state}, in the pass of {led.leader}"


def _return(me: child.Child, job_id: str) -> None:
    """Put back a message that was read just before the worker began to stop."""
    with me.database.reading() as session:
        job = store.find_job(session, job_id)
    if job is not None:
        send(me.database, me.settings, job)
