"""Every field and every kind of mistake: refused before anything is stored, with the field named."""

import json
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from tests.api.parts import ORDER, assert_problem

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("database_kind"),
]

TOO_LONG = 10**19
FIELDS: list[tuple[str, object]] = [
    # model
    ("model", None),
    ("model", 5),
    ("model", ["tiny"]),
    ("model", ""),
    ("model", "tinny"),
    ("model", "TINY"),
    ("model", "../tiny"),
    # texts
    ("prompt", None),
    ("prompt", ""),
    ("prompt", "  \n"),
    ("prompt", 5),
    ("prompt", True),
    ("prompt", ["a house"]),
    ("prompt", {"text": "a house"}),
    ("prompt", "a\0house"),
    ("prompt", "x" * 1001),
    ("prompt", "x" * 50_000),
    ("negative_prompt", 5),
    ("negative_prompt", "fog\0"),
    ("negative_prompt", "x" * 1001),
    # sizes
    *[
        (side, value)
        for side in ("width", "height")
        for value in (0, -64, 63, 65, 48, 80, 1.5, 64.5, "64", True, [])
    ],
    ("width", TOO_LONG),
    # steps and guidance
    *[("num_inference_steps", value) for value in (0, -1, 3, 51, 2.5, "24", True, [], TOO_LONG)],
    *[("guidance_scale", value) for value in (-1, 0.9, 10.1, "1", True, [], 1e300)],
    # seed and n
    *[("seed", value) for value in (-1, 2**53, 2**64, 1.5, "7", True, [])],
    *[("n", value) for value in (0, -1, 9, "2", 2.5, True, None, [], 10**9)],
    # only for videos
    ("num_frames", 9),
    ("num_frames", "9"),
    ("fps", 24),
    ("fps", 2.5),
    # words
    *[("cache", value) for value in ("on", "", "BALANCED", True, 1, None)],
    *[("output_format", value) for value in ("gif", "", "mp4", "PNG", 1, True)],
    *[("priority", value) for value in ("urgent", "", 0, None)],
    # times
    *[("queue_timeout_s", value) for value in (0, -1, "10", True, 1e12, [])],
    *[("run_timeout_s", value) for value in (0, -1, "10", True, 1e12, [])],
    # metadata
    *[("metadata", value) for value in (None, "a", [], ["a"], {"a": 1}, {"a": None}, {"a": {"b": "c"}})],
    ("metadata", {"a": "x" * 513}),
    ("metadata", {"k" * 513: "x"}),
    ("metadata", {"": "x"}),
    ("metadata", {"a\0": "x"}),
    ("metadata", {"a": "x\0"}),
    ("metadata", {f"k{index}": "x" for index in range(17)}),
    # unknown
    ("promt", "a house"),
    ("steps", 4),
    ("webhook_url", "http://127.0.0.1/"),
    ("id", "1"),
    ("a\0b", 1),
    ("", 1),
    ("x" * 5000, 1),
]


@pytest.mark.parametrize(("field", "value"), FIELDS, ids=lambda part: repr(part)[:30])
def test_a_bad_field_is_named_and_nothing_is_stored(
    shared_client: TestClient, count_jobs: Callable[[], int], field: str, value: object
) -> None:
    problem = assert_problem(
        shared_client.post("/v1/jobs", json=ORDER | {field: value}), 422, "invalid_request"
    )
    named = {error["field"].partition(".")[0].partition("[")[0] for error in problem["errors"]}
    assert named == {_as_shown(field)}
    assert len(json.dumps(problem)) < 6000
    assert count_jobs() == 0


def _as_shown(field: str) -> str:
    return {"a\0b": "a\\x00b", "": '""', "x" * 5000: "x" * 80 + "…"}.get(field, field)


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(client: TestClient, missing: str) -> None:
    body = {name: value for name, value in ORDER.items() if name != missing}
    problem = assert_problem(client.post("/v1/jobs", json=body), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [missing]


def test_all_mistakes_are_told_at_once(client: TestClient) -> None:
    body = ORDER | {"width": 65, "n": 0, "seed": -1, "colour": "red"}
    problem = assert_problem(client.post("/v1/jobs", json=body), 422, "invalid_request")
    assert {error["field"] for error in problem["errors"]} == {"width", "n", "seed", "colour"}


def test_a_wrong_size_names_the_multiple_and_the_nearest_sizes(client: TestClient) -> None:
    body = ORDER | {"model": "flux.1-dev", "width": 1000}
    problem = assert_problem(client.post("/v1/jobs", json=body), 422, "invalid_request")
    (error,) = problem["errors"]
    assert error["field"] == "width"
    assert error["limit"] == 16
    assert error["nearest"] == [992, 1008]
    for number in ("16", "992", "1008"):
        assert number in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("n", 9, 8),
        ("n", 0, 1),
        ("num_inference_steps", 51, 50),
        ("num_inference_steps", 3, 4),
        ("width", 65, 64),
    ],
)
def test_one_past_a_limit_names_the_limit_as_the_nearest(
    client: TestClient, field: str, value: int, nearest: int
) -> None:
    problem = assert_problem(client.post("/v1/jobs", json=ORDER | {field: value}), 422, "invalid_request")
    assert problem["errors"][0]["nearest"] == nearest
    assert str(nearest) in problem["errors"][0]["message"]


def test_an_unknown_model_lists_those_that_are_offered(client: TestClient) -> None:
    problem = assert_problem(client.post("/v1/jobs", json=ORDER | {"model": "tinny"}), 422, "invalid_request")
    assert "tiny" in problem["errors"][0]["limit"]
    assert problem["errors"][0]["nearest"] == "tiny"


def test_a_cache_preset_needs_its_steps(client: TestClient) -> None:
    body = ORDER | {"cache": "quality", "num_inference_steps": 4}
    problem = assert_problem(client.post("/v1/jobs", json=body), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == ["cache"]
    needed = problem["errors"][0]["limit"]
    assert str(needed) in problem["detail"]
    body["num_inference_steps"] = needed
    assert client.post("/v1/jobs", json=body).status_code == 202


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00", "\\udfff\\ud800"])
@pytest.mark.parametrize(
    "template",
    [
        '{"model":"tiny","prompt":"a %s"}',
        '{"model":"tiny","prompt":"a","metadata":{"%s":"b"}}',
        '{"model":"%s"}',
        '{"model":"tiny","prompt":"a","%s":1}',
        '{"model":"tiny","prompt":"a","output_format":"%s"}',
    ],
)
def test_half_a_surrogate_pair_is_refused(
    shared_client: TestClient, count_jobs: Callable[[], int], template: str, escape: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = shared_client.post("/v1/jobs", content=template % escape, headers=headers)
    assert_problem(answer, 422, "invalid_request")
    assert count_jobs() == 0


MALFORMED: list[tuple[bytes, int, str]] = [
    (b"", 400, "malformed_json"),
    (b"   ", 400, "malformed_json"),
    (b"{", 400, "malformed_json"),
    (b"[]", 400, "malformed_json"),
    (b"null", 400, "malformed_json"),
    (b"true", 400, "malformed_json"),
    (b"5", 400, "malformed_json"),
    (b'"tiny"', 400, "malformed_json"),
    (b'{"model":"tiny"} x', 400, "malformed_json"),
    (b"{'model':'tiny'}", 400, "malformed_json"),
    (b'{"model":"tiny",}', 400, "malformed_json"),
    (b'\xef\xbb\xbf{"model":"tiny"}', 400, "malformed_json"),
    (b'{"prompt":"\xff"}', 400, "malformed_json"),
    (b'{"prompt":"\xed\xa0\x80"}', 400, "malformed_json"),
    (b'{"prompt":"a\x00b"}', 400, "malformed_json"),
    ('{"model":"tiny"}'.encode("utf-16"), 400, "malformed_json"),
    (b'{"guidance_scale":NaN}', 400, "malformed_json"),
    (b'{"guidance_scale":Infinity}', 400, "malformed_json"),
    (b'{"guidance_scale":-Infinity}', 400, "malformed_json"),
    (b'{"guidance_scale":1e999}', 400, "malformed_json"),
    (b'{"seed":' + b"9" * 5000 + b"}", 400, "malformed_json"),
    (b'{"model":"tiny","model":"tiny"}', 400, "duplicate_key"),
    (b'{"metadata":{"a":"b","\\u0061":"c"}}', 400, "duplicate_key"),
    (b'{"a":' * 17 + b"1" + b"}" * 17, 400, "malformed_json"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed_json"),
    (b"[" * 250_000, 400, "malformed_json"),
    (json.dumps({f"k{index}": 1 for index in range(101)}).encode(), 400, "malformed_json"),
    (b'{"prompt":"' + b"x" * 262_144 + b'"}', 413, "body_too_large"),
]


@pytest.mark.parametrize(("raw", "status", "code"), MALFORMED, ids=lambda part: repr(part)[:30])
def test_a_malformed_body_is_refused_and_nothing_is_stored(
    shared_client: TestClient, count_jobs: Callable[[], int], raw: bytes, status: int, code: str
) -> None:
    answer = shared_client.post("/v1/jobs", content=raw, headers={"Content-Type": "application/json"})
    assert_problem(answer, status, code)
    assert count_jobs() == 0


def test_the_first_byte_that_is_not_utf8_is_named(shared_client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = shared_client.post("/v1/jobs", content=b'{"prompt":"\xff"}', headers=headers)
    assert "not UTF-8: byte 11" in assert_problem(answer, 400, "malformed_json")["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
    ids=str,
)
def test_another_media_type_is_refused(
    shared_client: TestClient, count_jobs: Callable[[], int], headers: dict[str, str]
) -> None:
    answer = shared_client.post("/v1/jobs", content=json.dumps(ORDER), headers=headers)
    assert_problem(answer, 415, "unsupported_media_type")
    assert count_jobs() == 0


def test_a_body_that_hides_its_length_is_cut_off_too(client: TestClient) -> None:
    answer = client.post(
        "/v1/jobs", content=iter([b"x" * 1000] * 300), headers={"Content-Type": "application/json"}
    )
    assert_problem(answer, 413, "body_too_large")


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON", 'application/json; charset="UTF-8"']
)
def test_json_is_taken_however_its_type_is_spelt(client: TestClient, content_type: str) -> None:
    answer = client.post("/v1/jobs", content=json.dumps(ORDER), headers={"Content-Type": content_type})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 8),
        ("num_inference_steps", 4),
        ("num_inference_steps", 50),
        ("guidance_scale", 1),
        ("guidance_scale", 10.0),
        ("seed", 0),
        ("seed", 2**53 - 1),
        ("prompt", "x" * 1000),
        ("output_format", "webp"),
        ("priority", "low"),
        ("queue_timeout_s", 0.5),
        ("metadata", {f"k{index}": "x" * 512 for index in range(16)}),
        ("negative_prompt", None),
        ("seed", None),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_a_value_at_its_limit_is_taken(client: TestClient, field: str, value: object) -> None:
    answer = client.post("/v1/jobs", json=ORDER | {field: value})
    assert answer.status_code == 202, answer.text
    assert answer.json()["request"][field] == value
