"""Two systems whose workers are killed by `benchmarks.recovery`: renderq and a plain Celery, seen alike.

Both are real processes under the product's supervisor, which starts again what was killed.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

import redis

from benchmarks.late_celery import CONF, FOLDER, QUEUE, TASK, end_of, make_app, notes_of
from benchmarks.noop_worker import MODEL
from benchmarks.procfs import children
from benchmarks.queue_overhead import HOST, START_S, python_program
from cli import programs
from cli.client import TERMINAL, Client
from cli.datafolder import DataFolder
from cli.stack import choose_port, get_json
from cli.supervisor import Supervisor

UNACKED = ("unacked", "unacked_index")
"""Where kombu keeps the messages that a worker has taken and not acknowledged."""
PING_S = 1.0
SETTLE_S = 5.0


class Killable(Protocol):
    """A system with one long job at a time."""

    supervisor: Supervisor

    def is_ready(self) -> bool:
        """Whether every worker could take a job."""

    def begin(self, seconds: float) -> str:
        """Order a job of so many seconds; its name."""

    def runs(self, job: str) -> list[float]:
        """When each run of the job began, in seconds since the epoch."""

    def holder(self, job: str) -> int | None:
        """The process of the worker, not of its child, that runs it now."""

    def is_expected(self, job: str) -> bool:
        """Whether the system still means to run the job, or runs it."""

    def end(self, job: str) -> None:
        """Let nothing of the job be left."""


class Renderq:
    """The product, but for the engine of its workers."""

    def __init__(
        self, supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str], workers: int
    ) -> None:
        self.supervisor = supervisor
        supervisor.run_once(programs.migration_program(folder, environment))
        port = choose_port(HOST, 0)
        supervisor.add(programs.api_program(folder, environment, HOST, port, trusted=False))
        supervisor.add(programs.upkeep_program(folder, environment))
        self._names = [f"worker-{number}" for number in range(workers)]
        for name in self._names:
            supervisor.add(python_program(folder, environment, name, "-m", "benchmarks.slow_worker"))
        url = f"http://{HOST}:{port}"
        supervisor.wait(lambda: get_json(url, "/healthz") is not None, "the API", START_S)
        self._client = Client(url)

    def is_ready(self) -> bool:
        ready = {worker["pid"] for worker in self._client.workers() if worker["state"] == "ready"}
        return all(pid_of(self.supervisor, name) in ready for name in self._names)

    def begin(self, seconds: float) -> str:
        request = {"model": MODEL, "prompt": str(seconds), "seed": 1}
        return str(self._client.submit(request, str(uuid.uuid4()))["id"])

    def runs(self, job: str) -> list[float]:
        tries = self._client.ask("GET", f"/v1/jobs/{job}/attempts")["data"]
        return [datetime.fromisoformat(attempt["started_at"]).timestamp() for attempt in tries]

    def holder(self, job: str) -> int | None:
        pids = [worker["pid"] for worker in self._client.workers() if worker["current_job_id"] == job]
        return pids[0] if pids else None

    def is_expected(self, job: str) -> bool:
        return self._client.get(job)["status"] not in TERMINAL

    def end(self, job: str) -> None:
        if self.is_expected(job):
            self._client.cancel(job)
        self.supervisor.wait(lambda: not self.is_expected(job), "the end of a cancelled job", START_S)


class PlainCelery:
    """Prefork workers with one child each, and a task that is acknowledged when it has ended."""

    def __init__(
        self,
        supervisor: Supervisor,
        folder: DataFolder,
        environment: Mapping[str, str],
        workers: int,
        conf: Mapping[str, object],
    ) -> None:
        self.supervisor = supervisor
        url = environment["RENDERQ_REDIS_URL"]
        self._folder, self._count = folder.root, 0
        self._app = make_app(url, conf)
        self._redis = redis.Redis(unix_socket_path=url.removeprefix("redis+socket://"))
        more = {**environment, FOLDER: str(folder.root), CONF: json.dumps(conf)}
        self._names = [f"celery-{number}" for number in range(workers)]
        for name in self._names:
            options = ("-c", "1", "-n", f"{name}@%h", "-Q", QUEUE)
            arguments = ("-m", "celery", "-A", "benchmarks.late_celery", "worker", *options)
            supervisor.add(python_program(folder, more, name, *arguments))

    def is_ready(self) -> bool:
        return len(self._app.control.ping(timeout=PING_S) or ()) == len(self._names)

    def begin(self, seconds: float) -> str:
        self._count += 1
        self._app.send_task(TASK, (self._count, seconds))
        return str(self._count)

    def runs(self, job: str) -> list[float]:
        return [float(began) for _, began in self._notes(job)]

    def holder(self, job: str) -> int | None:
        child = int(self._notes(job)[-1][0])
        parents = (pid_of(self.supervisor, name) for name in self._names)
        return next((pid for pid in parents if pid and child in children(pid)), None)

    def is_expected(self, job: str) -> bool:
        del job  # the only one
        return self._redis.llen(QUEUE) + self._redis.hlen(UNACKED[0]) > 0

    def end(self, job: str) -> None:
        end_of(self._folder, int(job)).touch()
        pause(self.supervisor, SETTLE_S, lambda: not self.is_expected(job))
        self._redis.delete(QUEUE, *UNACKED)

    def _notes(self, job: str) -> list[list[str]]:
        notes = notes_of(self._folder, int(job))
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def pid_of(supervisor: Supervisor, name: str) -> int | None:
    process = supervisor.children[name].process
    return process.pid if process else None


def pause(supervisor: Supervisor, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
    """Look after the processes for so long, or until something holds."""
    deadline = time.monotonic() + seconds
    supervisor.wait(lambda: time.monotonic() > deadline or until(), "the end of a pause")
