"""`renderq upkeep` as a process: Beat, the worker of the queue `control`, and what happens without Redis."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import store
from core.errors import DatabaseNotUpgraded
from core.ids import new_id
from core.lifecycle import JobState
from core.settings import Settings
from tasks.app import make_app
from tasks.beat import MOST_WAITING, make_beat
from tasks.control import run_control
from tasks.upkeep import DUTIES
from tests.fixtures.processes import is_gone
from tests.fixtures.redis import Valkey
from tests.fixtures.upkeep_process import control_messages, events_seen, files_below, start_upkeep
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage

on_sqlite = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

FREQUENT = {duty.name for duty in DUTIES if duty.every_s is None}


@pytest.fixture
def own_stage(tmp_path: Path, own_valkey: Valkey) -> Iterator[Stage]:
    """A stage whose Valkey the test may stop."""
    with Stage(tmp_path, own_valkey, f"sqlite:///{tmp_path}/renderq.db") as stage:
        yield stage


def lose(stage: Stage) -> str:
    """A job whose worker died."""
    job_id = stage.submit(send=False)
    with stage.database.transaction() as session:
        assert store.claim(session, job_id, new_id(), 0.0) is not None
    return job_id


@on_sqlite
def test_beat_sends_every_duty_and_the_worker_does_it_without_a_file_or_a_second_process(
    stage: Stage,
) -> None:
    with start_upkeep(stage) as upkeep:
        upkeep.wait_turns(*FREQUENT)
        assert upkeep.below() == {}
        assert files_below(upkeep.folder) == []
        job_id = lose(stage)
        stage.wait_job(job_id, JobState.QUEUED)
        wait_until(lambda: stage.messages() >= 1, what="the message")
        os.kill(upkeep.pid, signal.SIGKILL)
        upkeep.process.wait()
        assert is_gone(upkeep.pid)


@on_sqlite
def test_several_rescue_each_job_once(stage: Stage) -> None:
    with start_upkeep(stage, "first") as first, start_upkeep(stage, "second") as second:
        first.wait_turns("rescue")
        second.wait_turns("rescue")
        jobs = [lose(stage) for _ in range(5)]
        for job_id in jobs:
            stage.wait_job(job_id, JobState.QUEUED)
        wait_until(lambda: stage.messages() >= len(jobs), what="the messages")
        assert first.stop(signal.SIGINT) == second.stop(signal.SIGTERM) == 0
    assert all(stage.outcomes(job_id) == ["lost"] for job_id in jobs)


@on_sqlite
def test_housekeeping_sends_no_events(stage: Stage) -> None:
    with start_upkeep(stage) as upkeep:
        upkeep.wait_turns(*FREQUENT)
        before = sum(upkeep.turns().values())
        kinds = {event["type"] for event in events_seen(stage, count=3)}
        assert sum(upkeep.turns().values()) > before
        assert kinds <= {"worker-online", "worker-heartbeat"}


@on_sqlite
def test_a_queue_that_nobody_reads_does_not_grow_and_what_stood_there_is_dropped(stage: Stage) -> None:
    beat = make_beat(stage.settings.model_copy(update={"upkeep_interval_s": 0.05}))
    entries = beat.service.scheduler.schedule
    beat.start()
    wait_until(lambda: entries["expire"].total_run_count * len(FREQUENT) > 2 * MOST_WAITING, what="entries")
    beat.service.stop()
    beat.join()
    assert control_messages(stage) == MOST_WAITING
    with start_upkeep(stage, RENDERQ_UPKEEP_INTERVAL_S="600") as upkeep:
        wait_until(lambda: control_messages(stage) == 0, what="an empty queue")
        assert upkeep.turns() == {}, "it did what was meant for a moment long past"


def test_the_applications_in_one_process_agree_on_the_limit_that_it_has_once(redis_url: str) -> None:
    settings = Settings.load(redis_url=redis_url)
    worker, publisher = make_app(settings, worker=True), make_app(settings)
    with publisher.producer_pool.acquire(block=True), worker.producer_pool.acquire(block=True) as producer:
        assert producer.connection is not None


def test_a_stop_signal_ends_it_though_redis_hangs(own_stage: Stage, own_valkey: Valkey) -> None:
    with start_upkeep(own_stage) as upkeep:
        upkeep.wait_turns("expire")
        own_valkey.freeze()
        assert upkeep.stop() == 0


def test_duties_go_on_without_redis_and_by_message_once_it_is_there(
    own_stage: Stage, own_valkey: Valkey
) -> None:
    own_valkey.kill()
    first = own_stage.submit(send=False, queue_timeout_s=1)
    with start_upkeep(own_stage) as upkeep:
        own_stage.wait_job(first, JobState.EXPIRED)
        waiting = lose(own_stage)
        own_stage.wait_job(waiting, JobState.QUEUED)
        own_valkey.start()
        upkeep.wait_turns(*FREQUENT)
        wait_until(lambda: own_stage.messages() >= 1, what="the message of the rescued job")
        own_valkey.kill()
        last = own_stage.submit(send=False, queue_timeout_s=1)
        own_stage.wait_job(last, JobState.EXPIRED)
        assert upkeep.stop() == 0


def test_it_starts_without_its_database_and_goes_on_when_it_is_there(
    tmp_path: Path, session_valkey: Valkey, redis_url: str
) -> None:
    with Stage(tmp_path / "here", session_valkey, f"sqlite:///{tmp_path}/here/renderq.db") as stage:
        later = f"sqlite:///{tmp_path}/later/renderq.db"
        with start_upkeep(stage, RENDERQ_DATABASE_URL=later) as upkeep:
            upkeep.wait_turns(*FREQUENT)
            assert "upkeep.failed" in upkeep.text()
            with Stage(tmp_path / "later", session_valkey, later) as there:
                job_id = there.submit(send=False, queue_timeout_s=1)
                there.wait_job(job_id, JobState.EXPIRED)


def test_it_does_not_start_on_a_database_that_was_not_upgraded(tmp_path: Path) -> None:
    with pytest.raises(DatabaseNotUpgraded, match="renderq db upgrade"):
        run_control(Settings.for_data_dir(tmp_path))
