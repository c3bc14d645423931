"""What a refusal advises works, and fits in the memory of that card."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from policy.fits import need_of
from policy.packages import OPTIONAL
from policy.stated import CARDS_GB, state_cards
from tests.policy.parts import CATALOGUE, FLUX, QWEN, problems, resolved

OFFERED = re.compile(r", or (--quantize int8 )?--offload (\w+)(?: or (\w+))?")
COMPILE = {"compile": True}
CAPTURE = {"capture": True, "cache": False}
GRAPHS = {"compile": True, "cache": False, "compile_mode": "max-autotune"}


def card(size: int, count: int = 1) -> Any:
    return state_cards(size, count, packages=OPTIONAL)


def offered(message: str) -> Iterator[dict[str, object]]:
    """The flags of each way that a message names, without what it says in brackets."""
    found = OFFERED.search(message.partition(" (")[0])
    if found:
        quantize = "int8" if found[1] else "none"
        yield from ({"quantize": quantize, "offload": name} for name in found.groups()[1:] if name)


@pytest.mark.parametrize("asked", [COMPILE, CAPTURE, GRAPHS], ids=["compile", "capture", "graphs"])
@pytest.mark.parametrize("offload", ["auto", "group", "sequential"])
@pytest.mark.parametrize("model", list(CATALOGUE))
def test_each_way_that_is_named_is_taken_and_fits(model: str, offload: str, asked: dict[str, Any]) -> None:
    spec = CATALOGUE[model]
    for size in CARDS_GB:
        flags = {**asked, "offload": offload}
        for error in problems(spec, flags, hardware=card(size)).values():
            for way in offered(error.message):
                assert not problems(spec, {**flags, **way}, hardware=card(size))
                need = need_of(spec, size - 0.5, "bfloat16", str(way["quantize"]))
                assert way["offload"] in need.fitting


def test_compiling_flux_on_24_gb_names_what_fits_there_and_why_the_rest_does_not() -> None:
    assert problems(FLUX, COMPILE, hardware=card(24))["compile"].message.endswith(
        "use --no-compile, or --quantize int8 --offload model, which changes the picture (the weights as "
        "they are need 36.7 GB with --offload none and 26.8 GB with --offload model, and 23.5 GB are free)"
    )
    on_8 = problems(FLUX, COMPILE, hardware=card(8))["compile"].message
    assert "use --no-compile (the weights" in on_8
    group = problems(FLUX, {**COMPILE, "offload": "group"}, hardware=card(80))["compile"].message
    assert group.endswith("use --no-compile, or --offload none or model")
    graphs = problems(FLUX, {**GRAPHS, "performance_mode": "memory"}, hardware=card(24))["compile_mode"]
    assert "--offload none or" not in graphs.message


def test_a_hint_on_int8_is_given_where_less_would_be_moved() -> None:
    def reason(size: int, **flags: object) -> str:
        return resolved(FLUX, flags, hardware=card(size)).options["offload"].reason

    assert reason(24).endswith("with --quantize int8 the largest component would be 15.0 GB")
    assert reason(32).endswith("with --quantize int8 it would be 24.9 GB")
    assert "--quantize" not in reason(8)
    assert "--quantize" not in reason(24, performance_mode="speed")
    assert "--quantize" not in reason(48)


def test_spreading_over_gpus_names_sharing_where_one_is_too_small_and_enough_where_two_are() -> None:
    flags = {"cfg_parallel": 2, "offload": "group"}
    for size, told in (
        (80, "use --offload none"),
        (48, "use --offload none --fsdp 2"),
        (24, "use --cfg-parallel 1"),
    ):
        assert problems(QWEN, flags, hardware=card(size, 2))["offload"].message.endswith(told)
    assert not problems(QWEN, {"cfg_parallel": 2, "offload": "none", "fsdp": 2}, hardware=card(48, 2))


def test_keeping_to_one_gpu_is_named_only_where_one_is_enough() -> None:
    flags = {"fsdp": 2, "compile": True}
    assert problems(QWEN, flags, hardware=card(48, 2))["compile"].message.endswith("--no-compile or --fsdp 1")
    assert problems(QWEN, flags, hardware=card(24, 2))["compile"].message.endswith("use --no-compile")
    flags = {"fsdp": 2, "capture": True, "cache": False}
    assert problems(QWEN, flags, hardware=card(80, 2))["capture"].message.endswith(
        "--no-capture, or --fsdp 1"
    )
    assert problems(QWEN, flags, hardware=card(48, 2))["capture"].message.endswith("use --no-capture")


def test_sizes_that_differ_by_little_are_told_apart() -> None:
    """Z-Image-Turbo needs a little more than what is free of 24 GB."""
    spec = CATALOGUE["z-image-turbo"]
    for count in (1, 2):
        option = "offload" if count == 1 else "fsdp"
        reason = resolved(spec, hardware=card(24, count)).options[option].reason
        assert "need 23.52 GB" in reason
        assert "23.50 GB are free" in reason
