"""A schedule to be made, and what is done with it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.testclient import TestClient

TEMPLATE = {"model": "tiny", "prompt": "a {colour} house"}
RULE = {"cron": "0 22 * * *", "timezone": "Europe/Berlin"}
BODY = {"name": "nightly", "template": TEMPLATE, "rows": [{"colour": "red"}, {"colour": "white"}]}
CSV = b"colour,seed\nred,\nwhite,5\n"
Call = Callable[..., dict[str, Any]]


def made(client: TestClient, **fields: object) -> dict[str, Any]:
    """Make a schedule that fires at night, or by the rule that is given."""
    rule = {} if {"at", "every_s"} & fields.keys() else RULE
    answer = client.post("/v1/schedules", json=BODY | rule | fields)
    assert answer.status_code == 201, answer.text
    schedule: dict[str, Any] = answer.json()
    return schedule


def soon(**later: float) -> datetime:
    return (datetime.now(UTC) + timedelta(**later)).replace(microsecond=0)


def fired(client: TestClient, schedule: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(schedule["urls"]["fire"])
    assert answer.status_code == 202, answer.text
    firing: dict[str, Any] = answer.json()
    return firing
