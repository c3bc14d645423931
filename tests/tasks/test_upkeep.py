import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from core import store, workers
from core.clock import now
from core.errors import DatabaseNotUpgraded
from core.hardware import detect
from core.ids import new_id
from core.lifecycle import JobState
from core.settings import Settings
from core.tables import IdempotencyKey, Job, Worker
from policy.catalogue import Catalogue
from policy.resolve import resolve
from tasks import upkeep
from tasks.app import queue_of
from tasks.upkeep import Upkeep
from tasks.worker import run_worker
from tests.fixtures.redis import Valkey
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage, look_after


@pytest.fixture
def duties(stage: Stage) -> Iterator[Upkeep]:
    with upkeep.opened(stage.settings) as duties:
        yield duties


def claim(stage: Stage, job_id: str, lease_s: float = 0.0) -> str:
    worker_id = new_id()
    with stage.database.transaction() as session:
        assert store.claim(session, job_id, worker_id, lease_s) is not None
    return worker_id


def age(stage: Stage, job_id: str, seconds: float) -> None:
    """Move the time at which a job was queued into the past."""
    with stage.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(queued_at=now(-seconds)))


def test_a_job_whose_lease_ran_out_is_queued_and_sent_again(stage: Stage, duties: Upkeep) -> None:
    job_id = stage.submit(send=False)
    claim(stage, job_id)
    assert upkeep.rescue_lost(duties) == 1
    assert stage.job(job_id).state == JobState.QUEUED
    assert stage.messages() == 1
    assert stage.job(job_id).published_at is not None


def test_a_job_whose_lease_holds_is_left_alone(stage: Stage, duties: Upkeep) -> None:
    job_id = stage.submit(send=False)
    claim(stage, job_id, lease_s=60)
    assert upkeep.rescue_lost(duties) == 0
    assert stage.job(job_id).state == JobState.IN_PROGRESS


def test_a_job_that_lost_every_attempt_is_parked_and_not_sent(stage: Stage, duties: Upkeep) -> None:
    job_id = stage.submit(send=False, max_attempts=1)
    claim(stage, job_id)
    upkeep.rescue_lost(duties)
    job = stage.job(job_id)
    assert (job.state, job.error_code) == (JobState.FAILED, "worker_lost")
    assert stage.messages() == 0


def test_a_job_that_was_never_sent_is_sent_once(stage: Stage, duties: Upkeep) -> None:
    job_id = stage.submit(send=False)
    assert upkeep.resend_unpublished(duties) == 0, "its submitter is still at it"
    age(stage, job_id, upkeep.UNSENT_S + 1)
    assert upkeep.resend_unpublished(duties) == 1
    assert upkeep.resend_unpublished(duties) == 0
    assert stage.messages() == 1


def test_a_message_that_redis_lost_is_sent_again_after_two_looks(
    stage: Stage, duties: Upkeep, session_valkey: Valkey
) -> None:
    stage.submit()
    assert upkeep.resend_missing(duties) == 0
    with session_valkey.client() as client:
        client.flushall()
    assert upkeep.resend_missing(duties) == 0, "it may be on its way to a worker"
    assert upkeep.resend_missing(duties) == 1
    assert upkeep.resend_missing(duties) == 0
    assert stage.messages() == 1


def test_a_queue_that_holds_its_messages_gets_no_second_ones(stage: Stage, duties: Upkeep) -> None:
    for _ in range(3):
        stage.submit()
    for _ in range(3):
        assert upkeep.resend_missing(duties) == 0
    assert stage.messages() == 3


def test_a_new_redis_server_gets_the_missing_messages_at_the_first_look(
    stage_of_own_valkey: Stage, own_valkey: Valkey
) -> None:
    stage = stage_of_own_valkey
    with upkeep.opened(stage.settings) as duties:
        for _ in range(2):
            stage.submit()
        assert upkeep.resend_missing(duties) == 0
        own_valkey.kill()
        for file in own_valkey.folder.glob("appendonlydir/*"):
            file.unlink()
        own_valkey.start()
        assert upkeep.resend_missing(duties) == 2
        assert stage.messages() == 2


def test_a_job_that_no_worker_took_in_time_expires(stage: Stage, duties: Upkeep) -> None:
    job_id = stage.submit(send=False, queue_timeout_s=1)
    assert upkeep.expire_overdue(duties) == 0
    wait_until(lambda: upkeep.expire_overdue(duties) == 1, what="expiry")
    assert stage.job(job_id).state == JobState.EXPIRED


def register(stage: Stage) -> str:
    worker_id = new_id()
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=worker_id,
            name="tiny@test",
            host="test",
            pid=1,
            model="tiny",
            queue=queue_of("tiny"),
            policy={},
            device={},
        )
    return worker_id


def test_a_worker_that_is_silent_is_marked_gone(stage: Stage, duties: Upkeep) -> None:
    silent, alive = register(stage), register(stage)
    with stage.database.transaction() as session:
        session.execute(update(Worker).where(Worker.id == silent).values(heartbeat_at=now(-60)))
    assert upkeep.mark_gone_workers(duties) == 1
    with stage.database.reading() as session:
        assert workers.get_worker(session, silent).state == "gone"
        assert workers.get_worker(session, alive).state == "loading"


def test_only_the_files_of_attempts_that_are_over_and_did_not_complete_are_swept(
    stage: Stage, duties: Upkeep
) -> None:
    running, done, lost = stage.submit(send=False), stage.submit(send=False), stage.submit(send=False)
    claim(stage, running, lease_s=60)
    worker_id = claim(stage, done, lease_s=60)
    claim(stage, lost)
    upkeep.rescue_lost(duties)
    keys = {
        name: f"jobs/{job_id}/1/0.png"
        for name, job_id in (
            ("running", running),
            ("done", done),
            ("lost", lost),
            ("of another database", new_id()),
        )
    }
    for key in keys.values():
        stage.artifacts.put(key, b"picture")
    made = store.NewArtifact(0, keys["done"], "image/png", 64, 64, 7, "0" * 64, 7)
    with stage.database.transaction() as session:
        assert store.complete(session, done, 1, worker_id, [made])
    # What a worker writes to before it renames it; the one of the lost job was killed.
    (stage.folder / "artifacts" / f"{keys['lost']}#1").write_bytes(b"pict")
    (stage.folder / "artifacts" / f"{keys['running']}#1").write_bytes(b"pict")
    assert upkeep.sweep_orphans(duties) == 2
    kept = set(stage.artifacts.list())
    assert kept == {keys["running"], f"{keys['running']}#1", keys["done"], keys["of another database"]}


def test_idempotency_keys_are_forgotten_after_a_day(stage: Stage, duties: Upkeep) -> None:
    with stage.database.transaction() as session:
        for key in ("old", "fresh"):
            store.submit(session, request={}, plan={}, model="tiny", idempotency=(key, "fingerprint"))
        session.execute(
            update(IdempotencyKey)
            .where(IdempotencyKey.key == "old")
            .values(created_at=now(-upkeep.KEY_LIFE_S - 60))
        )
    upkeep.tidy_when_due(duties)
    with stage.database.reading() as session:
        assert session.scalars(select(IdempotencyKey.key)).all() == ["fresh"]


def test_the_row_of_a_worker_is_kept_for_a_week_after_its_end(stage: Stage, duties: Upkeep) -> None:
    fresh, old = register(stage), register(stage)
    with stage.database.transaction() as session:
        for worker_id in (fresh, old):
            workers.update_worker(session, worker_id, state=workers.WorkerState.GONE)
        long_ago = now(-upkeep.WORKER_LIFE_S - 60)
        session.execute(update(Worker).where(Worker.id == old).values(heartbeat_at=long_ago))
    upkeep.tidy_when_due(duties)
    with stage.database.reading() as session:
        assert [worker.id for worker in workers.list_workers(session)] == [fresh]


def test_tidying_up_has_its_turn_once_an_hour(stage: Stage, duties: Upkeep) -> None:
    upkeep.tidy_when_due(duties)
    stage.artifacts.put(f"jobs/{stage.submit(send=False)}/0/0.png", b"picture")
    upkeep.tidy_when_due(duties)
    assert len(list(stage.artifacts.list())) == 1
    duties.tidied_at["sweep_orphans"] -= upkeep.TIDY_EVERY_S
    upkeep.tidy_when_due(duties)
    assert list(stage.artifacts.list()) == []


def test_a_step_of_tidying_up_that_fails_keeps_no_other_from_its_turn_and_is_tried_again(
    stage: Stage, duties: Upkeep
) -> None:
    worker_id = register(stage)
    long_ago = now(-upkeep.WORKER_LIFE_S - 60)
    ended = {"state": "gone", "heartbeat_at": long_ago}
    with stage.database.transaction() as session:
        store.submit(session, request={}, plan={}, model="tiny", idempotency=("old", "fingerprint"))
        session.execute(update(IdempotencyKey).values(created_at=now(-upkeep.KEY_LIFE_S - 60)))
        session.execute(update(Worker).where(Worker.id == worker_id).values(ended))
        session.execute(text("ALTER TABLE idempotency_keys RENAME TO elsewhere"))
    upkeep.tidy_when_due(duties)
    with stage.database.transaction() as session:
        assert workers.list_workers(session) == []
        session.execute(text("ALTER TABLE elsewhere RENAME TO idempotency_keys"))
    upkeep.tidy_when_due(duties)
    with stage.database.reading() as session:
        assert session.scalars(select(IdempotencyKey.key)).all() == []


@pytest.fixture
def not_upgraded(tmp_path: Path, tableless_database_url: str) -> Settings:
    return Settings.for_data_dir(tmp_path, database_url=tableless_database_url)


def test_upkeep_does_not_start_on_a_database_that_was_not_upgraded(not_upgraded: Settings) -> None:
    with pytest.raises(DatabaseNotUpgraded, match="renderq db upgrade"), upkeep.opened(not_upgraded):
        pass


def test_a_worker_does_not_start_on_a_database_that_was_not_upgraded(not_upgraded: Settings) -> None:
    spec = Catalogue.load()["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    with pytest.raises(DatabaseNotUpgraded, match="renderq db upgrade"):
        run_worker(not_upgraded, spec, policy)


def test_a_duty_that_fails_does_not_keep_the_others_from_their_turn(
    stage_of_own_valkey: Stage, own_valkey: Valkey
) -> None:
    stage = stage_of_own_valkey
    job_id = stage.submit(send=False)
    claim(stage, job_id)
    own_valkey.kill()
    with upkeep.opened(stage.settings) as duties:
        upkeep.look_after(duties)
    assert stage.job(job_id).state == JobState.QUEUED


ABSENT = {"sqlite": "sqlite:////absent/absent.db", "postgresql": "postgresql://postgres@/absent?host=/absent"}


def test_the_loop_survives_a_database_that_is_away(stage: Stage, database_kind: str) -> None:
    broken = stage.settings.model_copy(update={"database_url": ABSENT[database_kind]})
    stop = threading.Event()
    loop = threading.Thread(target=look_after, args=(broken, stop))
    loop.start()
    loop.join(timeout=1.0)
    assert loop.is_alive()
    stop.set()
    loop.join()


def test_the_loop_does_its_duties_until_it_is_stopped(stage: Stage) -> None:
    job_id = stage.submit(send=False)
    claim(stage, job_id)
    stage.start_upkeep()
    stage.wait_job(job_id, JobState.QUEUED)
    wait_until(lambda: stage.messages() == 1, what="the message")
