"""What a job asks of the cache is what is mounted for it; the faults of other systems are not here."""

from typing import Any

import pytest

from pipeline.cache_terms import contexts_of
from pipeline.engine import Engine
from policy.job_cache import CacheKnobs
from policy.mask import choose_mask
from policy.plan import make_plan
from policy.request import parse_request
from tests.fixtures.models import pixels, planned
from tests.policy.parts import CATALOGUE


def context(engine: Engine) -> Any:
    (found,) = contexts_of(engine.parts[0].transformer)
    return found


def zeros(mask: str) -> list[int]:
    return [step for step, digit in enumerate(mask) if digit == "0"]


def expected(engine: Engine, preset: str, steps: int) -> str:
    percent = {"quality": 27, "balanced": 50, "fast": 58}[preset]
    return "".join(map(str, choose_mask(f"fit:{percent}", steps, engine.spec.curve).mask))


@pytest.mark.parametrize("fields", [{}, {"cache": "fast"}, {"cache": {"scm": "4:1:1"}}], ids=str)
def test_a_job_that_names_no_steps_is_sized_by_the_models_own_and_not_by_the_warm_up(
    tiny_engine: Engine, fields: dict[str, Any]
) -> None:
    request = parse_request({"model": "tiny", "prompt": "a house", "seed": 1, **fields}, CATALOGUE)
    for _ in range(2):  # mounted anew, then refreshed
        record = tiny_engine.render(make_plan(request, tiny_engine.spec, lambda: 1)).acceleration
        (mask,) = record["masks"]  # type: ignore[misc]
        assert len(mask) == record["steps"] == context(tiny_engine).cache_config.num_inference_steps == 24
        assert context(tiny_engine).get_cached_steps() == zeros(mask)
        assert record["cached_steps"] == len(zeros(mask)) > 0


def test_the_first_job_after_the_warm_up_is_cached_as_the_second(tiny_engine: Engine, tiny_spec: Any) -> None:
    engine = Engine(tiny_spec, tiny_engine.policy, device="cpu")
    engine.prepare()
    records = [engine.render(planned(tiny_spec)).acceleration for _ in range(2)]
    engine.close()
    assert records[0] == records[1]
    assert records[0]["masks"] == [expected(tiny_engine, "balanced", 24)]


@pytest.mark.parametrize("cache", ["balanced", {"preset": "fast"}, {"scm": "4:1:2"}], ids=str)
def test_a_longer_job_never_keeps_the_mask_of_a_shorter_one(tiny_engine: Engine, cache: Any) -> None:
    for steps in (8, 24, 13, 30, 8):
        cached = CacheKnobs(**cache) if isinstance(cache, dict) else cache
        plan = planned(tiny_engine.spec, num_inference_steps=steps, cache=cached)
        record = tiny_engine.render(plan).acceleration
        (mask,) = record["masks"]  # type: ignore[misc]
        assert len(mask) == steps
        assert context(tiny_engine).get_cached_steps() == zeros(mask)


@pytest.mark.parametrize("preset", ["quality", "balanced", "fast"])
def test_a_preset_is_mounted_as_its_mask_and_stays_a_static_one(tiny_engine: Engine, preset: str) -> None:
    for seed in range(3):
        record = tiny_engine.render(planned(tiny_engine.spec, cache=preset, seed=seed)).acceleration
        config = context(tiny_engine).cache_config
        assert config.steps_computation_policy == "static"
        assert record["masks"] == ["".join(map(str, config.steps_computation_mask))]
        assert record["masks"] == [expected(tiny_engine, preset, 24)]


def test_guidance_that_is_switched_off_takes_its_step_accounting_along(tiny_engine: Engine) -> None:
    plain = planned(tiny_engine.spec, num_inference_steps=8)
    guided = planned(tiny_engine.spec, num_inference_steps=8, guidance_scale=3.0)
    first = pixels(tiny_engine.render(plain))
    for plan, calls in ((guided, 16), (plain, 8), (guided, 16)):
        rendering = tiny_engine.render(plan)
        assert context(tiny_engine).get_accumulated_executed_steps() == 8
        assert context(tiny_engine).get_accumulated_transformer_executed_steps() == calls
    assert pixels(tiny_engine.render(plain)) == first != pixels(rendering)


def test_knobs_of_a_job_are_mounted_and_told_and_gone_with_it(tiny_engine: Engine) -> None:
    before = pixels(tiny_engine.render(planned(tiny_engine.spec)))
    knobs = {"scm": "6:1:2", "fn": 3, "bn": 2, "taylorseer": 0}
    record = tiny_engine.render(planned(tiny_engine.spec, cache=knobs)).acceleration
    config = context(tiny_engine).cache_config
    assert (config.Fn_compute_blocks, config.Bn_compute_blocks) == (3, 2)
    assert context(tiny_engine).calibrator_config is None
    assert (record["cache"], record["mounted"], record["compiled"], record["compiles"]) == (
        "custom",
        True,
        False,
        0,
    )
    assert (record["masks"], record["cached_steps"], record["steps"]) == (
        ["111111100100100100100101"],
        11,
        24,
    )
    off = tiny_engine.render(planned(tiny_engine.spec, cache="off")).acceleration
    assert (off["cache"], off["mounted"], off["masks"], off["cached_steps"]) == ("off", False, [], 0)
    assert pixels(tiny_engine.render(planned(tiny_engine.spec))) == before


def test_where_a_threshold_decides_no_mask_is_told(tiny_engine: Engine, tiny_spec: Any) -> None:
    from tests.fixtures.models import resolved

    engine = Engine(tiny_spec, resolved(tiny_spec, cache_preset="adaptive", warmup=False), device="cpu")
    engine.prepare()
    record = engine.render(planned(tiny_spec)).acceleration
    engine.close()
    assert (record["mounted"], record["masks"]) == (True, [None])
