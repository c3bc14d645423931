"""The page about the HTTP API names every call, field and code; its examples run with those of all pages."""

from pathlib import Path

import pytest

from api.body import BODY_LIMIT_BYTES, DEPTH_LIMIT, OBJECTS_LIMIT
from api.bulk_requests import NAME_LIMIT, BatchOrder, ScheduleOrder
from api.bulk_schemas import BatchView, FiringView, ScheduleView
from api.errors import PROBLEMS
from api.file_names import BUILT_IN
from api.prefer import WAIT_LIMIT_S
from api.routes.schedules import MOST_SLOTS
from api.schemas import JobView
from api.tiles import ROWS_PER_PAGE
from api.upload import UPLOAD_LIMIT_BYTES
from core.schedules import GRACE_S
from policy.bulk import MAX_ROWS
from policy.request import RenderRequest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http-api.md").read_text(encoding="utf-8")
BULK = (DOCS / "bulk.md").read_text(encoding="utf-8")


def test_every_code_stands_in_the_table_with_its_status_and_meaning() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
    table = [row for row in rows if row.split("|")[2].strip().isdecimal()]
    assert table == [f"| `{code}` | {status} | {meaning} |" for code, (status, meaning) in PROBLEMS.items()]


@pytest.mark.parametrize("field", RenderRequest.model_fields)
def test_every_field_of_a_request_is_explained(field: str) -> None:
    assert f"`{field}`" in PAGE


@pytest.mark.parametrize("field", sorted(set(JobView.model_fields) - {"object", "id"}))
def test_every_field_of_a_job_is_named(field: str) -> None:
    assert f"`{field}`" in PAGE


@pytest.mark.parametrize(
    "field",
    sorted(
        {
            name
            for model in (BatchOrder, BatchView, ScheduleOrder, ScheduleView, FiringView)
            for name in model.model_fields
        }
        - {"object", "id"}
    ),
)
def test_every_field_of_batches_and_schedules_is_named(field: str) -> None:
    assert f"`{field}`" in PAGE


def test_the_limits_of_batches_are_those_of_the_code() -> None:
    assert f"{UPLOAD_LIMIT_BYTES // 1024**2} MiB" in PAGE
    assert f"{MAX_ROWS:,} rows" in PAGE
    assert f"{ROWS_PER_PAGE} rows a page" in PAGE
    assert f"up to {NAME_LIMIT} characters" in PAGE
    assert f"missed; {GRACE_S} unless given" in PAGE
    assert f"up to {MOST_SLOTS} next slots" in PAGE
    assert f"{OBJECTS_LIMIT:,} objects" in BULK
    assert all(f"`{{{name}}}`" in PAGE for name in BUILT_IN)


def test_the_limits_are_those_of_the_code() -> None:
    assert f"{BODY_LIMIT_BYTES // 1024} kB" in PAGE
    assert f"{DEPTH_LIMIT} levels" in PAGE
    assert f"({WAIT_LIMIT_S} at most)" in PAGE
