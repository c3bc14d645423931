"""An order, a worker that moves jobs in SQL, and the check of a problem document."""

import hashlib
import io
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy import update

from core import batches, store, workers
from core.artifacts import ArtifactStore, artifact_key
from core.clock import now
from core.db import Database
from core.ids import new_id
from core.store import NewArtifact
from core.tables import Worker as Row

BASE = "http://localhost"
ORDER = {"model": "tiny", "prompt": "a red house on a meadow by day", "seed": 7}


def open_client(app: FastAPI) -> TestClient:
    """Return a client that shows faults as callers see them."""
    return TestClient(app, base_url=BASE, raise_server_exceptions=False)


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


class Worker:
    """Moves jobs in SQL as a worker process does."""

    def __init__(self, database: Database, files: ArtifactStore) -> None:
        self.id = new_id()
        self._database = database
        self._files = files

    @classmethod
    def of(cls, client: TestClient) -> "Worker":
        """Return a worker on the database and the files of the client's application."""
        services = client.app.state.services
        return cls(services.database, services.artifacts)

    def register(self, state: workers.WorkerState = workers.WorkerState.READY, model: str = "tiny") -> str:
        with self._database.transaction() as session:
            workers.register_worker(
                session,
                worker_id=self.id,
                name="w1",
                host="h1",
                pid=11,
                model=model,
                queue=f"render.{model}",
                policy={
                    "model": model,
                    "options": {"cache": {"value": True, "source": "default", "reason": "r"}},
                },
                device={"device": "cpu"},
            )
            workers.note_step(
                session, self.id, {"name": "load", "state": "done", "seconds": 1.5, "detail": {}}
            )
            workers.update_worker(session, self.id, state=state)
        return self.id

    def release(self, batch_id: str, model: str = "tiny") -> None:
        """Let every held row of the batch be claimed, as the feeder does by and by."""
        with self._database.transaction() as session:
            batches.release(session, batch_id, {model: 10_000})

    def end(self, batch_id: str, *files: bytes, fail_row: int = 0, media_type: str = "image/png") -> None:
        """Bring every row of the batch to its end: ``fail_row`` fails, the others make ``files``."""
        self.release(batch_id)
        with self._database.reading() as session:
            jobs = [
                (job.id, job.batch_row)
                for job in batches.batch_jobs(session, batch_id)
                if not job.state.is_terminal
            ]
        for job_id, row in jobs:
            if row == fail_row:
                self.fail(job_id, "out_of_memory", "the GPU has no room")
            else:
                self.complete(job_id, *(files or (b"picture",)), media_type=media_type)
        with self._database.transaction() as session:
            batches.close_finished(session, [batch_id])

    def claim(self, job_id: str, step: int | None = None) -> int:
        """Take the job and report ``step`` of 24; returns the attempt."""
        with self._database.transaction() as session:
            job = store.claim(session, job_id, self.id, 30)
            assert job is not None
            attempt = job.attempt
            if step is not None:
                store.heartbeat(session, job_id, attempt, self.id, 30, step, 24)
        return attempt

    def complete(self, job_id: str, *files: bytes, media_type: str = "image/png") -> None:
        attempt = self.claim(job_id)
        made = [self._keep(job_id, attempt, index, data, media_type) for index, data in enumerate(files)]
        timings = {"encode": 1.0, "denoise": 2.0, "decode": 3.0, "save": 4.0}
        acceleration = {"cache": "balanced", "cached_steps": 9, "compiled": False, "compiles": 0}
        with self._database.transaction() as session:
            assert store.complete(session, job_id, attempt, self.id, made, timings, acceleration)

    def fail(self, job_id: str, code: str, message: str) -> None:
        attempt = self.claim(job_id)
        with self._database.transaction() as session:
            assert store.fail(session, job_id, attempt, self.id, code, message, retryable=False)

    def lose(self, job_id: str, step: int | None = None) -> None:
        """Take the job, fall silent, and have upkeep find the lease over."""
        attempt = self.claim(job_id, step)
        with self._database.transaction() as session:
            assert store.heartbeat(session, job_id, attempt, self.id, -1.0)
            assert [job.id for job in store.rescue(session)] == [job_id]

    def fall_silent(self, for_s: float) -> None:
        """Have been heard of for the last time that many seconds ago."""
        with self._database.transaction() as session:
            session.execute(update(Row).where(Row.id == self.id).values(heartbeat_at=now(-for_s)))

    def expire(self) -> None:
        """Have upkeep look an hour from now for jobs whose start deadline has passed."""
        with self._database.transaction() as session:
            assert store.expire(session, datetime.now(UTC) + timedelta(hours=1))

    def limits(self, job_id: str) -> tuple[float | None, float | None]:
        """The seconds that the job may wait, and those that a try may take."""
        with self._database.reading() as session:
            job = store.get_job(session, job_id)
            deadline = job.queue_deadline_at
            return deadline and (deadline - job.created_at).total_seconds(), job.run_timeout_s

    def hand_back(self, job_id: str) -> None:
        attempt = self.claim(job_id)
        with self._database.transaction() as session:
            assert store.hand_back(session, job_id, attempt, self.id)

    def _keep(self, job_id: str, attempt: int, index: int, data: bytes, media_type: str) -> NewArtifact:
        key = artifact_key(job_id, attempt, index, "png")
        self._files.put(key, data)
        sha256 = hashlib.sha256(data).hexdigest()
        return NewArtifact(index, key, media_type, 64, 64, len(data), sha256, 7 + index)


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """Check that ``answer`` is a whole problem document and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == f"urn:renderq:problem:{code}"
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return problem


def png(width: int = 80, height: int = 60, colour: str = "orange", **save: Any) -> bytes:
    """Return the bytes of a plain picture."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG", **save)
    return buffer.getvalue()


def send(client: TestClient, data: bytes, name: str = "picture.png") -> Any:
    """Upload a file as a form."""
    return client.post("/v1/files", files={"file": (name, data)})
