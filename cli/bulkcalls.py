"""The calls for batches and schedules."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from cli.bulkorder import TableFile, as_call, given
from cli.client import Client

Batch = dict[str, Any]
Schedule = dict[str, Any]
Page = dict[str, Any]
UPLOAD_S = 180.0
"""Longest wait for the answer to an order: ten thousand rows are checked before it comes."""
FAILURES_READ = 100


class Batches:
    """Batches of one server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def submit(self, fields: Mapping[str, object], file: TableFile | None, key: str) -> Batch:
        """Send an order once, however often it has to be tried."""
        headers = {"Idempotency-Key": key}
        arguments = as_call(given(fields), file)
        return self.client.ask("POST", "/v1/batches", headers=headers, timeout=UPLOAD_S, **arguments)

    def get(self, batch_id: str) -> Batch:
        return self.client.ask("GET", path_of("batches", batch_id))

    def page(self, **query: object) -> Page:
        return self.client.ask("GET", "/v1/batches", params=given(query))

    def act(self, batch_id: str, verb: str) -> Batch:
        """Pause, resume, cancel or retry; a retry is asked once, the others may be repeated."""
        ask = self.client.ask_once if verb == "retry" else self.client.ask
        return ask("POST", path_of("batches", batch_id, verb))

    def follow(self, batch_id: str, rest: Callable[[float], None] = time.sleep) -> Iterator[Batch]:
        """The batch as it is now and after each rest, up to and including its end."""
        return self.client.follow_path(path_of("batches", batch_id), rest)

    def failures(self, batch_id: str, count: int) -> list[dict[str, Any]]:
        """Its failed and expired jobs that ended last, the latest first."""
        found = [
            job
            for status in ("failed", "expired")
            for job in self.client.list_jobs(batch=batch_id, status=status, limit=FAILURES_READ)["data"]
        ]
        return sorted(found, key=lambda job: str(job.get("finished_at")), reverse=True)[:count]


class Schedules:
    """Schedules of one server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def add(self, fields: Mapping[str, object], file: TableFile | None) -> Schedule:
        return self.client.ask_once("POST", "/v1/schedules", timeout=UPLOAD_S, **as_call(given(fields), file))

    def edit(self, schedule_id: str, fields: Mapping[str, object], file: TableFile | None) -> Schedule:
        """Change the named fields and the rows, where there is a file; None takes a field away."""
        path = path_of("schedules", schedule_id)
        return self.client.ask("PATCH", path, timeout=UPLOAD_S, **as_call(fields, file))

    def get(self, schedule_id: str) -> Schedule:
        return self.client.ask("GET", path_of("schedules", schedule_id))

    def page(self, **query: object) -> Page:
        return self.client.ask("GET", "/v1/schedules", params=given(query))

    def remove(self, schedule_id: str) -> None:
        self.client.call("DELETE", path_of("schedules", schedule_id))

    def act(self, schedule_id: str, verb: str) -> dict[str, Any]:
        """Enable, disable or fire; firing is asked once, the others may be repeated."""
        ask = self.client.ask_once if verb == "fire" else self.client.ask
        return ask("POST", path_of("schedules", schedule_id, verb))

    def next(self, schedule_id: str, count: int) -> dict[str, Any]:
        return self.client.ask("GET", path_of("schedules", schedule_id, "next"), params={"count": count})

    def firings(self, schedule_id: str, **query: object) -> Page:
        return self.client.ask("GET", path_of("schedules", schedule_id, "firings"), params=given(query))


def path_of(kind: str, thing_id: str, *more: str) -> str:
    """The address of a batch or schedule, from which no id can lead away."""
    return "/".join(("/v1", kind, quote(thing_id, safe=""), *more))
