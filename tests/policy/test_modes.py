"""Where weights wait, by performance mode and free memory."""

import pytest

from policy.modes import Hardware
from policy.packages import OPTIONAL
from policy.resolve import Policy
from policy.stated import CARDS_GB, state_cards
from policy.weights import loaded
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
        (26.7, ("group", (), True)),
        (8.0, ("group", (), True)),
        (5.2, ("group", (), True)),
        (5.1, ("sequential", (), True)),
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
    assert placed(24.0, performance_mode="memory") == ("group", (), True)
    assert placed(4.0, performance_mode="memory") == ("sequential", (), True)


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
    assert placed(40.0, dtype="float32") == ("group", (), True)
    assert placed(7.0, dtype="float32") == ("sequential", (), True)
    assert placed(60.0, dtype="float32") == ("model", KEPT, False)
    assert placed(80.0, dtype="float32") == ("none", (), False)


def test_two_transformers_fit_one_at_a_time() -> None:
    assert resolved(WAN2, hardware=gpu(139))["offload"] == "none"
    assert resolved(WAN2, hardware=gpu(78))["offload"] == "model"
    assert resolved(WAN2, hardware=gpu(78))["keep_resident"] == ("vae",)
    assert resolved(WAN2, hardware=gpu(30))["offload"] == "group"
    assert resolved(WAN2, hardware=gpu(14))["offload"] == "sequential"


def test_shared_memory_has_nothing_to_offload_to() -> None:
    for mode in ("auto", "speed", "memory"):
        policy = resolved(FLUX, {"performance_mode": mode}, hardware=MPS)
        assert (policy["offload"], policy["vae_tiling"]) == ("none", mode == "memory")


# How `auto` places each model on each card, half a GB of which is taken; then the same with int8.
# n none, M model with components that stay, m model, g group, s sequential.
AUTO = {
    "flux.1-dev": ("gggnnn", "gmMnnn"),
    "flux.1-schnell": ("gggnnn", "gmMnnn"),
    "flux.2-klein-4b": ("gMnnnn", "gnnnnn"),
    "ltx-video": ("gmnnnn", "gmnnnn"),
    "pixart-sigma": ("gnnnnn", "gnnnnn"),
    "qwen-image": ("gggMnn", "gggnnn"),
    "sana-1.6b": ("gnnnnn", "gnnnnn"),
    "sd3.5-medium": ("gMnnnn", "gMnnnn"),
    "tiny": ("nnnnnn", "nnnnnn"),
    "wan2.1-t2v-1.3b": ("ggnnnn", "ggnnnn"),
    "wan2.2-t2v-a14b": ("sggMMn", "sggMnn"),
    "z-image-turbo": ("gmMnnn", "gMnnnn"),
}


# The same without quantisation on two such cards, and on eight; a digit: so many of them share the weights.
SHARED = {
    "flux.1-dev": ("gg2nnn", "g42nnn"),
    "flux.1-schnell": ("gg2nnn", "g42nnn"),
    "flux.2-klein-4b": ("g2nnnn", "g2nnnn"),
    "ltx-video": ("g2nnnn", "g2nnnn"),
    "pixart-sigma": ("gnnnnn", "gnnnnn"),
    "qwen-image": ("ggg2nn", "g842nn"),
    "sana-1.6b": ("gnnnnn", "gnnnnn"),
    "sd3.5-medium": ("g2nnnn", "g2nnnn"),
    "tiny": ("nnnnnn", "nnnnnn"),
    "wan2.1-t2v-1.3b": ("g2nnnn", "g2nnnn"),
    "wan2.2-t2v-a14b": ("sggM2n", "sgg42n"),
    "z-image-turbo": ("g22nnn", "822nnn"),
}


def letter(policy: Policy) -> str:
    if policy["fsdp"] > 1:
        return str(policy["fsdp"])
    short = {"none": "n", "model": "m", "group": "g", "sequential": "s"}[policy["offload"]]
    return "M" if policy["offload"] == "model" and policy["keep_resident"] else short


def test_the_table_has_every_model() -> None:
    assert set(AUTO) == set(SHARED) == set(CATALOGUE)


@pytest.mark.parametrize("model", list(CATALOGUE))
@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_model_is_placed_on_every_card_as_the_table_says(model: str, quantize: str, count: int) -> None:
    cards = [state_cards(size, count, packages=OPTIONAL) for size in CARDS_GB]
    placed = [resolved(CATALOGUE[model], {"quantize": quantize}, hardware=card) for card in cards]
    # What is quantised is not shared: one card, whatever else is in the machine.
    alone = AUTO[model][quantize == "int8"]
    expected = alone if count == 1 or quantize == "int8" else SHARED[model][count == 8]
    assert "".join(map(letter, placed)) == expected
    assert {policy["vae_tiling"] for policy in placed if letter(policy) == "n"} <= {False}
    assert {policy["vae_tiling"] for policy in placed if letter(policy) in "gs"} <= {True}


@pytest.mark.parametrize("model", list(CATALOGUE))
@pytest.mark.parametrize("size", CARDS_GB)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_no_mode_changes_the_picture_of_its_own_accord(model: str, size: int, count: int) -> None:
    for mode in ("manual", "auto", "speed", "memory"):
        policy = resolved(CATALOGUE[model], {"performance_mode": mode}, hardware=gpu(size - 0.5, count=count))
        assert not any(policy[name] for name in ("quantize_text", "compile", "capture"))
        assert (policy["quantize"], policy["attention_backend"]) == ("none", "auto")
        if mode in ("manual", "speed"):
            assert policy["offload"] == "none"
        if mode == "memory":
            assert policy["offload"] != "none"


def test_where_it_does_not_fit_the_reason_says_what_int8_would_need() -> None:
    assert "--quantize int8 it would be 24.9 GB" in resolved(hardware=gpu(30)).options["offload"].reason
    for flags, free in (({}, 80), ({"quantize": "int8"}, 20), ({"offload": "model"}, 80)):
        assert "--quantize" not in resolved(FLUX, flags, hardware=gpu(free)).options["offload"].reason


def test_quantised_weights_need_what_they_are_loaded_as() -> None:
    small, text = loaded(FLUX, "bfloat16", "int8"), loaded(FLUX, "bfloat16", "int8", text=True)
    sizes = {name: round(size, 2) for name, size in small.component_gb.items()}
    assert sizes == {"transformer": 12.02, "text_encoder": 0.25, "text_encoder_2": 9.5, "vae": 0.17}
    assert text.component_gb["text_encoder_2"] == pytest.approx(9.5 * (1 - 0.75 * (1 - 1.01 / 2)))
    assert text.component_gb["vae"] == 0.17
    assert loaded(FLUX, "float32", "int8").component_gb["transformer"] == pytest.approx(12.02, abs=0.01)
    assert loaded(FLUX, "float32").component_gb["transformer"] == pytest.approx(47.6)
    # Half of Sana's weights are convolutions, which stay as they are.
    sana = loaded(CATALOGUE["sana-1.6b"], "bfloat16", "int8").component_gb["transformer"]
    assert sana == pytest.approx(3.21 * (0.47 + 0.53 * 1.01 / 2))


def test_a_model_file_without_block_sizes_is_never_streamed_by_itself() -> None:
    unknown = FLUX.model_copy(update={"residency": FLUX.residency.model_copy(update={"streamed_gb": None})})
    assert resolved(unknown, hardware=gpu(20))["offload"] == "sequential"
    assert resolved(unknown, {"offload": "group"}, hardware=gpu(20))["offload"] == "group"


def test_the_bundled_model_fits_anywhere() -> None:
    assert resolved(TINY, hardware=gpu(2))["offload"] == "none"
