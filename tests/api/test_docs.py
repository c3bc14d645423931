"""The page about the HTTP API names every call, field and code; its examples run with those of all pages."""

from pathlib import Path

import pytest

from api.body import BODY_LIMIT_BYTES, DEPTH_LIMIT
from api.errors import PROBLEMS
from api.prefer import WAIT_LIMIT_S
from api.schemas import JobView
from policy.request import RenderRequest

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


def test_every_code_stands_in_the_table_with_its_status_and_meaning() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
    table = [row for row in rows if row.split("|")[2].strip().isdecimal()]
    assert table == [f"| `{code}` | {status} | {meaning} |" for code, (status, meaning) in PROBLEMS.items()]


@pytest.mark.parametrize("field", RenderRequest.model_fields)
def test_every_field_of_a_request_is_explained(field: str) -> None:
    assert f"`{field}`" in PAGE


@pytest.mark.parametrize(
    "field", sorted(set(JobView.model_fields) - {"object", "batch_id", "schedule_id", "id"})
)
def test_every_field_of_a_job_is_named(field: str) -> None:
    assert f"`{field}`" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    assert f"{BODY_LIMIT_BYTES // 1024} kB" in PAGE
    assert f"{DEPTH_LIMIT} levels" in PAGE
    assert f"({WAIT_LIMIT_S} at most)" in PAGE
