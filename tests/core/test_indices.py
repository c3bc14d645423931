"""What is asked often is answered from an index, however many jobs there are."""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.orm import Session

from core import store, workers
from core.lifecycle import JobState
from core.queries import find_successor
from tests.core.jobs import events_after, submit

QUESTIONS: dict[str, tuple[str, Callable[[Session], object]]] = {
    "the list": ("ix_jobs_list", lambda s: store.list_jobs(s, caller="ann")),
    "the list of a state": (
        "ix_jobs_list_state",
        lambda s: store.list_jobs(s, caller="ann", status=JobState.FAILED),
    ),
    "the list of the parked": (
        "ix_jobs_list_parked",
        lambda s: store.list_jobs(s, caller="ann", parked=True),
    ),
    "who repeats it": ("uq_jobs_requeued_from", lambda s: find_successor(s, "j-1")),
    "the list of a model": ("ix_jobs_list_model", lambda s: store.list_jobs(s, caller="ann", model="tiny")),
    "the counts": ("ix_jobs_list_state", lambda s: store.count_by_state(s, caller="ann")),
    "the rescue": ("ix_jobs_lease", store.rescue),
    "what is to be sent": ("ix_jobs_unpublished", lambda s: store.unpublished(s, 0)),
    "what is overdue": ("ix_jobs_deadline", store.expire),
    "how many wait": ("ix_jobs_queue", lambda s: store.count_queued(s, "tiny")),
    "who waits": ("ix_jobs_queue", lambda s: store.queued_ids(s, "tiny", 10)),
    "the place in the queue": ("ix_jobs_queue", lambda s: store.queue_position(s, submit(s))),
    "one job": ("", lambda s: store.find_job(s, "j-1")),
    "a claim": ("", lambda s: store.claim(s, "j-1", "worker", 30)),
    "the events": ("ix_events_job_id_id", lambda s: events_after(s, "j-1", 5)),
    "who is ready": ("ix_workers_alive", lambda s: workers.count_ready(s, within_s=30)),
    "old keys": ("ix_idempotency_keys_created_at", lambda s: store.forget_idempotency_keys(s, 60)),
}


@pytest.mark.parametrize(("index", "ask"), QUESTIONS.values(), ids=list(QUESTIONS))
def test_a_question_reads_no_whole_table(
    session: Session, index: str, ask: Callable[[Session], object]
) -> None:
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL enable_seqscan = off"))  # it would read tables this small as a whole
    plans = _plans_of(session, ask)
    assert plans
    if session.get_bind().dialect.name == "sqlite":  # PostgreSQL takes any index while the tables are empty
        assert re.search(rf"\b{index}\b", " ".join(plans))
    whole = [plan for plan in plans if "Seq Scan" in plan or ("SCAN" in plan and "INDEX" not in plan)]
    assert whole == []


def _plans_of(session: Session, ask: Callable[[Session], object]) -> list[str]:
    """Ask, and have the database explain every statement before it runs."""
    connection = session.connection()
    explain = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}[connection.dialect.name]
    plans: list[str] = []

    def note(on: Connection, _cursor: object, statement: str, values: object, *_: object) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            cursor = on.connection.cursor()
            cursor.execute(explain + statement, values)
            plans.extend(str(row[-1]) for row in cursor.fetchall())
            cursor.close()

    event.listen(connection, "before_cursor_execute", note)
    try:
        ask(session)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return plans
