import time

import pytest
from kombu import Queue

from core.settings import Settings
from policy.request import LONGEST_RUN_S
from tasks.app import RENDER, make_app, publish, queue_of
from tasks.child import KILL_GRACE_S
from tests.fixtures.redis import Valkey


def settings_for(url: str) -> Settings:
    return Settings.load(redis_url=url)


def take(url: str, model: str = "tiny") -> list[tuple[str, list[str]]]:
    """Read every message of a model's queue as a worker would, first to last."""
    app = make_app(settings_for(url))
    taken = []
    with app.connection_for_read() as connection:
        queue = Queue(queue_of(model))(connection.default_channel)
        while message := queue.get(no_ack=True):
            taken.append((message.headers["task"], message.payload[0]))
    return taken


def test_a_message_holds_the_job_id_and_nothing_else(redis_url: str) -> None:
    assert publish("job-1", "tiny", 3, settings=settings_for(redis_url))
    assert take(redis_url) == [(RENDER, ["job-1"])]


def test_a_higher_priority_is_read_first_and_equals_in_order(redis_url: str) -> None:
    for job_id, priority in [("low", 6), ("normal", 3), ("high", 0), ("normal2", 3)]:
        assert publish(job_id, "tiny", priority, settings=settings_for(redis_url))
    assert [args[0] for _, args in take(redis_url)] == ["high", "normal", "normal2", "low"]


def test_the_worker_ends_a_job_at_its_own_limit_before_celery_kills_the_child() -> None:
    limit = make_app(settings_for("redis://unused"), worker=True).conf.task_time_limit
    assert limit > LONGEST_RUN_S + KILL_GRACE_S


def test_each_model_has_a_queue_of_its_own(redis_url: str) -> None:
    assert publish("job-1", "other", 3, settings=settings_for(redis_url))
    assert take(redis_url) == []
    assert [args for _, args in take(redis_url, "other")] == [["job-1"]]


def test_publishing_without_redis_says_no_at_once(own_valkey: Valkey) -> None:
    own_valkey.kill()
    started = time.monotonic()
    assert not publish("job-1", "tiny", 3, settings=settings_for(own_valkey.url))
    assert time.monotonic() - started < 2


def test_publishing_to_a_hung_redis_says_no_within_seconds(own_valkey: Valkey) -> None:
    assert publish("job-1", "tiny", 3, settings=settings_for(own_valkey.url))
    own_valkey.freeze()
    started = time.monotonic()
    assert not publish("job-2", "tiny", 3, settings=settings_for(own_valkey.url))
    assert time.monotonic() - started < 6


def test_publishing_works_again_after_redis_was_killed_and_emptied(own_valkey: Valkey) -> None:
    settings = settings_for(own_valkey.url)
    assert publish("job-1", "tiny", 3, settings=settings)
    own_valkey.kill()
    assert not publish("job-2", "tiny", 3, settings=settings)
    own_valkey.start()
    with own_valkey.client() as client:
        client.flushall()
    assert publish("job-3", "tiny", 3, settings=settings)
    assert [args for _, args in take(own_valkey.url)] == [["job-3"]]


def test_a_full_redis_refuses_the_message_and_keeps_the_others(own_valkey: Valkey) -> None:
    settings = settings_for(own_valkey.url)
    assert publish("job-1", "tiny", 3, settings=settings)
    with own_valkey.client() as client:
        client.config_set("maxmemory", 1)
    assert not publish("job-2", "tiny", 3, settings=settings)
    with own_valkey.client() as client:
        client.config_set("maxmemory", 0)
    assert [args for _, args in take(own_valkey.url)] == [["job-1"]]


def test_the_application_that_flower_asks_for_is_the_settings_one(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    import tasks.app
    from core.settings import get_settings

    monkeypatch.setenv("RENDERQ_REDIS_URL", redis_url)
    get_settings.cache_clear()
    try:
        assert tasks.app.app.conf.broker_url == redis_url
    finally:
        get_settings.cache_clear()
