"""Cards that are described instead of seen."""

import pytest

from policy.errors import InvalidOptions
from policy.modes import Hardware
from policy.stated import CARDS_GB, describe, read_cards, state_cards
from tests.policy.parts import FLUX, problems, resolved


def read(**given: str) -> Hardware | None:
    return read_cards(given, ("torchao",))


def messages(**given: str) -> list[str]:
    with pytest.raises(InvalidOptions) as raised:
        read(**given)
    return [error.message for error in raised.value.errors]


def test_what_is_stated_is_what_the_rules_get() -> None:
    assert read() is None
    assert read(gpu="24") == state_cards(24, packages=("torchao",))
    assert read(gpu="24 GB", gpus="2", capability="8.9") == state_cards(
        24, 2, capability=(8, 9), packages=("torchao",)
    )
    card = state_cards(24, 2)
    assert (card.free_memory_gb, card.least_free_gb, card.count) == (23.5, 23.5, 2)
    assert (card.platform, card.capability, card.supports_bf16) == ("cuda", (8, 0), True)
    assert not state_cards(16, capability=(7, 5)).supports_bf16
    assert 24 in CARDS_GB


def test_the_answer_says_that_nothing_was_looked_at() -> None:
    words = describe(state_cards(48, 2, capability=(8, 6)))
    assert words.startswith("hardware stated, not seen: 2 x NVIDIA GPU of 48 GB ")
    assert "47.5 GB each free, compute capability 8.6" in words


def test_every_bad_fact_is_named_with_its_nearest() -> None:
    assert messages(gpu="0", gpus="99", capability="9") == [
        '--gpu must be at least 1, not "0"; nearest: 1',
        '--gpus must be at most 64, not "99"; nearest: 64',
        '--capability must be two numbers, such as 8.9, not "9"; nearest: 9.0',
    ]
    assert messages(gpu="L4") == ['--gpu must be a number, not "L4"']
    assert messages(gpu="24", capability="ada")[0].endswith("nearest: 8.0")
    for name, text in (("gpus", "2"), ("capability", "8.9")):
        assert "is about the cards of --gpu" in messages(**{name: text})[0]


def test_rules_about_the_hardware_name_what_was_stated() -> None:
    assert (
        "the stated GPU"
        in resolved(FLUX, hardware=state_cards(80, capability=(7, 5))).options["dtype"].reason
    )
    card = state_cards(24, packages=("torchao",))
    assert (
        "this is the stated GPU (8.0): use int8"
        in problems(FLUX, {"quantize": "fp8"}, hardware=card)["quantize"].message
    )
    newer = state_cards(24, capability=(8, 9), packages=("torchao",))
    assert not problems(FLUX, {"quantize": "fp8"}, hardware=newer)
