"""The process ``renderq upkeep``: Beat and the worker of the queue ``control``, in one process.

Beat (a thread, ``tasks.beat``) sends a message for each duty that is due; the worker (Celery, in the main
thread, with a few threads for the duties) does it. Any number of these processes may run and share the queue.

While Redis is away no message comes, but jobs must go on to expire and to be rescued, and schedules to fire:
all of that happens in SQL. So a third part, one more thread, does each duty that had no turn in this process
for a while; the rare ones have a thread of their own. They also have the first look after a start.

Threads, since a pool of processes would cost memory and an orphan's risk for work that waits for SQL, and the
solo pool would not answer to Flower or to SIGTERM while a duty waits. Every duty is a guarded transaction, so
the process may end at any moment: a stop that takes long is cut short.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any

from core.log import get_logger
from tasks.app import CONTROL, make_app
from tasks.beat import make_beat, task_of
from tasks.upkeep import DUTIES, keep_looking, opened, take_turn

if TYPE_CHECKING:
    from celery import Celery

    from core.settings import Settings
    from tasks.upkeep import Duty, Upkeep

#: Duties done at a time; tidying up may take minutes, and the others must not wait for it.
THREADS = 3
#: A duty counts as forgotten by Beat when it had no turn here for so many intervals.
SILENT_INTERVALS = 2
#: Seconds from a stop signal to the end of the process, whatever hangs.
STOP_S = 4.0
#: Tidying up may take minutes; the duties that jobs wait for have a thread to themselves.
FREQUENT = tuple(duty for duty in DUTIES if duty.every_s is None)
RARE = tuple(duty for duty in DUTIES if duty.every_s is not None)
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP")
#: Celery's loggers that would tell of every message.
WORDY = (
    "celery.apps.worker",
    "celery.beat",
    "celery.worker.strategy",
    "celery.worker.request",
    "celery.app.trace",
)

_log = get_logger()


def run_control(settings: Settings) -> int:
    """Do upkeep until a stop signal; call it once, in the main thread.

    Raises:
        DatabaseNotUpgraded: The tables are not those of this installation.

    Returns:
        0 after a stop, else Celery's exit code.
    """
    _quieten()
    stopped = Event()
    with opened(settings) as upkeep:
        silent_s = SILENT_INTERVALS * settings.upkeep_interval_s
        for name, duties in (("watch", FREQUENT), ("watch-rare", RARE)):
            looks = (upkeep, stopped, silent_s, duties)
            Thread(target=keep_looking, args=looks, name=name, daemon=True).start()
        beat = make_beat(settings)
        beat.start()
        program = _make_program(_make_worker_app(upkeep))
        program.start()
        code = int(program.exitcode or 0)
        _end_soon(code)  # also when nobody sent a signal: Flower may stop a worker, too
        stopped.set()
        beat.service.stop()
    return code


def _make_worker_app(upkeep: Upkeep) -> Celery:
    from celery import signals
    from kombu import Queue

    app = make_app(upkeep.settings, worker=True)
    app.conf.update(
        worker_concurrency=THREADS,
        task_time_limit=None,
        task_queues=[Queue(CONTROL, no_ack=True)],  # a message that is lost is not worth keeping
    )
    for duty in DUTIES:
        _register(app, upkeep, duty)
    signals.setup_logging.connect(_keep_logging, weak=False)
    return app


def _quieten() -> None:
    for name in WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _register(app: Celery, upkeep: Upkeep, duty: Duty) -> None:
    # Without events: Flower shows renders, not housekeeping.
    @app.task(name=task_of(duty), ignore_result=True, send_events=False)
    def do() -> None:
        take_turn(upkeep, duty)


def _keep_logging(**_: object) -> None:
    """Leave logging as the command has set it up."""


def _make_program(app: Celery) -> Any:  # noqa: ANN401
    from celery import platforms
    from celery.apps.worker import Worker
    from celery.exceptions import SecurityWarning

    class Program(Worker):
        def install_platform_tweaks(self, worker: object) -> None:
            del worker
            for name in STOP_SIGNALS:
                platforms.signals[name] = _stop

        def set_process_status(self, info: str) -> None:
            """Keep the command line that was typed."""

    # Root may run it: messages are JSON, which can hold no code.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    return Program(
        app=app,
        hostname=f"upkeep-{os.getpid()}@{socket.gethostname()}",
        queues=[CONTROL],
        pool="threads",
        loglevel="INFO",
        quiet=True,
        without_mingle=True,  # exchanges revoked ids, which nothing here reads
        without_gossip=True,
    )


def _stop(*_: object) -> None:
    """End Celery's loop, in the middle of its waiting, and the process in any case."""
    from celery.exceptions import WorkerShutdown
    from celery.worker import state

    if state.should_stop is None:
        state.should_stop = 0  # type: ignore[assignment]  # Celery sets it the same way
        _end_soon(0)
        raise WorkerShutdown(0)


def _end_soon(code: int) -> None:
    """End the process in a few seconds, even if Redis or the database hangs: a duty may be cut short."""
    timer = Timer(STOP_S, os._exit, args=(code,))
    timer.daemon = True
    timer.start()
