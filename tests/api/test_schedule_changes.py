"""Schedules: changed, switched off and on, removed."""

from datetime import datetime
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.schedule_submission import change_schedule
from api.upload import Order, Upload
from core.errors import Conflict
from core.tables import Schedule
from tests.api.parts import BASE, assert_problem
from tests.api.schedule_parts import CSV, TEMPLATE, Call, fired, made, soon


@pytest.fixture
def make(client: TestClient) -> Call:
    return partial(made, client)


def test_a_new_rule_takes_the_place_of_the_old_one(client: TestClient, make: Call) -> None:
    schedule = make()
    changed = client.patch(schedule["urls"]["self"], json={"every_s": 600}).json()
    assert (changed["cron"], changed["every_s"], changed["timezone"]) == (None, 600, "Europe/Berlin")
    assert changed["next_at"] != schedule["next_at"]
    assert changed["updated_at"] > schedule["updated_at"]
    at = soon(days=2)
    changed = client.patch(schedule["urls"]["self"], json={"at": at.isoformat()}).json()
    assert (changed["every_s"], datetime.fromisoformat(changed["next_at"])) == (None, at)


def test_a_new_zone_moves_the_slots(client: TestClient, make: Call) -> None:
    schedule = make(window={"start": "22:00", "end": "06:00"})
    changed = client.patch(schedule["urls"]["self"], json={"timezone": "America/New_York"}).json()
    assert (changed["cron"], changed["window"]["timezone"]) == ("0 22 * * *", "America/New_York")
    assert changed["next_at"] != schedule["next_at"]


def test_plain_fields_are_changed_and_the_rest_stays(client: TestClient, make: Call) -> None:
    schedule = make(window={"start": "22:00", "end": "06:00"})
    change = {"name": "x", "misfire": "skip", "misfire_grace_s": 5, "window": None}
    changed = client.patch(schedule["urls"]["self"], json=change).json()
    moved = {"updated_at": changed["updated_at"]}
    assert changed == schedule | change | moved


def test_new_rows_are_checked_with_the_template_that_stands(client: TestClient, make: Call) -> None:
    schedule = make()
    url = schedule["urls"]["self"]
    assert client.patch(url, json={"rows": [{"colour": "blue"}], "grid": {"n": [1, 2]}}).json()["total"] == 2
    problem = assert_problem(client.patch(url, json={"rows": [{"size": "small"}]}), 422, "invalid_request")
    assert "template.prompt" in [error["field"] for error in problem["errors"]]
    problem = assert_problem(
        client.patch(url, json={"template": {"model": "tiny", "prompt": "{size}"}}), 422, "invalid_request"
    )
    assert client.patch(url, json={"grid": None}).json()["total"] == 1
    batch = fired(client, schedule)["batch"]
    assert client.get(batch["urls"]["jobs"]).json()["data"][0]["plan"]["prompt"] == "a blue house"


def test_the_rows_are_replaced_by_a_file(client: TestClient, make: Call) -> None:
    schedule = make()
    changed = client.patch(
        schedule["urls"]["self"], data={"name": "from a file"}, files={"file": ("a.csv", CSV + b"blue,7\n")}
    )
    assert (changed.status_code, changed.json()["total"], changed.json()["name"]) == (200, 3, "from a file")
    batch = fired(client, schedule)["batch"]
    assert client.get(batch["urls"]["jobs"]).json()["data"][0]["plan"]["seed"] == 7


def test_a_change_that_another_one_overtakes_is_refused(client: TestClient, make: Call) -> None:
    schedule = make()

    def parse() -> Order:
        assert client.patch(schedule["urls"]["self"], json={"rows": [{"colour": "blue"}]}).status_code == 200
        return Order({"template": {"model": "tiny", "prompt": "{colour}"}}, None, {})

    with pytest.raises(Conflict, match="changed by another call"):
        change_schedule(client.app.state.services, schedule["id"], Upload(parse), BASE)  # type: ignore[attr-defined]
    assert client.get(schedule["urls"]["self"]).json()["template"] == TEMPLATE


def test_a_change_of_nothing_is_a_change_of_nothing(client: TestClient, make: Call) -> None:
    schedule = make()
    changed = client.patch(schedule["urls"]["self"], json={}).json()
    assert changed | {"updated_at": schedule["updated_at"]} == schedule


def test_a_schedule_is_disabled_and_enabled(client: TestClient, make: Call) -> None:
    schedule = make()
    disabled = client.post(schedule["urls"]["disable"]).json()
    assert (disabled["enabled"], disabled["next_at"]) == (False, None)
    enabled = client.post(schedule["urls"]["enable"]).json()
    assert (enabled["enabled"], enabled["next_at"]) == (True, schedule["next_at"])


def test_a_date_that_has_passed_cannot_be_enabled(
    client: TestClient, make: Call, committed_database: Any
) -> None:
    schedule = make(at=soon(hours=1).isoformat(), enabled=False)
    with committed_database.transaction() as session:
        session.execute(update(Schedule).where(Schedule.id == schedule["id"]).values(at=soon(hours=-1)))
    assert_problem(client.post(schedule["urls"]["enable"]), 409, "conflict")
    assert_problem(client.patch(schedule["urls"]["self"], json={"enabled": True}), 409, "conflict")


def test_a_removed_schedule_leaves_its_batches(client: TestClient, make: Call) -> None:
    schedule = make()
    batch = fired(client, schedule)["batch"]
    answer = client.delete(schedule["urls"]["self"])
    assert (answer.status_code, answer.content) == (204, b"")
    assert_problem(client.get(schedule["urls"]["self"]), 404, "not_found")
    left = client.get(batch["urls"]["self"]).json()
    assert (left["status"], left["schedule_id"]) == ("running", None)
