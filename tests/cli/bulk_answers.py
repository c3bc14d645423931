"""Batches, schedules and firings as the API answers them."""

from typing import Any

BATCH = "0199d5c0-bbbb-7bbb-8ccc-0123456789ab"
SCHEDULE = "0199d5c0-cccc-7bbb-8ccc-0123456789ab"
NO_JOBS = dict.fromkeys(("queued", "in_progress", "completed", "failed", "canceled", "expired"), 0)
WINDOW = {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}


def batch(
    status: str = "running", total: int = 8, *, counts: dict[str, int] | None = None, **more: Any
) -> Any:
    answer: dict[str, Any] = {
        "id": BATCH,
        "object": "batch",
        "name": "night pictures",
        "status": status,
        "total": total,
        "counts": NO_JOBS | (counts or {"queued": total}),
        "window": None,
        "schedule_id": None,
        "due_at": None,
        "created_at": "2026-01-01T00:00:00Z",
        "finished_at": None,
        "cancel_requested_at": None,
        "eta": None,
        "template": {"model": "tiny", "prompt": "a {colour} {thing}"},
        "warnings": [],
        "urls": {},
    }
    return answer | more


def schedule(**more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": SCHEDULE,
        "object": "schedule",
        "name": "nightly",
        "cron": "0 22 * * *",
        "at": None,
        "every_s": None,
        "timezone": "Europe/Berlin",
        "window": WINDOW,
        "misfire": "skip",
        "misfire_grace_s": 300,
        "enabled": True,
        "template": {"model": "tiny", "prompt": "a {colour} {thing}"},
        "grid": None,
        "total": 8,
        "next_at": "2026-12-01T21:00:00Z",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "last_firing": None,
        "urls": {},
    }
    return answer | more


def firing(**more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": "0199d5c0-dddd-7bbb-8ccc-0123456789ab",
        "object": "firing",
        "schedule_id": SCHEDULE,
        "kind": "manual",
        "outcome": "fired",
        "due_at": "2026-11-30T21:00:00Z",
        "fired_at": "2026-11-30T21:00:01Z",
        "missed": 0,
        "batch_id": BATCH,
        "error": None,
    }
    return answer | more
