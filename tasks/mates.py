"""Takes waiting jobs along into the pass of one that was just claimed.

Nothing here keeps that one from being rendered: when the database does not answer, it goes alone. Mates whose
claim was not heard of are taken back when their lease runs out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core import passes, workers
from core.log import get_logger
from pipeline.errors import PlanNotSupported
from policy.microbatch import LOOK, Sizes, Waiting, choose_mates, takes_along
from tasks.attempt import read_plan
from tasks.engine import SharesPasses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from core.tables import Job
    from policy.plan import RenderPlan
    from tasks.child import Child

_log = get_logger()


class Member(NamedTuple):
    """A job that is claimed for a shared pass, and its plan."""

    job: Job
    plan: RenderPlan


def take_along(me: Child, leader: Job) -> Sequence[Member]:
    """Claim the jobs that share the pass of ``leader``, which this worker has just claimed.

    Returns:
        All jobs of the pass, the leader first; empty when it is alone.
    """
    try:
        return _take_along(me, leader)
    except Exception as error:  # noqa: BLE001 - it is claimed, and has to be rendered whatever this was
        _log.warning("job.goes_alone", exc_info=error)
        return ()


def _take_along(me: Child, leader: Job) -> Sequence[Member]:
    plan = _plan_of(me, leader)
    if plan is None or not takes_along(plan, leader.attempt, leader.max_attempts) or me.setup.board.draining:
        return ()
    sizes = me.engine.shared_sizes(plan) if isinstance(me.engine, SharesPasses) else Sizes()
    if not sizes:
        return ()
    with me.database.transaction() as session:
        mates = _claim(me, session, leader, plan, sizes)
    return (Member(leader, plan), *mates) if mates else ()


def _claim(me: Child, session: Session, leader: Job, plan: RenderPlan, sizes: Sizes) -> list[Member]:
    model, mine, settings = me.setup.spec.id, me.setup.worker_id, me.settings
    plans: dict[str, RenderPlan | None] = {}
    waiting: list[Waiting] = []
    for job in passes.waiting_jobs(session, model, LOOK):
        plans[job.id] = _plan_of(me, job)
        tried = job.attempt > 0
        waiting.append(Waiting(job.id, passes.rank_of(job), tried, job.max_attempts, plans[job.id]))
    idle = workers.count_idle(session, model, mine, within_s=workers.taking_within_s(settings.heartbeat_s))
    chosen = choose_mates(plan, waiting, sizes, idle)
    if not chosen.ids:
        return []
    claimed = passes.claim_mates(session, leader, chosen.ids, mine, settings.lease_s, chosen.fit)
    return [Member(job, mate) for job in claimed if (mate := plans[job.id]) is not None]


def _plan_of(me: Child, job: Job) -> RenderPlan | None:
    """The plan; None when this worker cannot carry it out, which the job's own attempt then tells."""
    try:
        return read_plan(me, job)
    except PlanNotSupported:
        return None
