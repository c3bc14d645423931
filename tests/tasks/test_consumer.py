"""What is left of a lost connection to Redis, and of a child that died before there was one."""

import gc
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from billiard.pool import ApplyResult
from celery.worker import state
from celery.worker.request import Request
from kombu import Connection, Consumer, Queue
from kombu.asynchronous.timer import Timer

from core.lifecycle import JobState
from core.settings import Settings
from tasks.app import RENDER, make_app
from tasks.broker import Broker
from tasks.render import render
from tests.fixtures.upkeep_process import control_messages, start_upkeep
from tests.fixtures.waiting import wait_until
from tests.fixtures.workers import Stage, WorkerProcess

ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
#: Tries to reach a Redis that is away; the pauses of Celery would by then be 10 s long.
TRIES = 6
LONGEST_PAUSE_S = 1.0
CONNECTIONS = 3
MESSAGES = 3
#: More than a process takes while its threads wait for the database.
BACKLOG = 4
LOOKS = 50
#: What the answer to INFO leaves is 3; a connection of kombu's leaves hundreds.
LEFT_BY_A_LOOK = 10


def pauses(worker: WorkerProcess) -> list[float]:
    """Seconds that it waited after each try to reach Redis."""
    lines = [json.loads(line) for line in worker.text().splitlines() if '"redis.away"' in line]
    return [line["pause_s"] for line in lines if "pause_s" in line]


@ON_SQLITE
def test_a_child_killed_before_redis_is_there_is_replaced_and_the_worker_comes_soon(
    stage_of_own_valkey: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_LOG_LEVEL", "debug")
    stage = stage_of_own_valkey
    stage.valkey.kill()
    worker = stage.start_worker(stand_in=True)
    wait_until(lambda: (row := worker.row()) and row.child_pid, what="the child")
    dead = worker.kill_child()
    wait_until(lambda: len(pauses(worker)) >= TRIES, what="tries")
    assert max(pauses(worker)) <= LONGEST_PAUSE_S
    job_id = stage.submit(send=False, prompt="paint")
    stage.valkey.start()
    worker.wait_state("ready")
    stage.send(job_id)
    stage.wait_job(job_id)
    assert worker.child_pid() != dead


def listens(stage: Stage) -> bool:
    """Whether a process has opened the connection on which it hears control messages."""
    with stage.valkey.client() as client:
        return bool(client.client_list(_type="pubsub"))


def cut(stage: Stage) -> None:
    """Close every connection of Valkey, and return when they were opened again; old messages are gone."""
    with stage.valkey.client() as client:
        client.delete("control")
        for kind in ("normal", "pubsub"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind)
    wait_until(lambda: listens(stage), what="another connection")


@ON_SQLITE
def test_messages_that_are_begun_after_their_connection_was_lost_end_no_process(
    stage_of_own_valkey: Stage,
) -> None:
    stage = stage_of_own_valkey  # other tests' connections live on
    with start_upkeep(stage) as upkeep:
        upkeep.wait_turns("expire")
        lock = sqlite3.connect(str(stage.database.url.database), timeout=20, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            wait_until(lambda: control_messages(stage) >= BACKLOG, what="threads that wait")
            cut(stage)
        lock.close()
        job_id = stage.submit(send=False, queue_timeout_s=1)
        stage.wait_job(job_id, JobState.EXPIRED)
        wait_until(lambda: control_messages(stage) == 0, what="an empty queue")
        assert upkeep.stop() == 0


def test_another_connection_leaves_the_event_loop_nothing_to_do_for_the_one_before(redis_url: str) -> None:
    app = make_app(Settings.load(redis_url=redis_url), worker=True)
    consumer = app.WorkController(app=app, pool="threads", concurrency=1).consumer
    duties = []
    for _ in range(CONNECTIONS):
        with consumer.connect():
            duties.append(len(consumer.hub.on_tick))
    assert duties == [duties[0]] * CONNECTIONS


def test_a_timer_keeps_what_is_still_to_be_done_and_forgets_what_was_cancelled() -> None:
    from tasks.consumer import forget_cancelled

    timer = Timer()
    entries = [timer.call_after(seconds, print) for seconds in (9, 3, 7, 5)]
    for entry in entries[:2]:
        entry.cancel()
    forget_cancelled(timer)
    assert [due.entry for due in sorted(timer._queue)] == [entries[3], entries[2]]


def test_a_look_at_redis_leaves_nothing_behind(redis_url: str) -> None:
    broker = Broker(Settings.load(redis_url=redis_url))
    assert broker.waiting("tiny") == 0
    gc.collect()
    gc.disable()  # what waits for it counts: in a large process it comes late
    try:
        before = len(gc.get_objects())
        for _ in range(LOOKS):
            broker.waiting("tiny")
            broker.look(["tiny"])
        assert len(gc.get_objects()) - before < LOOKS * LEFT_BY_A_LOOK
    finally:
        gc.enable()


@ON_SQLITE
def test_what_is_no_message_of_ours_is_dropped_and_the_worker_takes_the_next(
    stage_of_own_valkey: Stage,
) -> None:
    stage = stage_of_own_valkey
    worker = stage.warm_worker(stand_in=True)
    child = worker.child_pid()
    with stage.valkey.client() as client:
        client.lpush("render.tiny", b"\0\xff no JSON", b"[]", b"null", b'{"body": 1}')
    for argument in ("no-id", "\0", 7, {}):
        make_app(stage.settings).send_task(RENDER, args=(argument,), queue="render.tiny", priority=0)
    stage.wait_job(stage.submit(prompt="paint"))
    wait_until(lambda: stage.messages() == 0, what="the end of the queue")
    stage.wait_job(stage.submit(prompt="paint"))
    assert worker.child_pid() == child
    assert worker.process.poll() is None


@pytest.mark.parametrize("no_ack", [True, False])
def test_nothing_is_kept_of_a_message_that_was_acknowledged(no_ack: bool) -> None:
    from tasks.consumer import forgive_late_ack

    app = make_app(Settings(), worker=True)
    acknowledged = []
    with Connection("memory://") as connection, connection.channel() as channel:
        queue = Queue("there", channel=channel, no_ack=no_ack)
        forgive_late_ack(channel)
        for _ in range(MESSAGES):
            app.send_task(RENDER, queue=queue, connection=connection)
        with Consumer(channel, queue, no_ack=no_ack, accept=["json"]) as consumer:
            consumer.register_callback(
                lambda _, message: acknowledged.append(channel.basic_ack(message.delivery_tag))
            )
            for _ in range(MESSAGES):
                connection.drain_events(timeout=1)
        assert len(acknowledged) == MESSAGES
        assert not channel.qos._dirty
        assert not channel.qos._delivered


@dataclass
class Taken:
    """A request that Celery has given to its pool, and what the pool keeps of it."""

    request: Request
    call: ApplyResult
    calls: dict[int, ApplyResult]


@pytest.fixture
def taken() -> Iterator[Taken]:
    app = make_app(Settings(), worker=True)
    app.task(name=RENDER)(render)
    requests: list[Request] = []
    with Connection("memory://") as connection, connection.channel() as channel:
        queue = Queue("here", channel=channel)
        app.send_task(RENDER, queue=queue, connection=connection)
        with Consumer(channel, queue, no_ack=True, accept=["json"]) as consumer:
            consumer.register_callback(lambda _, message: requests.append(Request(message, app=app)))
            connection.drain_events(timeout=1)
    (request,) = requests
    calls: dict[int, ApplyResult] = {}
    call = ApplyResult(
        calls,
        callback=lambda _: state.task_ready(request, successful=True),
        accept_callback=request.on_accepted,
        error_callback=request.on_failure,
        correlation_id=request.id,
    )
    state.task_reserved(request)
    yield Taken(request, call, calls)
    state.task_ready(request)


def lost() -> ExceptionInfo:
    with pytest.raises(WorkerLostError) as caught:
        raise WorkerLostError("signal 9 (SIGKILL)")
    return ExceptionInfo((caught.type, caught.value, caught.tb))


def test_a_request_that_a_dead_child_is_heard_to_have_begun_does_not_close_the_next_connection(
    taken: Taken,
) -> None:
    from tasks.consumer import forget_lost

    taken.call._set(0, (False, lost()))
    assert not state.reserved_requests
    taken.call._ack(0, 0.0, 1, None)
    assert taken.request in state.active_requests  # Celery counts it as reserved after its next connection
    forget_lost(taken.calls)
    assert not state.active_requests
    assert not state.requests


def test_a_request_that_runs_goes_on_to_count_after_a_new_connection(taken: Taken) -> None:
    from tasks.consumer import forget_lost

    taken.call._ack(0, 0.0, 1, None)
    forget_lost(taken.calls)
    assert taken.request in state.active_requests
    taken.call._set(0, (True, "completed"))
    assert not state.active_requests
