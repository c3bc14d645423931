"""One worker: a light Celery parent and the child that holds the model.

``run_worker`` runs Celery inside this process, so ``ps`` goes on showing the command that was typed. The
parent answers control messages and never imports torch; it decides everything about the worker before the
fork and hands it to the child. SIGTERM, SIGINT, SIGQUIT and SIGHUP all begin the same stop: no more jobs, a
short rest of the running one is finished, a long rest is handed back; a second signal hands it back at once.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from core import workers
from core.db import Database
from core.ids import new_id
from core.log import get_logger
from core.workers import WorkerState
from tasks import child, predecessor
from tasks.app import DRAIN_S, RENDER, make_app, queue_of
from tasks.board import Board
from tasks.compile_cache import forget_live
from tasks.engine import load_pipeline_engine
from tasks.gate import make_gate
from tasks.patience import DATABASE_ERRORS, patiently
from tasks.render import render
from tasks.watch import Watch, hold_forks

if TYPE_CHECKING:
    from celery import Celery

    from core.settings import Settings
    from policy.model_spec import ModelSpec
    from policy.resolve import Policy
    from tasks.engine import EngineFactory

#: Celery's loggers that say of each message what our lines say with the job's id, and "ready" too early.
WORDY = ("celery.apps.worker", "celery.worker.strategy", "celery.app.trace")
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP")

_log = get_logger()


def run_worker(
    settings: Settings,
    spec: ModelSpec,
    policy: Policy,
    name: str | None = None,
    *,
    drain_s: float = DRAIN_S,
    kill_grace_s: float = child.KILL_GRACE_S,
    deaf_s: float = child.DEAF_S,
    engine_factory: EngineFactory = load_pipeline_engine,
) -> int:
    """Run one worker for ``spec`` until it is told to stop; call it once, in the main thread.

    Args:
        settings: Where database, Redis and artifacts are.
        spec: The model; the worker reads this model's queue only.
        policy: The resolved options.
        name: What people call the worker; unique on its machine.
        drain_s: How long the running job may go on after a stop signal.
        kill_grace_s: How long a job that was cancelled or ran too long may take to stop before its child
            is killed.
        deaf_s: How long messages may stand in the queue of an idle worker before it ends with 75.
        engine_factory: Makes the engine in the child; whatever it imports, the parent does not.

    Raises:
        DatabaseNotUpgraded: The tables are not those of this installation.

    Returns:
        0 after a stop, 70 when the model could not be made ready, 75 when no message reached the worker any
        more though Redis had some.
    """
    _check_tables(settings)
    # Read by billiard when Celery's worker is imported: children then ignore a SIGTERM to the whole group.
    os.environ["REMAP_SIGTERM"] = "SIGQUIT"
    setup = child.Setup(
        settings,
        spec,
        policy,
        new_id(),
        _full_name(name, spec),
        Board(),
        kill_grace_s,
        deaf_s,
        engine_factory=engine_factory,
    )
    _register(setup)
    hold_forks()
    watch = Watch(
        setup,
        _stop_celery,
        child.LOAD_FAILED,
        leave=lambda: _leave(setup),
        register=lambda: _register(setup),
    )
    watch.start()
    code = _run_celery(setup, drain_s)
    watch.finish()
    _leave(setup)
    forget_live(setup.settings, setup.worker_id)
    if setup.board.cells.failed:
        return child.LOAD_FAILED
    return 0 if setup.board.draining else code


def _full_name(name: str | None, spec: ModelSpec) -> str:
    short = name or f"{spec.id}-{os.getpid()}"
    return short if "@" in short else f"{short}@{socket.gethostname()}"


@patiently
def _check_tables(settings: Settings) -> None:
    Database(settings.database_url, keeps=False).check_revision()


@patiently
def _register(setup: child.Setup) -> None:
    # A child would inherit a connection that is kept, and close it for both.
    with Database(setup.settings.database_url, keeps=False).transaction() as session:
        workers.register_worker(
            session,
            worker_id=setup.worker_id,
            name=setup.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            child_pid=setup.board.cells.child_pid or None,
            model=setup.spec.id,
            queue=queue_of(setup.spec.id),
            policy=setup.policy.as_json(),
            device=asdict(setup.hardware),
        )


def _run_celery(setup: child.Setup, drain_s: float) -> int:
    program = _make_program(_make_app(setup), setup, drain_s)
    program.start()
    return int(program.exitcode or 0)


def _make_app(setup: child.Setup) -> Celery:
    from celery import signals

    app = make_app(setup.settings, worker=True)
    app.task(name=RENDER, ignore_result=True)(render)
    app.steps["consumer"].add(make_gate(setup.board))
    for name in WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Logging is set up by the command; with a receiver here Celery leaves it alone.
    signals.setup_logging.connect(_keep_logging, weak=False)
    signals.worker_process_init.connect(lambda **_: child.prepare(setup), weak=False)
    return app


def _keep_logging(**_: object) -> None:
    """Leave logging as it is."""


def _make_program(app: Celery, setup: child.Setup, drain_s: float) -> Any:  # noqa: ANN401
    from celery import platforms
    from celery.apps.worker import Worker
    from celery.exceptions import SecurityWarning

    from tasks.consumer import SteadyPool

    class Program(Worker):
        def install_platform_tweaks(self, worker: object) -> None:
            del worker
            for name in STOP_SIGNALS:
                platforms.signals[name] = lambda *_: setup.board.drain(drain_s)

        def set_process_status(self, info: str) -> None:
            """Keep the command line that was typed."""

    # Root may run it: messages are JSON, which can hold no code.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    return Program(
        app=app,
        hostname=setup.name,
        queues=[queue_of(setup.spec.id)],
        pool=SteadyPool,
        loglevel="INFO",
        quiet=True,
        without_mingle=True,  # exchanges revoked ids, which nothing here reads
        without_gossip=True,
    )


def _stop_celery(code: int) -> None:
    """Have Celery's loop end the worker with this exit code at its next turn."""
    from celery.worker import state

    if state.should_stop is None:
        state.should_stop = code  # type: ignore[assignment]  # Celery sets it the same way


def _leave(setup: child.Setup) -> None:
    """Queue again what the dead child may have left, and let the row say that the worker is gone."""
    database = Database(setup.settings.database_url, keeps=False)
    try:
        predecessor.hand_back(database, setup.settings, setup.worker_id)
        if not setup.board.cells.failed:
            with database.transaction() as session:
                workers.update_worker(
                    session, setup.worker_id, state=WorkerState.GONE, child_pid=None, current_job_id=None
                )
    except DATABASE_ERRORS as error:
        _log.warning("worker.row_not_written", error=type(error).__name__)
