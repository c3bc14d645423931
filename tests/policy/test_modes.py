"""Where weights wait, by performance mode and free memory."""

import pytest

from policy.modes import Hardware
from tests.policy.parts import CATALOGUE, FLUX, TINY, WAN2, gpu, resolved, with_policy

MPS = Hardware("mps", "Test chip", 1, 64.0, 40.0, supports_bf16=True)
PLACEMENT = ("offload", "keep_resident", "vae_tiling")
KEPT = FLUX.residency.keep_resident


def placed(free_gb: float, **flags: object) -> tuple[object, ...]:
    policy = resolved(FLUX, flags, hardware=gpu(free_gb))
    return tuple(policy[name] for name in PLACEMENT)


# FLUX.1-dev: 33.7 GB of weights, 3 GB of working room, the largest component 23.8 GB.
@pytest.mark.parametrize(
    ("free_gb", "expected"),
    [
        (80.0, ("none", (), False)),
        (36.8, ("none", (), False)),
        (36.6, ("model", KEPT, False)),
        (28.0, ("model", KEPT, False)),
        (27.9, ("model", (), True)),
        (26.9, ("model", (), True)),
        (26.7, ("sequential", (), True)),
        (8.0, ("sequential", (), True)),
    ],
)
def test_auto_offloads_as_little_as_the_free_memory_allows(
    free_gb: float, expected: tuple[object, ...]
) -> None:
    assert placed(free_gb) == expected


@pytest.mark.parametrize("free_gb", [8.0, 30.0, 80.0])
def test_speed_mode_offloads_nothing_and_warns_when_it_will_not_fit(free_gb: float) -> None:
    assert placed(free_gb, performance_mode="speed") == ("none", (), False)
    reason = resolved(FLUX, {"performance_mode": "speed"}, hardware=gpu(free_gb)).options["offload"].reason
    assert ("expect to run out of memory" in reason) == (free_gb < 36)


def test_memory_mode_keeps_one_component_on_the_gpu_or_less() -> None:
    assert placed(139.0, performance_mode="memory") == ("model", (), True)
    assert placed(24.0, performance_mode="memory") == ("sequential", (), True)


@pytest.mark.parametrize("free_gb", [8.0, 139.0])
def test_manual_mode_derives_nothing(free_gb: float) -> None:
    assert placed(free_gb, performance_mode="manual") == ("none", (), False)
    policy = resolved(FLUX, {"performance_mode": "manual"}, hardware=gpu(free_gb))
    assert {policy.options[name].source for name in PLACEMENT} == {"default"}
    assert placed(free_gb, performance_mode="manual", offload="model") == ("model", (), False)


def test_derived_values_name_the_mode_as_their_source_and_the_numbers_as_their_reason() -> None:
    item = resolved(FLUX, hardware=gpu(80)).options["offload"]
    assert item.source == "mode"
    assert "36.7 GB" in item.reason
    assert "80.0 GB are free" in item.reason


def test_an_explicit_placement_protects_only_the_option_it_names() -> None:
    assert placed(139.0, offload="model") == ("model", KEPT, False)
    assert placed(27.0, offload="model") == ("model", (), True)
    assert placed(27.0, vae_tiling="false") == ("model", (), False)
    assert placed(139.0, vae_tiling=True) == ("none", (), True)
    assert placed(30.0, keep_resident="vae") == ("model", ("vae",), False)
    assert placed(8.0, offload="none") == ("none", (), False)
    policy = resolved(FLUX, {"offload": "model"}, hardware=gpu(139))
    assert [policy.options[name].source for name in PLACEMENT] == ["flag", "mode", "mode"]


def test_an_explicit_auto_is_derived_and_keeps_its_source() -> None:
    policy = resolved(FLUX, env={"RENDERQ_OFFLOAD": "auto"}, hardware=gpu(30))
    assert (policy["offload"], policy.options["offload"].source) == ("model", "env")


def test_a_model_file_can_place_too() -> None:
    policy = resolved(with_policy(FLUX, offload="sequential"), hardware=gpu(139))
    assert (policy["offload"], policy.options["offload"].source) == ("sequential", "model")
    assert policy["vae_tiling"] is True


def test_float32_doubles_what_the_weights_need() -> None:
    assert placed(40.0) == ("none", (), False)
    assert placed(40.0, dtype="float32") == ("sequential", (), True)
    assert placed(60.0, dtype="float32") == ("model", KEPT, False)
    assert placed(80.0, dtype="float32") == ("none", (), False)


def test_two_transformers_fit_one_at_a_time() -> None:
    assert resolved(WAN2, hardware=gpu(139))["offload"] == "none"
    assert resolved(WAN2, hardware=gpu(78))["offload"] == "model"
    assert resolved(WAN2, hardware=gpu(78))["keep_resident"] == ("vae",)
    assert resolved(WAN2, hardware=gpu(30))["offload"] == "sequential"


def test_shared_memory_has_nothing_to_offload_to() -> None:
    for mode in ("auto", "speed", "memory"):
        policy = resolved(FLUX, {"performance_mode": mode}, hardware=MPS)
        assert (policy["offload"], policy["vae_tiling"]) == ("none", mode == "memory")


@pytest.mark.parametrize("model", list(CATALOGUE))
@pytest.mark.parametrize("free_gb", [7.5, 11.5, 15.5, 23.5, 31.5, 47.0, 79.0, 139.0])
@pytest.mark.parametrize("mode", ["manual", "auto", "speed", "memory"])
def test_every_model_resolves_on_every_card_in_every_mode(model: str, free_gb: float, mode: str) -> None:
    policy = resolved(CATALOGUE[model], {"performance_mode": mode}, hardware=gpu(free_gb))
    assert policy["offload"] in {"none", "model", "sequential"}
    assert isinstance(policy["vae_tiling"], bool)


def test_the_bundled_model_fits_anywhere() -> None:
    assert resolved(TINY, hardware=gpu(2))["offload"] == "none"
