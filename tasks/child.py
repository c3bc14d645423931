"""The worker's child: the only process that loads the model, and what it does before it takes jobs.

``prepare`` runs once in each new child: settle what a killed predecessor left, load, mount, compile, warm up,
open the gate. Each step stands on the worker's row while it runs. When it fails, the reason is printed as one
line and kept on the row, and the board tells the parent to end the whole worker.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Unpack

from core import workers
from core.artifacts import ArtifactStore
from core.db import Database
from core.hardware import detect
from core.log import get_logger
from core.workers import WorkerChanges, WorkerState
from pipeline.errors import LoadFailed, PipelineError
from tasks import predecessor
from tasks.compile_cache import FOLDER_VARIABLE, CompileCache
from tasks.engine import Compiles, Leads, end_child, load_pipeline_engine
from tasks.patience import DATABASE_ERRORS
from tasks.shapes import tell_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.settings import Settings
    from pipeline.rendering import PreparationStep, ShapeReport
    from policy.model_spec import ModelSpec
    from policy.modes import Hardware
    from policy.resolve import Policy
    from tasks.board import Board
    from tasks.engine import Engine, EngineFactory

LOAD_FAILED = 70
#: A job that must stop does so at its next step; no step of any model takes longer.
KILL_GRACE_S = 120.0
#: An idle worker leaves a message in its queue for this time at most, else its consumer is stuck.
DEAF_S = 15.0
#: So many children in a row may be killed before they are ready.
COLD_DEATHS = 3
#: Time for the parent to begin its end, so that it forks no successor of a child that could not load.
FAREWELL_S = 1.0
#: The step of the preparation that is about what the compiler made for other workers.
COMPILE_CACHE = "compile cache"

_STATES = {
    "import": WorkerState.LOADING,
    "compile cache": WorkerState.LOADING,
    "followers": WorkerState.LOADING,
    "load": WorkerState.LOADING,
    "mount": WorkerState.MOUNTING,
    "compile": WorkerState.COMPILING,
    "warmup": WorkerState.WARMING,
}

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is, decided in the parent and handed to the child by the fork.

    Attributes:
        worker_id: Id of this boot; it owns the jobs that the child claims.
        kill_grace_s: The parent kills a child whose job did not stop within this time after it had to.
        deaf_s: The worker ends when it leaves messages in its queue for so long though it is idle.
        hardware: What the policy was resolved for.
        engine_factory: Makes the engine, in the child.
    """

    settings: Settings
    spec: ModelSpec
    policy: Policy
    worker_id: str
    name: str
    board: Board
    kill_grace_s: float = KILL_GRACE_S
    deaf_s: float = DEAF_S
    hardware: Hardware = field(default_factory=detect)
    engine_factory: EngineFactory = load_pipeline_engine


@dataclass(slots=True)
class Child:
    """What the child holds while it lives.

    Attributes:
        sound: False once the device does not work any more.
        shapes_told: What the row says of shapes.
    """

    setup: Setup
    engine: Engine
    database: Database
    artifacts: ArtifactStore
    sound: bool = field(default=True, init=False)
    shapes_told: ShapeReport | None = field(default=None, init=False)
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = self.setup.settings


_child: Child | None = None


def current() -> Child:
    """The child that this process is; it exists once the gate is open."""
    if _child is None:
        raise RuntimeError("this process is no warm worker child")
    return _child


def prepare(setup: Setup) -> None:
    """Make this forked process ready for jobs, or end it with exit code 70."""
    global _child  # noqa: PLW0603 - Celery calls the task without a place for it
    # A stop of the whole process group is the parent's to carry out: it lets the job finish or hands it back.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    board = setup.board
    died_warming = board.cells.died_warming
    board.begin_child()
    if board.cells.died_warming > died_warming:
        _log.error("shape.warming_killed", times=board.cells.died_warming, goes_on=not board.warms_no_more)
    if board.ends:
        os._exit(0)
    database = Database(setup.settings.database_url)
    record = Record(database, setup.worker_id)
    try:
        record.begin()
        words = board.take_words()
        _settle(database, setup, words)
        _check_starts(board, words)
        operators = os.environ.get(FOLDER_VARIABLE)
        engine = _make_engine(setup, record)
        artifacts = ArtifactStore(setup.settings.artifacts_url)
        kept = _compile_cache(setup, record, engine, database, artifacts, operators)
        engine.prepare()
        if kept is not None:
            record.timed(COMPILE_CACHE, kept.save)
        _child = Child(setup, engine, database, artifacts)
        tell_shapes(_child)
        record.ready()
    except Exception as error:  # noqa: BLE001 - whatever it is, no job may reach this child
        _give_up(setup, record, error)
    board.say_warm()
    _log.info("worker.ready", model=setup.spec.id, worker=setup.worker_id)


def _compile_cache(
    setup: Setup,
    record: Record,
    engine: Engine,
    database: Database,
    artifacts: ArtifactStore,
    operators: str | None,
) -> CompileCache | None:
    """What was kept for a worker like this one, brought to where the compiler looks for it.

    Args:
        setup: What the worker is.
        record: Where it is told.
        engine: What compiles.
        database: Where the hashes stand.
        artifacts: Where archives are kept.
        operators: The compiler's folder that the operator set. Torch sets it, too, as soon as it is imported.
    """
    facts = engine.compile_facts() if isinstance(engine, Compiles) else None
    if facts is None or not setup.policy["compile_cache"]:
        return None
    if operators:
        reason = f"{FOLDER_VARIABLE} is set: the compiler keeps its own cache there"
        record.note(COMPILE_CACHE, "done", 0.0, {"result": "off", "reason": reason})
        return None
    cache = CompileCache(setup.settings, setup.worker_id, database, artifacts, facts)
    # One that may have killed the last child is not tried again.
    use = cache.restore if setup.board.cells.cold_starts <= 1 else cache.begin
    record.timed(COMPILE_CACHE, use)
    return cache


def _settle(database: Database, setup: Setup, words: tuple[str, str] | None) -> None:
    try:
        predecessor.settle(database, setup.settings, setup.worker_id, words)
    except DATABASE_ERRORS as error:
        _log.warning("worker.predecessor_not_settled", error=describe(error))  # its lease ends by itself


def _check_starts(board: Board, words: tuple[str, str] | None) -> None:
    """End a loop of children that are killed while they load, as a machine without memory does it."""
    deaths = board.cells.cold_starts - 1
    if deaths >= COLD_DEATHS:
        why = f", at last because {words[1]}" if words else ""
        raise LoadFailed(
            f"its process was killed {deaths} times before it was ready{why}; is there memory enough?"
        )


def _make_engine(setup: Setup, record: Record) -> Engine:
    source = local_source(setup)
    record.note("import", "started")
    started = time.monotonic()
    engine = setup.engine_factory(setup.spec, setup.policy, source=source, report=record.step)
    record.note("import", "done", round(time.monotonic() - started, 3))
    if isinstance(engine, Leads):
        engine.abandon = partial(end_child, setup.board)
    check_device(setup.hardware, engine.device.type)
    return engine


def check_device(hardware: Hardware, found: str) -> None:
    """Refuse to run on another kind of device than the options were resolved for.

    Args:
        hardware: What they were resolved for.
        found: Kind of the device that torch computes on.
    """
    if found == hardware.device:
        return
    if found == "cpu":
        raise LoadFailed(
            f"resolved for {hardware.device}, but torch sees only a CPU: {hardware.name or 'the GPU'} needs "
            "a build of torch that is made for it and a driver new enough for that build; with "
            "CUDA_VISIBLE_DEVICES set to nothing the CPU is meant"
        )
    raise LoadFailed(
        f"resolved for {hardware.device}, but torch finds {found}: install nvidia-ml-py, which finds it for "
        "the options too; with CUDA_VISIBLE_DEVICES set to nothing the CPU is meant"
    )


def local_source(setup: Setup) -> str | None:
    """The model's folder below the operator's ``models_dir``, if it is there.

    Raises:
        LoadFailed: The operator named a ``models_dir`` that is no folder.
    """
    models = setup.settings.models_dir
    if models is not None and not models.is_dir():
        raise LoadFailed(f"RENDERQ_MODELS_DIR is {models}, which is not a folder")
    folder = models and models / setup.spec.id
    return str(folder) if folder and folder.is_dir() else None


def _give_up(setup: Setup, record: Record, error: Exception) -> NoReturn:
    message = describe(error)
    # What the pipeline reports on purpose needs no traceback; anything else does.
    _log.log(
        logging.DEBUG if isinstance(error, PipelineError) else logging.ERROR,
        "worker.preparation_failed",
        exc_info=error,
    )
    sys.stderr.write(f"renderq worker: {setup.spec.id} could not be made ready: {message}\n")
    sys.stderr.flush()
    record.failed(message)
    setup.board.cells.failed = 1
    time.sleep(FAREWELL_S)
    os._exit(LOAD_FAILED)


def describe(error: BaseException) -> str:
    """One line about an error for a person who does not see the traceback."""
    if isinstance(error, PipelineError):
        return error.message
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


class Record:
    """Keeps the worker's row current; a database that does not answer never stops a load."""

    def __init__(self, database: Database, worker_id: str) -> None:
        self._database = database
        self._worker_id = worker_id

    def begin(self) -> None:
        self._write(
            child_pid=os.getpid(), state=WorkerState.LOADING, preparation=[], error=None, current_job_id=None
        )

    def step(self, step: PreparationStep) -> None:
        """Note what the engine reports."""
        self.note(step.name, step.state, step.seconds, step.detail)

    def note(
        self, name: str, state: str, seconds: float | None = None, detail: Mapping[str, object] | None = None
    ) -> None:
        """Note the start or the end of one step of the preparation."""
        noted = {"name": name, "state": state, "seconds": seconds, "detail": dict(detail or {})}
        _log.info("worker.preparation", **noted)
        try:
            with self._database.transaction() as session:
                workers.note_step(session, self._worker_id, noted)
                if state == "started":
                    workers.update_worker(session, self._worker_id, state=_STATES[name])
        except DATABASE_ERRORS as error:
            _log.warning("worker.row_not_written", error=describe(error))

    def timed(self, name: str, work: Callable[[], Mapping[str, object]]) -> None:
        """Do ``work`` and note it, with its seconds and what it tells; one of the same name is replaced."""
        started = time.monotonic()
        detail = work()
        self.note(name, "done", round(time.monotonic() - started, 3), detail)

    def ready(self) -> None:
        self._write(state=WorkerState.READY)

    def failed(self, message: str) -> None:
        self._write(state=WorkerState.FAILED, error=message)

    def _write(self, **changes: Unpack[WorkerChanges]) -> None:
        try:
            with self._database.transaction() as session:
                workers.update_worker(session, self._worker_id, **changes)
        except DATABASE_ERRORS as error:
            _log.warning("worker.row_not_written", error=describe(error))
