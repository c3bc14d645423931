"""How one job is cached."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cache import CacheConfig, CacheDecision, decide_cache, forced
from policy.mask import step_mask
from policy.model_spec import ModelSpec
from policy.options import STATIC_PRESETS
from policy.resolve import Policy
from tests.policy.parts import CPU, FLUX, SCHNELL, WAN2, gpu, planned, resolved, with_policy
from tests.policy.parts import UNFITTED as TINY


def policy_of(spec: ModelSpec, **flags: object) -> Policy:
    return resolved(spec, flags, hardware=CPU if spec is TINY else gpu())


def decided(
    spec: ModelSpec = TINY, flags: dict[str, object] | None = None, steps: tuple[int, ...] = (), **fields: Any
) -> CacheDecision:
    plan = planned(spec, **fields)
    return decide_cache(plan, spec, policy_of(spec, **(flags or {})), steps or (plan.num_inference_steps,))


def only(decision: CacheDecision) -> CacheConfig:
    assert decision.configs is not None
    (config,) = decision.configs
    return config


def test_by_default_a_job_is_cached_with_the_balanced_mask_one_block_and_a_first_order_predictor() -> None:
    decision = decided()
    config = only(decision)
    assert config.mask == step_mask("balanced", 24)
    assert (config.steps, config.fn, config.bn, config.warmup_steps, config.taylorseer) == (24, 1, 0, 4, 1)
    assert decision.preset == "balanced"
    assert decision.reason == '"balanced", as the worker has it (default); 9 of 24 steps are reused'


@pytest.mark.parametrize("preset", STATIC_PRESETS)
@pytest.mark.parametrize("steps", [8, 12, 24, 50])
def test_a_job_may_ask_for_a_preset(preset: str, steps: int) -> None:
    decision = decided(cache=preset, num_inference_steps=steps)
    assert only(decision).mask == step_mask(preset, steps)
    assert decision.preset == preset
    assert "as the job asks" in decision.reason


@pytest.mark.parametrize("flags", [{}, {"cache": True}, {"cache_preset": "adaptive"}, {"cache_scm": "4:1:1"}])
def test_off_never_mounts(flags: dict[str, object]) -> None:
    decision = decided(flags=flags, cache="off")
    assert (decision.configs, decision.preset) == (None, None)
    assert decision.reason == "the job asks for no cache"


def test_the_worker_may_turn_the_cache_off_for_jobs_that_do_not_ask() -> None:
    decision = decided(flags={"cache": False})
    assert decision.configs is None
    assert decision.reason == "the worker's cache is off (flag: given as --no-cache)"


def test_a_job_that_asks_outranks_a_worker_whose_cache_is_off() -> None:
    decision = decided(flags={"cache": False}, cache="fast")
    assert only(decision).mask == step_mask("fast", 24)
    assert "as the job asks, which outranks the worker's cache=false (flag)" in decision.reason


def test_the_default_with_too_few_steps_means_no_cache_and_says_why() -> None:
    decision = decided(num_inference_steps=6)
    assert decision.configs is None
    assert decision.reason == '6 steps are too few for "balanced" to reuse one'
    assert only(decided(num_inference_steps=7)).mask == (1, 1, 1, 1, 1, 0, 1)


def test_few_step_checkpoints_are_not_cached_unless_somebody_asks() -> None:
    assert decided(SCHNELL).reason == "the worker's cache is off (model: set in the model's file)"
    assert decided(SCHNELL, {"cache": True}).reason == '4 steps are too few for "balanced" to reuse one'
    assert only(decided(SCHNELL, cache="balanced", num_inference_steps=8)).mask == (1, 1, 1, 1, 1, 0, 1, 1)


def test_cuda_graphs_and_a_cache_never_meet() -> None:
    flags = {"compile": True, "compile_mode": "reduce-overhead", "cache": False}
    for choice in ("default", "balanced"):
        decision = decided(FLUX, flags, cache=choice)
        assert decision.configs is None
    assert "CUDA graphs" in decided(FLUX, flags, cache="balanced").reason


def test_the_adaptive_preset_has_no_mask_but_a_threshold() -> None:
    decision = decided(flags={"cache_preset": "adaptive"})
    config = only(decision)
    assert (config.mask, config.threshold, config.max_consecutive, config.taylorseer) == (None, 0.12, 3, 0)
    assert config.warmup_steps == 4
    assert "residual below 0.12" in decision.reason
    assert decided(flags={"cache_preset": "adaptive"}, num_inference_steps=5).configs is None
    assert only(decided(flags={"cache_preset": "adaptive"}, num_inference_steps=6)).may_reuse


def test_knobs_reach_the_config() -> None:
    flags = {
        "cache_preset": "adaptive",
        "cache_fn": 2,
        "cache_bn": 1,
        "cache_warmup_steps": 6,
        "cache_threshold": 0.3,
        "cache_max_consecutive": 2,
        "cache_taylorseer": 2,
    }
    config = only(decided(flags=flags))
    assert config == CacheConfig(24, None, 2, 1, 6, 0.3, 2, 2, separate_cfg=False)


def test_a_lead_in_moves_the_presets_mask() -> None:
    decision = decided(flags={"cache_warmup_steps": 10})
    assert only(decision).mask == step_mask("10:1:1", 24)
    assert only(decision).warmup_steps == 10
    assert decision.preset == "custom"


def test_an_own_mask_replaces_the_presets() -> None:
    decision = decided(flags={"cache_scm": "8:1:2"})
    assert only(decision).mask == step_mask("8:1:2", 24)
    assert only(decision).warmup_steps == 8
    assert decision.preset == "custom"


def test_a_mask_in_digits_is_used_for_jobs_of_its_length_and_no_other() -> None:
    digits = "1111" + "10" * 9 + "11"
    assert only(decided(flags={"cache_scm": digits})).mask == tuple(map(int, digits))
    for steps in (23, 25):
        assert decided(flags={"cache_scm": digits}, num_inference_steps=steps).configs is None


def test_a_jobs_preset_replaces_the_workers_mask_but_not_what_belongs_to_the_model() -> None:
    flags = {"cache_scm": "8:1:2", "cache_fn": 2, "cache_bn": 1, "cache_taylorseer": 0}
    config = only(decided(flags=flags, cache="balanced"))
    assert config.mask == step_mask("balanced", 24)
    assert (config.fn, config.bn, config.taylorseer, config.warmup_steps) == (2, 1, 0, 4)
    adaptive = only(decided(flags={"cache_preset": "adaptive"}, cache="fast"))
    assert (adaptive.mask, adaptive.taylorseer) == (step_mask("fast", 24), 1)


def test_the_cache_is_told_when_a_step_makes_two_transformer_calls() -> None:
    assert only(decided()).separate_cfg is False
    assert only(decided(guidance_scale=3)).separate_cfg is True
    assert only(decided(FLUX)).separate_cfg is False


def test_equal_work_has_an_equal_key_and_other_work_another() -> None:
    key = only(decided())
    assert hash(key) == hash(only(decided(prompt="a boat", seed=9, n=3)))
    others = [
        decided(num_inference_steps=25),
        decided(guidance_scale=3),
        decided(cache="fast"),
        decided(flags={"cache_fn": 2}),
        decided(flags={"cache_taylorseer": 2}),
    ]
    assert len({key, *map(only, others)}) == 6


def test_under_a_mask_the_unused_numbers_do_not_split_the_key() -> None:
    spec = with_policy(TINY, cache_threshold=0.5, cache_max_consecutive=9)
    assert only(decided(spec, {"cache_preset": "balanced"})) == only(decided())


def test_each_transformer_gets_a_mask_of_its_own_steps() -> None:
    decision = decided(WAN2, steps=(13, 27))
    assert decision.configs is not None
    assert [config.mask for config in decision.configs] == [
        step_mask("balanced", count) for count in (13, 27)
    ]
    assert "4 of 13 steps are reused and 11 of 27 steps are reused" in decision.reason
    assert all(config.separate_cfg for config in decision.configs)


def test_a_transformer_with_few_steps_computes_them_all_beside_one_that_reuses() -> None:
    decision = decided(WAN2, steps=(3, 37))
    assert decision.configs is not None
    assert decision.configs[0].mask == (1, 1, 1)
    assert decision.configs[1].may_reuse
    assert decided(WAN2, steps=(3, 3)).reason == '3 + 3 steps are too few for "balanced" to reuse one'


def test_the_second_transformer_follows_the_first_unless_told_otherwise() -> None:
    flags = {"cache_fn": 3, "secondary_cache_preset": "fast", "secondary_cache_taylorseer": 0}
    decision = decided(WAN2, flags, steps=(20, 20))
    assert decision.configs is not None
    first, second = decision.configs
    assert (first.mask, first.fn, first.taylorseer) == (step_mask("balanced", 20), 3, 1)
    assert (second.mask, second.fn, second.taylorseer) == (step_mask("fast", 20), 3, 0)
    assert decision.preset == "balanced+fast"


def test_the_second_transformer_follows_every_knob_of_the_first() -> None:
    flags = {"cache_scm": "6:1:3", "cache_fn": 2, "cache_bn": 1, "cache_taylorseer": 2}
    decision = decided(WAN2, flags, steps=(20, 20))
    assert decision.configs is not None
    assert decision.configs[0] == decision.configs[1]
    policy = policy_of(WAN2, **flags)
    assert policy["secondary_cache_scm"] == "6:1:3"
    assert policy.options["secondary_cache_scm"].source == "flag"
    assert policy.options["secondary_cache_scm"].reason.startswith("follows cache_scm")


def test_a_lead_in_of_the_second_transformer_alone_moves_its_mask_alone() -> None:
    decision = decided(WAN2, {"secondary_cache_warmup_steps": 9}, steps=(20, 20))
    assert decision.configs is not None
    assert [config.mask for config in decision.configs] == [step_mask("4:1:1", 20), step_mask("9:1:1", 20)]


def test_a_jobs_preset_holds_for_both_transformers() -> None:
    decision = decided(WAN2, {"secondary_cache_preset": "quality"}, steps=(20, 20), cache="fast")
    assert decision.configs is not None
    assert {config.mask for config in decision.configs} == {step_mask("fast", 20)}
    assert decision.preset == "fast"


def test_the_steps_of_every_transformer_have_to_be_told() -> None:
    with pytest.raises(ValueError, match="has 2 transformers, not 1"):
        decided(WAN2, steps=(40,))


@given(st.integers(1, 50), st.sampled_from(["default", *STATIC_PRESETS]))
def test_a_mask_is_never_shorter_than_the_steps(steps: int, cache: str) -> None:
    plan = planned(TINY).model_copy(update={"num_inference_steps": steps, "cache": cache})
    decision = decide_cache(plan, TINY, policy_of(TINY), (steps,))
    if decision.configs is not None:
        mask = only(decision).mask
        assert mask is not None
        assert len(mask) == steps
        assert 0 in mask


@pytest.mark.parametrize("steps", [3, 4, 8])
@pytest.mark.parametrize("preset", ["balanced", "adaptive"])
def test_a_warm_up_computes_reuses_and_computes_again(preset: str, steps: int) -> None:
    config = forced(only(decided(flags={"cache_preset": preset, "cache_fn": 2}, guidance_scale=3)), steps)
    assert config.mask == (*[1] * (steps - 2), 0, 1)
    assert config.steps == steps
    assert config.warmup_steps <= steps - 2
    assert (config.fn, config.separate_cfg) == (2, True)


def test_two_steps_are_too_few_to_warm_up_a_reused_one() -> None:
    with pytest.raises(ValueError, match="at least 3 steps"):
        forced(only(decided()), 2)
