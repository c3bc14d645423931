"""The promises, checked when all is over: from the inside in SQL and files, from the outside through the API.

The checks read tables and answers and nothing of the code that wrote them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from core.artifacts import ArtifactStore
from core.db import Database
from core.errors import AppError
from core.lifecycle import ENDED_BATCH, TERMINAL, JobState, Outcome
from core.tables import Artifact, Attempt, Batch, Event, IdempotencyKey, Job
from tests.faults.callers import Told
from tests.faults.orders import is_ours

ENDINGS = frozenset({"job.completed", "job.failed", "job.canceled", "job.expired"})
FAILS_BY_FAULTS = frozenset({"worker_lost"})
"""The stand-in engine never fails; a job that lost its worker three times does."""
PAGE = 100


@dataclass(slots=True)
class Findings:
    """Broken promises in words, by kind; every list is empty when all is well."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        """Each one once."""
        return list(dict.fromkeys([*self.lost, *self.doubled, *self.changed, *self.other]))


def check_inside(database: Database, artifacts: ArtifactStore, findings: Findings) -> dict[str, str]:
    """Check rows and files; returns the state of every job."""
    with database.reading() as session:
        jobs = session.scalars(select(Job).options(selectinload(Job.artifacts))).all()
        attempts, events = _by_job(session, Attempt), _by_job(session, Event)
        _check_keys(session, jobs, findings)
        _check_batches(session, jobs, findings)
    for job in jobs:
        tries = sorted(attempts[job.id], key=lambda attempt: attempt.number)
        _check_end(job, findings)
        _check_attempts(job, tries, findings)
        _check_events(job, sorted(events[job.id], key=lambda event: event.id), findings)
        for artifact in job.artifacts:
            _check_file(artifact, artifacts, findings)
    return {job.id: str(job.state) for job in jobs}


def _by_job(session: Session, table: type[Any]) -> defaultdict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for row in session.scalars(select(table)):
        found[row.job_id].append(row)
    return found


def _check_keys(session: Session, jobs: Sequence[Job], findings: Findings) -> None:
    """Every single job was sent under a key, and each key stands for one order."""
    keys = session.scalars(select(IdempotencyKey)).all()
    ordered = {key.job_id for key in keys if key.job_id}
    singles = {job.id for job in jobs if job.batch_id is None}
    findings.doubled += [f"the job {job_id} has no key of its own" for job_id in singles - ordered]
    batches = set(session.scalars(select(Batch.id)))
    unkeyed = batches - {key.batch_id for key in keys}
    findings.doubled += [f"the batch {batch_id} has no key of its own" for batch_id in unkeyed]


def _check_batches(session: Session, jobs: Sequence[Job], findings: Findings) -> None:
    rows: defaultdict[str | None, list[Job]] = defaultdict(list)
    for job in jobs:
        if not job.superseded:
            rows[job.batch_id].append(job)
    for batch in session.scalars(select(Batch)):
        mine = rows[batch.id]
        if len(mine) != batch.total:
            kind = findings.lost if len(mine) < batch.total else findings.doubled
            kind.append(f"the batch {batch.id} of {batch.total} rows has {len(mine)} jobs")
        if batch.state not in ENDED_BATCH and all(job.state in TERMINAL for job in mine):
            findings.other.append(f"the batch {batch.id} is {batch.state} though all its jobs have ended")


def _check_end(job: Job, findings: Findings) -> None:
    if job.state not in TERMINAL:
        findings.lost.append(f"{job.id} is still {job.state}, attempt {job.attempt}")
    if job.state == JobState.COMPLETED and len(job.artifacts) != job.plan["n"]:
        findings.lost.append(f"{job.id} has {len(job.artifacts)} of {job.plan['n']} files")
    if job.state != JobState.COMPLETED and job.artifacts:
        findings.doubled.append(f"{job.id} is {job.state} and has files")
    if job.state == JobState.FAILED and job.error_code not in FAILS_BY_FAULTS:
        findings.other.append(f"{job.id} failed with {job.error_code}: {job.error_message}")


def _check_attempts(job: Job, attempts: Sequence[Attempt], findings: Findings) -> None:
    if [attempt.number for attempt in attempts] != list(range(1, job.attempt + 1)):
        findings.other.append(f"{job.id} is at attempt {job.attempt} and has {len(attempts)}")
    completed = [attempt.number for attempt in attempts if attempt.outcome == Outcome.COMPLETED]
    made = {artifact.attempt for artifact in job.artifacts}
    if len(completed) > 1 or len(made) > 1:
        findings.doubled.append(f"{job.id} has results of the attempts {completed} and files of {made}")
    elif made and made != set(completed):
        findings.doubled.append(f"{job.id} completed with {completed} and has files of {made}")
    if (job.state == JobState.COMPLETED) != bool(completed):
        findings.changed.append(f"{job.id} is {job.state} and the completed attempts are {completed}")
    if job.state in TERMINAL and any(attempt.outcome is None for attempt in attempts):
        findings.other.append(f"{job.id} is {job.state} and an attempt still runs")


def _check_events(job: Job, events: Sequence[Event], findings: Findings) -> None:
    types = [event.type for event in events]
    ends = [number for number, kind in enumerate(types) if kind in ENDINGS]
    if ends and ends[0] != len(types) - 1:
        findings.changed.append(f"{job.id} went on after its end: {types[ends[0] :]}")
    if ends and types[ends[0]] != f"job.{job.state}":
        findings.changed.append(f"{job.id} is {job.state} and its end was told as {types[ends[0]]}")
    if not ends and job.state in TERMINAL:
        findings.changed.append(f"{job.id} is {job.state} and no event told so")


def _check_file(artifact: Artifact, artifacts: ArtifactStore, findings: Findings) -> None:
    try:
        content = artifacts.get(artifact.key)
    except AppError as error:
        findings.lost.append(f"{artifact.key}: {error}")
        return
    if hashlib.sha256(content).hexdigest() != artifact.sha256 or len(content) != artifact.bytes:
        findings.doubled.append(f"{artifact.key} is not the file that its row tells of")


def check_files(database: Database, artifacts: ArtifactStore) -> list[str]:
    """Files that belong to no completed attempt; upkeep has removed them once it has tidied up."""
    with database.reading() as session:
        known = set(session.scalars(select(Artifact.key)))
    return [key for key in artifacts.list() if key not in known]


def check_outside(url: str, told: Told, states: Mapping[str, str], findings: Findings) -> None:
    """Check what a caller sees against what callers were told and what the rows say."""
    with httpx2.Client(base_url=url, timeout=30.0) as http:
        seen = {job["id"]: job for job in _pages(http, "/v1/jobs")}
        batches = {batch["id"]: batch for batch in _pages(http, "/v1/batches")}
        for job in seen.values():
            told.note_end(job)
            _check_content(http, job, findings)
    findings.lost += [
        f"the job {job_id} was accepted and is not there" for job_id in told.jobs.keys() - seen.keys()
    ]
    findings.lost += [
        f"the batch {key} was accepted and is not there" for key in told.batches.keys() - batches.keys()
    ]
    findings.doubled += [
        f"the job {job_id} was made and no caller was told of it"
        for job_id, job in seen.items()
        if job["batch_id"] is None and is_ours(job["request"]) and job_id not in told.jobs
    ]
    shown = {job_id: job["status"] for job_id, job in seen.items()}
    findings.other += [
        f"{job_id} is shown as {shown.get(job_id)} and is {states.get(job_id)}"
        for job_id in shown.keys() | states.keys()
        if shown.get(job_id) != states.get(job_id)
    ]
    findings.other += [
        f"the batch {batch['id']} of {batch['total']} counts {batch['counts']}"
        for batch in batches.values()
        if sum(batch["counts"].values()) != batch["total"]
    ]
    findings.doubled += told.doubled
    findings.changed += told.changed
    findings.other += told.troubles


def _pages(http: httpx2.Client, path: str) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        query = {"limit": PAGE} | ({"after": after} if after else {})
        page = http.get(path, params=query).raise_for_status().json()
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["last_id"]


def _check_content(http: httpx2.Client, job: Mapping[str, Any], findings: Findings) -> None:
    for artifact in job["artifacts"]:
        answer = http.get(f"/v1/jobs/{job['id']}/content", params={"index": artifact["index"]})
        if answer.status_code != 200:
            findings.lost.append(f"{job['id']}: its file is answered with {answer.status_code}")
        elif hashlib.sha256(answer.content).hexdigest() != artifact["sha256"]:
            findings.doubled.append(f"{job['id']}: its file is not the one that it tells of")
