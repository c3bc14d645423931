"""The job field `quality`: which kernels may draw it."""

import pytest

from policy.cells import typed_cells
from policy.plan import RenderPlan
from tests.policy.parts import TINY, parsed, planned, refused


def test_a_job_allows_exact_kernels_alone_unless_it_says_otherwise() -> None:
    assert parsed().quality == planned().quality == "lossless"
    assert parsed(quality="high").quality == planned(quality="high").quality == "high"


@pytest.mark.parametrize(("value", "nearest"), [("losless", "lossless"), ("hihg", "high"), (1, None)])
def test_any_other_word_is_refused_with_the_nearest(value: object, nearest: str | None) -> None:
    error = refused(quality=value)["quality"]
    assert error.limit == ["lossless", "high"]
    assert error.nearest == nearest


def test_a_cell_of_a_table_is_read() -> None:
    assert typed_cells({"quality": " high ", "prompt": "a"}) == {"quality": "high", "prompt": "a"}


def test_a_plan_of_an_older_version_was_drawn_with_exact_kernels() -> None:
    body = planned(TINY, quality="high").model_dump(mode="json")
    assert RenderPlan.model_validate(body).quality == "high"
    del body["quality"]
    assert RenderPlan.model_validate(body).quality == "lossless"
