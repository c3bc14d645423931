"""The Celery application: its settings, the queue of each model, and how a job's id is sent.

A message holds a job id and nothing else; the row in SQL is the job. So a message that is lost is sent again
by upkeep and a message that stands in Redis twice is harmless. This module is what the API may import: it
names the render task by its string and never imports it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError, ResponseError

from core.log import get_logger
from core.settings import Settings, get_settings
from policy.request import LONGEST_RUN_S

if TYPE_CHECKING:
    from collections.abc import Mapping

RENDER = "tasks.render.render"
#: The queue of upkeep's duties.
CONTROL = "control"
#: Priorities share a bucket up to the next step; 0 goes first. high 0, normal 3, low 6.
PRIORITY_STEPS = [0, 3, 6, 9]
#: Seconds a connect or an answer of Redis may take while a caller waits for ``publish``.
PUBLISH_SOCKET_S = 1.0
#: Seconds a caller may wait for a free connection when all are busy.
PUBLISH_ACQUIRE_S = 2.0
#: No render lasts longer: an hour above the longest limit of a job, which the worker keeps itself.
HARD_LIMIT_S = int(LONGEST_RUN_S) + 3600
#: What to say of a server that evicts.
EVICTS = "it drops whole queues when its memory is full: set maxmemory-policy noeviction"
#: The worker has this long to finish or hand back its job when told to stop.
DRAIN_S = 60.0

_log = get_logger()

_COMMON: Mapping[str, Any] = {
    # kombu has one limit per process: a second application of another limit would change it, or fail to.
    "broker_pool_limit": 20,
    "accept_content": ["json"],
    "task_serializer": "json",
    "task_ignore_result": True,
    "result_backend": None,
    "timezone": "UTC",
    "task_send_sent_event": True,
    "worker_send_task_events": True,
    "task_track_started": True,
    "task_acks_late": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}

_PUBLISHER: Mapping[str, Any] = {
    # One try within the socket timeouts: a request waits for it, and upkeep sends what did not go out.
    "broker_transport_options": {
        "socket_timeout": PUBLISH_SOCKET_S,
        "socket_connect_timeout": PUBLISH_SOCKET_S,
        "max_retries": 0,
        "priority_steps": PRIORITY_STEPS,
    },
    "task_publish_retry": False,
}

_WORKER: Mapping[str, Any] = {
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # A server that refuses a write is connected to again, and so it is after what is no message.
    "worker_consumer": "tasks.consumer:SteadyConsumer",
    "broker_channel_error_retry": True,
    "broker_transport_options": {
        # Covers only the moment between reading a message and accepting it; the lease in SQL covers the job.
        "visibility_timeout": 3600,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "queue_order_strategy": "round_robin",
        "priority_steps": PRIORITY_STEPS,
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
    },
    "worker_concurrency": 1,
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    # Longer than any load, compile and warm-up: a respawned child is killed when it takes longer.
    "worker_proc_alive_timeout": 3600,
    # The result of a killed child never comes; the row has been taken back by its successor.
    "worker_lost_wait": 1.0,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_soft_shutdown_timeout": DRAIN_S,
    "task_time_limit": HARD_LIMIT_S,
}


def queue_of(model: str) -> str:
    """Name the queue that the workers of a model read."""
    return f"render.{model}"


def make_app(settings: Settings | None = None, *, worker: bool = False) -> Celery:
    """Build the application; ``worker`` waits for Redis for ever, the other kind gives up within seconds."""
    return _build((settings or get_settings()).redis_url, worker=worker)


class _Application(Celery):
    """Sends messages that stand for themselves: one sent within a task does not name that task as parent."""

    current_worker_task = None


def _build(redis_url: str, *, worker: bool) -> Celery:
    app = _Application("renderq", broker=redis_url, set_as_current=worker)
    app.conf.update(_COMMON)
    app.conf.update(_WORKER if worker else _PUBLISHER)
    return app


def publish(job_id: str, model: str, priority: int, *, settings: Settings | None = None) -> bool:
    """Send a job's id to its model's queue; say whether Redis took it.

    Never raises for an unreachable, hung or full Redis, and returns within a few seconds. Blocks meanwhile,
    so it must not be called on an event loop.
    """
    app = _publisher((settings or get_settings()).redis_url)
    try:
        with app.producer_pool.acquire(block=True, timeout=PUBLISH_ACQUIRE_S) as producer:
            app.send_task(
                RENDER,
                args=(job_id,),
                queue=queue_of(model),
                priority=priority,
                producer=producer,
                retry=False,
                ignore_result=True,
            )
    except (KombuError, RedisError, OSError) as error:
        _log.warning("job.not_published", job_id=job_id, model=model, error=str(error))
        return False
    return True


def eviction_policy(client: Any) -> str | None:  # noqa: ANN401 - redis through kombu has no types
    """How a server drops whole queues when its memory is full; None when it does not, or does not tell.

    Under the other policies a full server refuses a message, which is noticed and sent again. Raises what the
    client raises when the server does not answer.
    """
    try:
        policy = client.config_get("maxmemory-policy").get("maxmemory-policy", "")
    except ResponseError:  # managed servers refuse CONFIG
        return None
    policy = policy.decode() if isinstance(policy, bytes) else str(policy)
    return policy if policy.startswith("allkeys-") else None


def tell_eviction(policy: str | None) -> None:
    """Say loudly that messages may be dropped; jobs are then late, and none is lost."""
    if policy is not None:
        _log.error("redis.evicts", maxmemory_policy=policy, advice=EVICTS)


@cache
def _publisher(redis_url: str) -> Celery:
    return _build(redis_url, worker=False)


def __getattr__(name: str) -> Celery:
    """Build ``app`` when it is first asked for, as ``celery -A tasks.app`` and Flower do."""
    if name != "app":
        raise AttributeError(name)
    return _publisher(get_settings().redis_url)
