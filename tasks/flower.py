"""Flower, the monitor for Celery, set up for this system and started inside our own process.

Inside, because its command would take credentials from the command line or its own variables, and because it
reads a configuration file from the working directory. It keeps what it heard in memory only.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery.events import EventReceiver
from flower import urls
from flower.events import Events
from flower.options import options
from tornado.ioloop import IOLoop, PeriodicCallback

from core.addresses import is_loopback
from core.errors import AppError
from core.log import get_logger
from tasks.app import CONTROL, make_app
from tasks.flower_door import GuardedFlower

if TYPE_CHECKING:
    from core.settings import Settings

COLUMNS = "args,result,state,received,runtime,worker,uuid,name"
#: Tasks kept in memory: some hundred bytes each.
TASKS_KEPT = 20_000
#: Each start of a worker has a name of its own; the page forgets one that ended after this time.
FORGET_WORKER_S = 3600
#: Seconds between two looks at which queues the workers read, which Flower itself takes only when asked.
LOOK_S = 15.0
#: Seconds between two tries to hear events while Redis is away.
RETRY_S = 2.0

#: Their warnings: every refused call, and every look while no worker is there.
WORDY = ("tornado.access", "tornado.general", "flower.inspector")

_log = get_logger()


class NotAllowed(AppError):
    """Flower does not start this way."""


class PatientEvents(Events):  # type: ignore[misc]  # flower publishes no types
    """Listens again soon after Redis was away; Flower's own pauses double without an end."""

    def run(self) -> None:
        """Hear events for ever."""
        while True:
            try:
                with self.capp.connection_for_read() as connection:
                    EventReceiver(connection, handlers={"*": self.on_event}, app=self.capp).capture(
                        limit=None, timeout=None, wakeup=True
                    )
            except Exception as error:  # noqa: BLE001 - whatever it was: without events Flower is blind
                _log.warning("flower.hears_nothing", error=f"{type(error).__name__}: {error}")
                time.sleep(RETRY_S)


def run_flower(settings: Settings, address: str, port: int, *, allow_control: bool) -> None:
    """Serve Flower until SIGTERM or SIGINT; call it once, in the main thread.

    Args:
        settings: Redis and the credentials.
        address: Where to listen; beyond loopback only with credentials.
        port: 0 takes a free one.
        allow_control: Whether Flower's buttons (shut down a worker, revoke a task, ...) work.

    Raises:
        NotAllowed: Others could see it, or use the buttons, without a password.
        OSError: The address or port cannot be used.
    """
    secret = settings.flower_basic_auth
    _check_access(address, protected=secret is not None, allow_control=allow_control)
    options.address, options.port = address, port
    options.basic_auth = [secret.get_secret_value()] if secret else []
    options.read_only = not allow_control
    options.tasks_columns = COLUMNS
    options.purge_offline_workers = FORGET_WORKER_S
    options.max_tasks = TASKS_KEPT
    options.format_task = show_job
    for name in WORDY:
        logging.getLogger(name).setLevel(logging.ERROR)
    _serve(_make_flower(settings))


def _check_access(address: str, *, protected: bool, allow_control: bool) -> None:
    if protected:
        return
    if not is_loopback(address):
        raise NotAllowed(
            f"--address {address}: others than this machine would see Flower without a password. Set "
            "RENDERQ_FLOWER_BASIC_AUTH to user:password, or leave --address out"
        )
    if allow_control:
        raise NotAllowed(
            "--allow-control: Flower's buttons work with a password only. Set RENDERQ_FLOWER_BASIC_AUTH to "
            "user:password"
        )


def show_job(task: Any) -> Any:  # noqa: ANN401 - flower's
    """A task as the pages show it: the job's id and what came of it, not in Python's words."""
    task.args = (task.args or "").strip("()',")
    task.result = (task.result or "").strip("'")
    return task


def _make_flower(settings: Settings) -> GuardedFlower:
    loop = IOLoop.current()
    celery = make_app(settings)
    celery.conf.task_default_queue = CONTROL  # what the page of queues shows while it knows no worker
    events = PatientEvents(
        celery,
        io_loop=loop,
        max_workers_in_memory=options.max_workers,
        max_tasks_in_memory=options.max_tasks,
    )
    return GuardedFlower(capp=celery, options=options, events=events, io_loop=loop, **urls.settings)


def _serve(flower: GuardedFlower) -> None:
    loop = flower.io_loop
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.add_callback_from_signal(loop.stop))
    port = flower.start_http_server()
    _log.info("flower.ready", address=options.address, port=port, read_only=options.read_only)
    PeriodicCallback(flower.update_workers, LOOK_S * 1000).start()
    flower.start()
    # Its threads may wait for a Redis that hangs, and there is nothing to save.
    os._exit(0)
