"""Over how many GPUs a job is spread: what is refused before loading, and what is derived by itself."""

from dataclasses import replace
from typing import Any

import pytest

from policy.cache import decide_cache
from policy.modes import Hardware
from policy.packages import OPTIONAL
from policy.parallel import Degrees, guides_by_default, has_branches, unsplit_context
from policy.retry import classify
from policy.weights import loaded, shared
from tests.policy.parts import (
    CATALOGUE,
    CPU,
    FLUX,
    QWEN,
    SCHNELL,
    TINY,
    WAN2,
    gpu,
    planned,
    problems,
    resolved,
)

TWO, FOUR = gpu(count=2), gpu(count=4)
NPU = Hardware("npu", "Test NPU", 2, 64.0, 60.0, supports_bf16=True, packages=tuple(OPTIONAL))
SD3, SANA = CATALOGUE["sd3.5-medium"], CATALOGUE["sana-1.6b"]
EACH = ("cfg_parallel", "context_parallel", "fsdp")


def refused(flags: dict[str, Any], spec: Any = QWEN, hardware: Hardware = TWO) -> dict[str, str]:
    return {name: error.message for name, error in problems(spec, flags, hardware=hardware).items()}


def degrees(spec: Any, hardware: Hardware, **flags: Any) -> tuple[int, int, int, str]:
    policy = resolved(spec, flags, hardware=hardware)
    return (*(policy[name] for name in EACH), policy["offload"])


# --- which family can be spread in which way ---


@pytest.mark.parametrize(
    ("model", "cfg", "context"),
    [
        ("flux.1-dev", False, True),
        ("flux.1-schnell", False, True),
        ("flux.2-klein-4b", False, True),
        ("ltx-video", True, True),
        ("pixart-sigma", True, True),
        ("qwen-image", True, True),
        ("sana-1.6b", True, False),
        ("sd3.5-medium", True, False),
        ("tiny", True, True),
        ("wan2.1-t2v-1.3b", True, True),
        ("wan2.2-t2v-a14b", True, True),
        ("z-image-turbo", False, True),
    ],
)
def test_what_a_model_allows(model: str, *, cfg: bool, context: bool) -> None:
    spec = CATALOGUE[model]
    assert (has_branches(spec), unsplit_context(spec) is None) == (cfg, context)
    assert bool(refused({"cfg_parallel": 2}, spec)) == (not cfg)
    assert bool(refused({"context_parallel": 2}, spec)) == (not context)
    assert not refused({"fsdp": 2}, spec)


def test_no_rank_is_left_without_a_token_of_an_empty_prompt() -> None:
    eight = gpu(count=8)
    assert not refused({"context_parallel": 5}, QWEN, eight)
    assert not refused({"context_parallel": 8}, FLUX, eight)
    for degree in (6, 8):
        told = problems(QWEN, {"context_parallel": degree}, hardware=eight)["context_parallel"]
        assert (told.limit, told.nearest) == (5, 5)
        assert "an empty prompt of qwen-image has 5 tokens" in told.message
    small = gpu(20, count=8)
    assert degrees(QWEN, small) == (2, 4, 8, "none")
    assert degrees(QWEN, small, cache_preset="adaptive") == (1, 1, 1, "group"), "tokens alone would be in 8"


def test_degrees_multiply_and_weights_are_shared_by_all() -> None:
    assert Degrees(2, 4, 8).world == Degrees(2, 4).world == 8
    assert Degrees(fsdp=4).world == 4
    assert Degrees().world == 1
    assert not refused({"cfg_parallel": 2, "context_parallel": 2, "fsdp": 4}, hardware=FOUR)
    told = refused({"cfg_parallel": 2, "context_parallel": 2, "fsdp": 2}, hardware=FOUR)
    assert set(told) == {"fsdp"}
    assert "use 4" in told["fsdp"]


# --- conflicts ---


@pytest.mark.parametrize("name", EACH)
def test_more_gpus_than_are_visible_are_refused(name: str) -> None:
    assert not refused({name: 2})
    told = refused({name: 2}, hardware=gpu(count=1))
    assert set(told) == {name}
    assert "needs 2 GPUs, and this worker sees 1" in told[name]
    assert "CUDA_VISIBLE_DEVICES" in told[name]


def test_a_product_of_degrees_needs_as_many_gpus() -> None:
    told = refused({"cfg_parallel": 2, "context_parallel": 2})
    assert "cfg_parallel x context_parallel needs 4 GPUs" in told["cfg_parallel"]
    assert not refused({"cfg_parallel": 2, "context_parallel": 2}, hardware=FOUR)


def test_processes_on_a_cpu_are_as_many_as_one_likes_and_other_devices_have_no_way() -> None:
    assert not refused({"context_parallel": 4}, TINY, CPU)
    assert (
        "works on several NVIDIA or AMD GPUs"
        in refused({"context_parallel": 2}, TINY, NPU)["context_parallel"]
    )


@pytest.mark.parametrize(
    ("flags", "field", "words"),
    [
        ({"cfg_parallel": 2, "cache_preset": "adaptive"}, "cache_preset", "they see different predictions"),
        ({"context_parallel": 2, "offload": "model"}, "offload", "needs them in place on each"),
        ({"fsdp": 2, "offload": "group"}, "offload", "needs them in place on each"),
        ({"fsdp": 2, "quantize": "int8"}, "quantize", "fsdp shares plain weights"),
        ({"fsdp": 2, "compile": True}, "compile", "gathers them block by block"),
        ({"context_parallel": 2, "capture": True, "cache": False}, "capture", "without asking the others"),
        ({"context_parallel": 2, "attention_backend": "flash"}, "attention_backend", "use auto or native"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(flags: dict[str, Any], field: str, words: str) -> None:
    told = refused(flags)
    assert set(told) == {field}
    assert words in told[field]


@pytest.mark.parametrize(
    "flags",
    [
        {"context_parallel": 2, "cache_preset": "adaptive"},
        {"fsdp": 2, "cache_preset": "adaptive"},
        {"cfg_parallel": 2, "cache_preset": "adaptive", "cache": False},
        {"cfg_parallel": 2, "compile": True, "compile_scope": "whole"},
        {"context_parallel": 2, "compile": True},
        {"cfg_parallel": 2, "quantize": "int8"},
        {"context_parallel": 2, "attention_backend": "native"},
        {"cfg_parallel": 2, "attention_backend": "flash"},
    ],
)
def test_what_goes_together(flags: dict[str, Any]) -> None:
    assert not refused(flags)


# --- what is derived ---


# FLUX.1-dev: 33.7 GB of weights and 3 GB of room; two GPUs that share them hold 22.1 GB each, four 13.8.
@pytest.mark.parametrize(
    ("model", "hardware", "expected"),
    [
        ("flux.1-dev", gpu(80, count=2), (1, 1, 1, "none")),
        ("flux.1-dev", gpu(24, count=2), (1, 2, 2, "none")),
        ("flux.1-dev", gpu(24, count=1), (1, 1, 1, "group")),
        ("flux.1-dev", gpu(22.9, count=2), (1, 1, 1, "group")),
        ("flux.1-dev", gpu(16, count=2), (1, 1, 1, "group")),
        ("flux.1-dev", gpu(16, count=4), (1, 4, 4, "none")),
        ("flux.1-dev", gpu(24, count=2, least_gb=12), (1, 1, 1, "group")),
        ("qwen-image", gpu(48, count=2), (2, 1, 2, "none")),
        ("qwen-image", gpu(24, count=4), (2, 2, 4, "none")),
        ("qwen-image", gpu(80, count=2), (1, 1, 1, "none")),
        ("wan2.2-t2v-a14b", gpu(80, count=2), (2, 1, 2, "none")),
        ("wan2.2-t2v-a14b", gpu(48, count=8), (2, 2, 4, "none")),
        ("wan2.2-t2v-a14b", gpu(139, count=2), (1, 1, 1, "none")),
        ("sd3.5-medium", gpu(16, count=2), (2, 1, 2, "none")),
        ("sd3.5-medium", gpu(9, count=4), (1, 1, 1, "group")),
        ("z-image-turbo", gpu(16, count=2), (1, 2, 2, "none")),
        ("pixart-sigma", gpu(12, count=2), (1, 1, 1, "model")),
    ],
)
def test_weights_are_shared_where_one_gpu_is_too_small(
    model: str, hardware: Hardware, expected: tuple[int, int, int, str]
) -> None:
    assert degrees(CATALOGUE[model], hardware) == expected


def test_what_somebody_set_stays_and_the_rest_follows() -> None:
    small = gpu(48, count=4)
    assert degrees(QWEN, small, cfg_parallel=1) == (1, 1, 2, "none")
    assert degrees(QWEN, small, cfg_parallel=2, context_parallel=2) == (2, 2, 4, "none")
    assert degrees(QWEN, small, fsdp=1)[2:] == (1, "model")
    assert degrees(QWEN, small, cache_preset="adaptive") == (1, 2, 2, "none")
    for flags in ({"offload": "model"}, {"offload": "none"}, {"compile": True}, {"quantize": "int8"}):
        assert degrees(QWEN, small, **flags)[2] == 1
    for mode in ("manual", "memory"):
        assert degrees(QWEN, small, performance_mode=mode)[2] == 1
    assert degrees(QWEN, small, performance_mode="speed") == (2, 1, 2, "none")


@pytest.mark.parametrize(
    ("model", "hardware", "flags", "expected"),
    [
        ("qwen-image", gpu(48, count=4), {"microbatch": 4}, (1, 1, 1, "model")),
        ("wan2.2-t2v-a14b", gpu(48, count=8), {"microbatch": 2}, (1, 1, 1, "model")),
        ("flux.1-dev", gpu(24, count=2), {"attention_backend": "flash_hub"}, (1, 1, 1, "group")),
        ("qwen-image", gpu(24, count=4), {"attention_backend": "flash_hub"}, (1, 1, 1, "group")),
        ("qwen-image", gpu(48, count=2), {"attention_backend": "flash_hub"}, (2, 1, 2, "none")),
    ],
    ids=[
        "microbatch",
        "microbatch, two transformers",
        "kernel",
        "kernel, four GPUs",
        "kernel, guidance only",
    ],
)
def test_derived_degrees_give_way_to_what_somebody_set(
    model: str, hardware: Hardware, flags: dict[str, Any], expected: tuple[int, int, int, str]
) -> None:
    assert not refused(flags, CATALOGUE[model], hardware)
    assert degrees(CATALOGUE[model], hardware, **flags) == expected


def test_capture_is_refused_for_the_offload_alone_and_no_degree() -> None:
    told = refused({"capture": True, "cache": False}, QWEN, gpu(48, count=4))
    assert set(told) == {"capture"}
    assert "parallel" not in told["capture"]


def test_derived_degrees_name_the_mode_and_the_numbers() -> None:
    policy = resolved(FLUX, hardware=gpu(24, count=2))
    for name in EACH:
        assert policy.options[name].source == "mode"
        assert "36.7 GB" in policy.options[name].reason
    assert "2 GPUs share the weights: 22.1 GB on each" in policy.options["offload"].reason


@pytest.mark.parametrize(
    "spec",
    [spec for spec in CATALOGUE.values() if spec.residency.fsdp_min_available_gb],
    ids=lambda spec: spec.id,
)
def test_a_threshold_leaves_room_for_what_two_gpus_hold(spec: Any) -> None:
    need = shared(spec, loaded(spec, spec.dtype), 2)
    least = need.weights_gb + need.working_gb
    assert least < (spec.residency.fsdp_min_available_gb or 0) < 1.1 * least


def test_guidance_by_default() -> None:
    assert guides_by_default(WAN2)
    assert not guides_by_default(SCHNELL)


# --- in effect ---


def test_a_lost_follower_costs_an_attempt_and_no_pause() -> None:
    verdict = classify("follower_lost", 1, 3, 1)
    assert (verdict.kind, verdict.delay_s, verdict.safer) == ("retry", 0.0, False)
    assert classify("follower_lost", 3, 3, 2).kind == "fail"


def test_the_cache_of_a_job_is_decided_without_regard_to_the_ranks() -> None:
    plan = planned(QWEN, negative_prompt="ugly")
    alone, two = (
        decide_cache(plan, QWEN, resolved(QWEN, {"cfg_parallel": n}, hardware=TWO), (plan.executed_steps,))
        for n in (1, 2)
    )
    assert alone == two
    assert alone.configs is not None
    assert replace(alone.configs[0], separate_cfg=True) == alone.configs[0]
