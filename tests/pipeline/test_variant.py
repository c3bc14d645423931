"""One way of running a model, measured in this process; `tests/cli/test_benchmodel.py` uses fresh ones."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.engine import Engine
from pipeline.variant import measure_variant, plan_requests, save_pictures
from policy.catalogue import Catalogue
from policy.errors import InvalidRequest
from policy.model_spec import ModelSpec
from policy.variants import Variant
from tests.fixtures.models import resolved

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_a_compiled_way_reports_its_compiles_times_memory_and_pictures(
    tiny_spec: ModelSpec, tmp_path: Path
) -> None:
    policy = resolved(tiny_spec, **Variant("regional", "balanced").flags())
    plans = plan_requests(tiny_spec, Catalogue.load(), ["a house", "a boat"], 3)
    figures, renderings = measure_variant(Engine(tiny_spec, policy, device="cpu", backend="eager"), plans)
    assert figures["compiles_warmup"] > 0
    assert (figures["compiles_requests"], figures["compiled_requests"]) == (0, 3)
    assert figures["effective"]["compile_scope"] == "regional"
    assert all(figures["cached_steps"])
    assert set(figures["preparation_s"]) == {"load", "mount", "compile", "warmup"}
    assert figures["ready_s"] == pytest.approx(sum(figures["preparation_s"].values()), abs=0.01)
    assert min(figures["requests_s"]) <= figures["steady_s"] <= max(figures["requests_s"])
    assert figures["first_s"] == renderings[0].timings_ms["total"] / 1000
    assert 100 < figures["memory_mb"] < 8000
    save_pictures(renderings, tmp_path)
    pictures = [np.load(tmp_path / f"{number}.npy") for number in range(3)]
    assert {(picture.shape, str(picture.dtype)) for picture in pictures} == {((64, 64, 3), "uint8")}
    assert np.array_equal(pictures[2], np.asarray(renderings[2].pictures[0].image))


def test_prompts_are_used_in_turn_with_a_seed_of_its_own_for_each(tiny_spec: ModelSpec) -> None:
    plans = plan_requests(tiny_spec, Catalogue.load(), ["a house", "a boat"], 3)
    assert [plan.prompt for plan in plans] == ["a house", "a boat", "a house"]
    assert len({plan.seed for plan in plans}) == 3
    with pytest.raises(InvalidRequest, match="at most 1000 characters"):
        plan_requests(tiny_spec, Catalogue.load(), ["x" * 1001], 1)
