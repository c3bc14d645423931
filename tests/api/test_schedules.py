"""Schedules: made, read, fired by hand, and looked at ahead and back."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from core.ids import new_id
from core.tables import Schedule
from tests.api.parts import BASE, assert_problem
from tests.api.schedule_parts import BODY, CSV, RULE, TEMPLATE, Call, fired, made, soon

ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)


@pytest.fixture
def make(client: TestClient) -> Call:
    return partial(made, client)


# --- make -----------------------------------------------------------------------------------------------


def test_a_schedule_is_made_with_its_next_slot(client: TestClient) -> None:
    window = {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}
    answer = client.post("/v1/schedules", json=BODY | RULE | {"window": window})
    assert answer.status_code == 201
    schedule = answer.json()
    url = f"{BASE}/v1/schedules/{schedule['id']}"
    assert answer.headers["location"] == schedule["urls"]["self"] == url
    assert schedule["object"] == "schedule"
    assert (schedule["name"], schedule["cron"], schedule["timezone"]) == (
        "nightly",
        "0 22 * * *",
        "Europe/Berlin",
    )
    assert (schedule["window"], schedule["template"], schedule["total"]) == (window, TEMPLATE, 2)
    assert (schedule["misfire"], schedule["misfire_grace_s"], schedule["enabled"]) == ("once", 60, True)
    for absent in ("at", "every_s", "grid", "last_firing"):
        assert schedule[absent] is None, absent
    assert datetime.fromisoformat(schedule["next_at"]) > datetime.now(UTC)
    verbs = ("enable", "disable", "fire", "next", "firings")
    links = {"self": url, "batches": f"{BASE}/v1/batches?schedule={schedule['id']}"}
    assert schedule["urls"] == links | {verb: f"{url}/{verb}" for verb in verbs}
    assert client.get(url).json() == schedule


def test_a_schedule_is_made_from_a_file_with_every_part(client: TestClient) -> None:
    parts = {
        "name": "nachts",
        "every_s": "3600",
        "misfire": "skip",
        "misfire_grace_s": "120",
        "enabled": "false",
        "template": json.dumps(TEMPLATE),
        "grid": '{"n": [1, 2]}',
        "window": json.dumps({"start": "01:00", "end": "02:00", "timezone": "UTC"}),
    }
    answer = client.post("/v1/schedules", data=parts, files={"file": ("a.csv", CSV)})
    assert answer.status_code == 201, answer.text
    schedule = answer.json()
    assert (schedule["every_s"], schedule["misfire"], schedule["misfire_grace_s"]) == (3600, "skip", 120)
    assert (schedule["enabled"], schedule["next_at"], schedule["total"]) == (False, None, 4)
    batch = fired(client, schedule)["batch"]
    jobs = client.get(batch["urls"]["jobs"]).json()["data"]
    assert sorted((job["batch_row"], job["plan"]["n"]) for job in jobs) == [(1, 1), (2, 2), (3, 1), (4, 2)]
    assert jobs[0]["plan"]["seed"] == 5


def test_one_date_is_kept_in_utc(make: Call) -> None:
    at = soon(days=3)
    schedule = make(at=at.isoformat())
    assert datetime.fromisoformat(schedule["at"]) == datetime.fromisoformat(schedule["next_at"]) == at
    local = make(at=f"{at:%Y}-12-31T22:00", timezone="Europe/Berlin")
    assert datetime.fromisoformat(local["next_at"]) == datetime(at.year, 12, 31, 21, tzinfo=UTC)


def test_a_window_without_a_zone_takes_that_of_the_schedule(client: TestClient, make: Call) -> None:
    schedule = make(window={"start": "22:00", "end": "06:00"})
    assert schedule["window"] == {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}
    assert fired(client, schedule)["batch"]["window"] == schedule["window"]


BAD: list[tuple[dict[str, object], str]] = [
    ({"cron": "0 0 22 * * *"}, "cron"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"cron": ""}, "cron"),
    ({"cron": 5}, "cron"),
    ({"cron": None}, "cron"),
    ({"timezone": "Europe/Berlim"}, "timezone"),
    ({"timezone": None}, "timezone"),
    ({"cron": "0 22 * * *", "every_s": 3600}, "every_s"),
    ({"cron": None, "every_s": 0}, "every_s"),
    ({"cron": None, "every_s": 59}, "every_s"),
    ({"cron": None, "every_s": "3600"}, "every_s"),
    ({"cron": None, "every_s": 10**12}, "every_s"),
    ({"cron": None, "at": "2020-01-01T00:00:00Z"}, "at"),
    ({"cron": None, "timezone": None, "at": "2099-01-01T00:00:00"}, "at"),
    ({"cron": None, "at": "tomorrow"}, "at"),
    ({"misfire": "twice"}, "misfire"),
    ({"misfire": None}, "misfire"),
    ({"misfire_grace_s": 0}, "misfire_grace_s"),
    ({"misfire_grace_s": 1.5}, "misfire_grace_s"),
    ({"enabled": "yes"}, "enabled"),
    ({"name": None}, "name"),
    ({"name": " "}, "name"),
    ({"window": {"start": "22:00", "end": "6"}}, "window.end"),
    ({"next_at": "2099-01-01T00:00:00Z"}, "next_at"),
    ({"rows": []}, "rows"),
    ({"template": {"model": "tiny", "prompt": "{colour.__class__}"}}, "template.prompt"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=json.dumps)
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_bad_schedule_is_refused_and_the_field_named(
    client: TestClient, database_kind: str, change: dict[str, object], field: str
) -> None:
    problem = assert_problem(client.post("/v1/schedules", json=BODY | RULE | change), 422, "invalid_request")
    assert field in [error["field"] for error in problem["errors"]]
    assert client.get("/v1/schedules").json()["data"] == []


@pytest.mark.parametrize(("change", "field"), BAD, ids=json.dumps)
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_bad_change_is_refused_and_changes_nothing(
    client: TestClient, make: Call, database_kind: str, change: dict[str, object], field: str
) -> None:
    schedule = make()
    problem = assert_problem(client.patch(schedule["urls"]["self"], json=change), 422, "invalid_request")
    assert field in [error["field"] for error in problem["errors"]]
    assert client.get(schedule["urls"]["self"]).json() == schedule


def test_what_is_wrong_with_rule_window_and_rows_is_told_at_once(client: TestClient) -> None:
    body = {"cron": "61 * * * *", "timezone": "UTC", "window": 5, "rows": [{"model": "tiny", "prompt": ""}]}
    problem = assert_problem(client.post("/v1/schedules", json=body), 422, "invalid_request")
    found = {(error["row"], error["field"]) for error in problem["errors"]}
    assert found == {(None, "name"), (None, "cron"), (None, "window"), (1, "prompt")}


# --- read -----------------------------------------------------------------------------------------------


def test_a_list_is_newest_first_with_the_latest_firing(client: TestClient, make: Call) -> None:
    ids = [make()["id"] for _ in range(3)][::-1]
    client.post(f"/v1/schedules/{ids[0]}/fire")
    firing = client.post(f"/v1/schedules/{ids[0]}/fire").json()
    first = client.get("/v1/schedules", params={"limit": 2}).json()
    assert [schedule["id"] for schedule in first["data"]] == ids[:2]
    assert first["data"][0]["last_firing"]["id"] == firing["id"]
    assert first["data"][1]["last_firing"] is None
    assert first["data"][0]["template"] is None
    second = client.get("/v1/schedules", params={"after": first["last_id"]}).json()
    assert [schedule["id"] for schedule in second["data"]] == ids[2:]


def test_the_next_slots_are_listed(client: TestClient, make: Call) -> None:
    schedule = make(every_s=3600)
    answer = client.get(schedule["urls"]["next"]).json()
    slots = [datetime.fromisoformat(slot) for slot in answer["data"]]
    assert len(slots) == 5
    assert slots[0] == datetime.fromisoformat(schedule["next_at"])
    assert {later - sooner for sooner, later in pairwise(slots)} == {timedelta(hours=1)}
    assert len(client.get(schedule["urls"]["next"], params={"count": 100}).json()["data"]) == 100
    client.post(schedule["urls"]["disable"])
    assert client.get(schedule["urls"]["next"]).json()["enabled"] is False


def test_a_date_that_has_passed_has_no_next_slot(
    client: TestClient, make: Call, committed_database: Any
) -> None:
    schedule = make(at=soon(hours=1).isoformat())
    with committed_database.transaction() as session:
        past = {"at": soon(hours=-1), "next_at": None}
        session.execute(update(Schedule).where(Schedule.id == schedule["id"]).values(**past))
    assert client.get(schedule["urls"]["next"]).json()["data"] == []
    assert client.get(schedule["urls"]["self"]).json()["next_at"] is None
    renamed = client.patch(schedule["urls"]["self"], json={"name": "old"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "old")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("?limit=0", "limit"),
        ("?after=x", "after"),
        ("?after={new}", "after"),
        ("?status=on", "status"),
        ("/{id}/next?count=0", "count"),
        ("/{id}/next?count=101", "count"),
        ("/{id}/firings?limit=101", "limit"),
        ("/{id}/firings?after={new}", "after"),
    ],
)
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_bad_query_is_refused_and_the_parameter_named(
    client: TestClient, make: Call, path: str, field: str
) -> None:
    address = "/v1/schedules" + path.format(id=make()["id"], new=new_id())
    problem = assert_problem(client.get(address), 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == [field]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/next"),
        ("GET", "/firings"),
        ("POST", "/fire"),
        ("POST", "/enable"),
        ("POST", "/disable"),
    ],
)
def test_a_schedule_that_is_not_there_is_not_found(client: TestClient, method: str, path: str) -> None:
    for schedule_id in (new_id(), "1"):
        address = f"/v1/schedules/{schedule_id}{path}"
        json_body = {"name": "x"} if method == "PATCH" else None
        assert_problem(client.request(method, address, json=json_body), 404, "not_found")


def test_a_method_that_is_not_known_is_told_with_those_that_are(client: TestClient, make: Call) -> None:
    answer = client.put(make()["urls"]["self"], json={})
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "HEAD, GET, PATCH, DELETE"


# --- fire -----------------------------------------------------------------------------------------------


def test_a_schedule_is_fired_by_hand(client: TestClient, make: Call) -> None:
    schedule = make(enabled=False)
    firing = fired(client, schedule)
    assert (firing["object"], firing["kind"], firing["outcome"], firing["missed"]) == (
        "firing",
        "manual",
        "fired",
        0,
    )
    assert (firing["schedule_id"], firing["error"]) == (schedule["id"], None)
    batch = firing["batch"]
    assert (batch["id"], batch["name"], batch["total"]) == (firing["batch_id"], "nightly", 2)
    assert batch["schedule_id"] == schedule["id"]
    assert batch["due_at"] == firing["due_at"]
    job = client.get(batch["urls"]["jobs"]).json()["data"][0]
    assert (job["batch_id"], job["schedule_id"]) == (batch["id"], schedule["id"])
    assert client.get(job["urls"]["self"]).json()["schedule_id"] == schedule["id"]
    listed = client.get(schedule["urls"]["batches"]).json()["data"]
    assert [found["id"] for found in listed] == [batch["id"]]


def test_the_history_is_newest_first_and_read_on(client: TestClient, make: Call) -> None:
    schedule = make()
    ids = [fired(client, schedule)["id"] for _ in range(3)][::-1]
    first = client.get(schedule["urls"]["firings"], params={"limit": 2}).json()
    assert [firing["id"] for firing in first["data"]] == ids[:2]
    second = client.get(schedule["urls"]["firings"], params={"after": first["last_id"]}).json()
    assert [firing["id"] for firing in second["data"]] == ids[2:]
    assert client.get(schedule["urls"]["self"]).json()["last_firing"] == first["data"][0]


def test_an_order_that_is_not_valid_any_more_is_a_firing_that_failed(
    client: TestClient, make: Call, committed_database: Any, count_jobs: Callable[[], int]
) -> None:
    schedule = make()
    with committed_database.transaction() as session:
        order = {"template": TEMPLATE | {"model": "gone"}, "rows": BODY["rows"]}
        session.execute(update(Schedule).where(Schedule.id == schedule["id"]).values(order=order))
    firing = fired(client, schedule)
    assert (firing["outcome"], firing["batch_id"], firing["batch"]) == ("failed", None, None)
    assert "gone" in firing["error"]
    assert count_jobs() == 0
