"""What a machine cannot do is refused before loading, and shown as not available where nobody asked."""

from dataclasses import replace
from typing import Any

import pytest

from policy.cache import decide_cache
from policy.kernels import KERNELS, is_exact, kernel_for
from policy.modes import Hardware
from policy.options import OPTIONS
from policy.packages import OPTIONAL
from policy.platforms import MODES, PLATFORMS
from tests.policy.parts import (
    CATALOGUE,
    CPU,
    FLUX,
    SCHNELL,
    TINY,
    gpu,
    planned,
    problems,
    resolved,
    with_policy,
)

GRAPHS = {"capture": True, "cache": False}
AMD = replace(gpu(), rocm=True, capability=None)
NPU = Hardware("npu", "Test NPU", 1, 64.0, 60.0, supports_bf16=True, packages=tuple(OPTIONAL))
MPS = Hardware("mps", "Test chip", 1, 64.0, 40.0, supports_bf16=True, packages=tuple(OPTIONAL))


def one(field: str, flags: dict[str, Any], hardware: Hardware) -> str:
    errors = problems(FLUX, flags, hardware=hardware)
    assert set(errors) == {field}
    return errors[field].message


# --- attention kernels ---


def test_every_kernel_is_offered_and_the_plain_one_runs_anywhere() -> None:
    assert OPTIONS["attention_backend"].allowed == ("auto", *KERNELS)
    for hardware in (CPU, MPS, NPU, AMD, gpu()):
        assert not problems(FLUX, {"attention_backend": "native"}, hardware=hardware)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "native"])
def test_a_kernel_is_refused_where_it_cannot_run(name: str) -> None:
    flags = {"attention_backend": name}
    assert not problems(FLUX, flags, hardware=gpu())
    assert "needs an NVIDIA GPU" in one("attention_backend", flags, CPU)
    assert "needs compute capability" in one("attention_backend", flags, gpu(capability=(7, 0)))
    half = problems(FLUX, flags | {"dtype": "float32"}, hardware=gpu())
    assert bool(half) == KERNELS[name].half
    bare = problems(FLUX, flags, hardware=gpu(packages=()))
    assert bool(bare) == (KERNELS[name].package is not None)
    if bare:
        assert OPTIONAL[str(KERNELS[name].package)] in bare["attention_backend"].message
    assert bool(problems(FLUX, flags, hardware=AMD)) == ("rocm" not in KERNELS[name].platforms)


def test_hopper_kernels_need_hopper() -> None:
    assert "9.0, and Test GPU has 8.9" in one(
        "attention_backend", {"attention_backend": "_flash_3"}, gpu(capability=(8, 9))
    )


def test_a_kernel_that_is_less_exact_serves_those_who_allow_it() -> None:
    assert [name for name in KERNELS if not is_exact(name)] == ["sage", "sage_hub"]
    assert kernel_for("sage", "lossless") == "native"
    assert kernel_for("sage", "high") == "sage"
    for name in ("auto", *filter(is_exact, KERNELS)):
        assert kernel_for(name, "lossless") == kernel_for(name, "high") == name


@pytest.mark.parametrize("settled_by", [{"compile": True}, GRAPHS], ids=["compile", "capture"])
def test_one_kernel_for_all_cannot_be_the_less_exact_one(settled_by: dict[str, Any]) -> None:
    message = one("attention_backend", {"attention_backend": "sage", **settled_by}, gpu())
    assert "serves only jobs of quality high" in message
    assert not problems(FLUX, {"attention_backend": "flash", **settled_by})


# --- quantised weights ---


def test_quantising_needs_its_package_and_says_how_to_get_it() -> None:
    assert "pip install 'renderq[quantize]'" in one("quantize", {"quantize": "int8"}, gpu(packages=()))
    for hardware in (gpu(), replace(CPU, packages=("torchao",))):
        assert not problems(FLUX, {"quantize": "int8"}, hardware=hardware)
    for hardware in (AMD, MPS):
        assert "works on an NVIDIA GPU or a CPU" in one("quantize", {"quantize": "int8"}, hardware)


def test_fp8_needs_hardware_and_format() -> None:
    cpu = replace(CPU, packages=("torchao",))
    assert "compute capability 8.9 or later" in one("quantize", {"quantize": "fp8"}, gpu(capability=(8, 6)))
    assert "compute capability 8.9" in one("quantize", {"quantize": "fp8", "dtype": "bfloat16"}, cpu)
    assert "needs dtype bfloat16" in one("quantize", {"quantize": "fp8", "dtype": "float16"}, gpu())
    assert not problems(FLUX, {"quantize": "fp8"}, hardware=gpu(capability=(8, 9)))


def test_text_encoders_alone_are_not_quantised() -> None:
    assert "no effect with quantize none" in one("quantize_text", {"quantize_text": True}, gpu())
    assert not problems(FLUX, {"quantize_text": False})
    assert not problems(FLUX, {"quantize_text": True, "quantize": "int8"})


@pytest.mark.parametrize("offload", ["none", "model", "group", "sequential"])
def test_quantised_weights_may_be_moved(offload: str) -> None:
    assert not problems(FLUX, {"quantize": "int8", "offload": offload})
    assert not problems(FLUX, {"quantize": "int8", "compile": True})


# --- CUDA graphs ---


def test_graphs_are_off_unless_asked_for_and_a_cpu_says_why() -> None:
    assert resolved()["capture"] is False
    assert "opt in with --capture" in resolved().options["capture"].reason
    item = resolved(TINY, hardware=CPU).options["capture"]
    assert (item.value, item.reason) == (False, "not available: a CPU records no CUDA graphs")
    attention = resolved(TINY, hardware=CPU).options["attention_backend"]
    assert "not available: a CPU has none of them" in attention.reason


@pytest.mark.parametrize("hardware", [CPU, MPS, NPU], ids=lambda one: one.platform)
def test_graphs_are_refused_where_there_are_none(hardware: Hardware) -> None:
    assert "has none: leave it off" in one("capture", GRAPHS, hardware)


def test_graphs_exclude_whatever_moves_or_replaces_what_was_recorded() -> None:
    assert not problems(FLUX, GRAPHS)
    assert not problems(FLUX, GRAPHS, hardware=AMD)
    assert "overwrite what the cache keeps" in one("capture", {"capture": True}, gpu())
    assert "which compile replaces" in one("capture", GRAPHS | {"compile": True}, gpu())
    assert "during the warm-up only" in one("capture", GRAPHS | {"warmup": False}, gpu())
    for offload in ("model", "group", "sequential"):
        assert f"offload {offload} moves them" in one("capture", GRAPHS | {"offload": offload}, gpu())
    assert "moves them" in one("capture", GRAPHS, gpu(30))


def test_models_of_few_steps_have_no_cache_to_be_in_the_way() -> None:
    assert not problems(SCHNELL, {"capture": True})


def test_a_models_file_opts_in_for_speed_mode_alone() -> None:
    spec = with_policy(FLUX, capture=True, cache=False)
    fast = resolved(spec, {"performance_mode": "speed"})
    assert (fast["capture"], fast.options["capture"].source) == (True, "model")
    assert resolved(spec)["capture"] is False
    assert resolved(spec, {"performance_mode": "speed", "capture": False})["capture"] is False
    assert not any(spec.policy.get("capture") for spec in CATALOGUE.values())


def test_a_job_that_asks_for_a_cache_is_told_that_this_worker_replays_graphs() -> None:
    policy = resolved(FLUX, GRAPHS)
    decision = decide_cache(planned(FLUX, cache="fast"), FLUX, policy, (28,))
    assert decision.configs is None
    assert "CUDA graphs" in decision.reason


# --- the compiler, by platform ---


@pytest.mark.parametrize(
    ("hardware", "modes"),
    [
        (gpu(), MODES),
        (AMD, MODES),
        (NPU, ("default",)),
        (MPS, ("default",)),
        (CPU, ("default", "max-autotune-no-cudagraphs")),
    ],
    ids=lambda one: getattr(one, "platform", None),
)
def test_modes_that_mean_nothing_on_a_platform_are_refused(
    hardware: Hardware, modes: tuple[str, ...]
) -> None:
    for mode in MODES:
        flags = {"compile": True, "compile_mode": mode, "cache": False}
        errors = problems(FLUX, flags, hardware=hardware)
        assert set(errors) == (set() if mode in modes else {"compile_mode"})
        assert not problems(FLUX, {**flags, "compile": False}, hardware=hardware)


def test_an_npu_compiles_each_shape_for_itself_and_takes_no_mode() -> None:
    npu = PLATFORMS["npu"]
    assert (npu.passes_mode, npu.fixed_shapes, npu.records_graphs) == (False, True, False)
    item = resolved(FLUX, {"compile": True}, hardware=NPU).options["compile_dynamic"]
    assert (item.value, item.source) == (False, "default")
    assert "compiles each shape for itself" in one(
        "compile_dynamic", {"compile": True, "compile_dynamic": "true"}, NPU
    )


def test_all_that_is_wrong_is_told_at_once() -> None:
    flags = {
        "capture": True,
        "compile": True,
        "compile_mode": "max-autotune",
        "offload": "group",
        "quantize": "fp8",
        "attention_backend": "sage",
        "keep_resident": "nothing",
    }
    found = problems(FLUX, flags, hardware=replace(CPU, packages=()))
    assert set(found) == set(flags)
