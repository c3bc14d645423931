"""The calls for batches and schedules."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from cli.bulkorder import TableFile, as_call, given
from cli.client import LISTS, Client, Job
from cli.exits import CliError
from cli.terminal import printable

Batch = dict[str, Any]
Schedule = dict[str, Any]
Page = dict[str, Any]
UPLOAD_S = 180.0
"""Longest wait for the answer to an order: ten thousand rows are checked before it comes."""
FAILURES_READ = 100
SCHEDULES_READ = 100


class Batches:
    """Batches of one server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def submit(self, fields: Mapping[str, object], file: TableFile | None, key: str) -> Batch:
        """Send an order so that it becomes one batch."""
        return self.client.order("/v1/batches", key, timeout=UPLOAD_S, **as_call(given(fields), file))

    def get(self, batch_id: str) -> Batch:
        return self.client.ask("GET", path_of("batches", batch_id))

    def page(self, **query: object) -> Page:
        return self.client.ask("GET", "/v1/batches", params=given(query))

    def act(self, batch_id: str, verb: str) -> Batch:
        """Pause, resume, cancel or retry; a retry is asked once, the others may be repeated."""
        path = path_of("batches", batch_id, verb)
        if verb == "retry":
            return self.client.ask_once("POST", path, look=f"renderq batch get {printable(batch_id)}")
        return self.client.ask("POST", path)

    def follow(self, batch_id: str, rest: Callable[[float], None] = time.sleep) -> Iterator[Batch]:
        """The batch as it is now and after each rest, up to and including its end."""
        return self.client.follow_path(path_of("batches", batch_id), rest)

    def failures(self, batch_id: str, count: int) -> list[dict[str, Any]]:
        """Its failed and expired jobs that ended last, the latest first; the newest alone of each row."""
        found = [
            job
            for status in ("failed", "expired")
            for job in self.client.list_jobs(batch=batch_id, status=status, limit=FAILURES_READ)["data"]
        ]
        return sorted(newest_of_rows(found), key=_ended_at, reverse=True)[:count]


def newest_of_rows(jobs: Iterable[Job]) -> list[Job]:
    """The jobs without those whose row was ordered again later; an id that is greater is newer."""
    newest: dict[object, Job] = {}
    for job in sorted(jobs, key=lambda job: str(job["id"])):
        row = job.get("batch_row")
        newest[job["id"] if row is None else row] = job
    return list(newest.values())


def _ended_at(job: Job) -> tuple[datetime, str]:
    """A key that orders jobs by their end; one that does not tell its end comes first."""
    ended = job.get("finished_at")
    moment = datetime.fromisoformat(ended) if ended else datetime.min.replace(tzinfo=UTC)
    return moment, str(job["id"])


class Schedules:
    """Schedules of one server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def add(self, fields: Mapping[str, object], file: TableFile | None) -> Schedule:
        call = as_call(given(fields), file)
        look = LISTS["/v1/schedules/"]
        return self.client.ask_once("POST", "/v1/schedules", look=look, timeout=UPLOAD_S, **call)

    def edit(self, schedule_id: str, fields: Mapping[str, object], file: TableFile | None) -> Schedule:
        """Change the named fields and the rows, where there is a file; None takes a field away."""
        path = path_of("schedules", schedule_id)
        return self.client.ask("PATCH", path, timeout=UPLOAD_S, **as_call(fields, file))

    def get(self, schedule_id: str) -> Schedule:
        return self.client.ask("GET", path_of("schedules", schedule_id))

    def page(self, **query: object) -> Page:
        return self.client.ask("GET", "/v1/schedules", params=given(query))

    def enabled_named(self, name: str) -> Schedule | None:
        """The newest enabled schedule of this name; None when there is none."""
        after = None
        while True:
            page = self.page(limit=SCHEDULES_READ, after=after)
            for schedule in page.get("data", []):
                if schedule.get("name") == name and schedule.get("enabled"):
                    return dict(schedule)
            if not page.get("has_more"):
                return None
            after = page["last_id"]

    def remove(self, schedule_id: str) -> None:
        self.client.call("DELETE", path_of("schedules", schedule_id))

    def act(self, schedule_id: str, verb: str) -> dict[str, Any]:
        """Enable, disable or fire; firing is asked once, the others may be repeated."""
        path = path_of("schedules", schedule_id, verb)
        if verb == "fire":
            return self.client.ask_once(
                "POST", path, look=f"renderq schedule firings {printable(schedule_id)}"
            )
        return self.client.ask("POST", path)

    def next(self, schedule_id: str, count: int) -> dict[str, Any]:
        return self.client.ask("GET", path_of("schedules", schedule_id, "next"), params={"count": count})

    def firings(self, schedule_id: str, **query: object) -> Page:
        return self.client.ask("GET", path_of("schedules", schedule_id, "firings"), params=given(query))


def path_of(kind: str, thing_id: str, *more: str) -> str:
    """The address of a batch or schedule, from which no id can lead away; an empty one is refused."""
    if not thing_id.strip():
        raise CliError(f"the id is empty; `{LISTS[f'/v1/{kind}/']}` shows the ids")
    return "/".join(("/v1", kind, quote(thing_id, safe=""), *more))
