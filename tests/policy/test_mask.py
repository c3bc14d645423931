"""Step masks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.mask import (
    LEAD_IN,
    PRESET_RULES,
    lead_in_of,
    minimum_steps,
    rule_minimum_steps,
    step_mask,
    with_lead_in,
)
from policy.options import PRESETS, STATIC_PRESETS

counts = st.integers(1, 30)
periodic = st.builds("{}:{}:{}".format, counts, counts, counts)
digits = st.text("01", min_size=1, max_size=60).map(lambda inner: f"1{inner}1")


def reused(mask: tuple[int, ...]) -> list[int]:
    return [step for step, computed in enumerate(mask) if not computed]


@pytest.mark.parametrize(
    ("preset", "steps"),
    [
        ("quality", [6, 9, 12, 15, 18, 21]),
        ("balanced", [5, 7, 9, 11, 13, 15, 17, 19, 21]),
        ("fast", [5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21]),
    ],
)
def test_each_preset_reuses_these_of_24_steps(preset: str, steps: list[int]) -> None:
    assert reused(step_mask(preset, 24)) == steps


def test_each_preset_reuses_more_than_the_one_before() -> None:
    for steps in range(minimum_steps("quality"), 101):
        shares = [len(reused(step_mask(preset, steps))) for preset in STATIC_PRESETS]
        assert shares == sorted(shares)
        assert shares[0] > 0


@given(st.one_of(periodic, st.sampled_from(STATIC_PRESETS)), st.integers(1, 1000))
def test_a_mask_is_as_long_as_the_job_and_computes_the_lead_in_and_the_last_step(
    rule: str, steps: int
) -> None:
    mask = step_mask(rule, steps)
    assert len(mask) == steps
    assert set(mask) <= {0, 1}
    assert mask[-1] == 1
    assert all(mask[: lead_in_of(rule)])


@given(st.one_of(periodic, st.sampled_from(STATIC_PRESETS)))
def test_the_minimum_is_the_first_step_count_at_which_anything_is_reused(rule: str) -> None:
    least = rule_minimum_steps(rule)
    assert 0 in step_mask(rule, least)
    assert 0 not in step_mask(rule, least - 1)


@given(digits)
def test_a_mask_in_digits_is_taken_as_it_is_for_its_own_length_only(rule: str) -> None:
    assert step_mask(rule, len(rule)) == tuple(map(int, rule))
    with pytest.raises(ValueError, match="digits"):
        step_mask(rule, len(rule) + 1)
    with pytest.raises(ValueError, match="digits"):
        step_mask(rule, len(rule) - 1)


BAD_RULES = (
    ["", "0", "1", "11", "011", "110", "1121", "4:1", "4:1:1:1", "0:1:1", "4:0:1", "4:1:0", "-4:1:1"],
    ["4 :1:1", "1e3:1:1", "4:1:1\n", "fastest", "٤:١:١", "1٤:1:1", "1" * 2000],
)


@pytest.mark.parametrize("rule", [rule for rules in BAD_RULES for rule in rules])
def test_what_is_not_a_rule_is_refused_with_the_syntax(rule: str) -> None:
    with pytest.raises(ValueError, match="LEAD:COMPUTED:REUSED"):
        step_mask(rule, 24)


def test_another_lead_in_moves_the_pattern_and_leaves_digits_alone() -> None:
    assert with_lead_in("balanced", 8) == "8:1:1"
    assert reused(step_mask(with_lead_in("fast", 10), 16)) == [11, 12, 14]
    assert with_lead_in("11011", 8) == "11011"


def test_the_lead_in_of_a_rule_is_what_it_computes_before_it_may_reuse() -> None:
    assert lead_in_of("6:2:1") == 6
    assert lead_in_of("1110101") == 3
    assert lead_in_of("quality") == LEAD_IN


def test_every_preset_has_a_minimum_that_no_few_step_model_reaches_by_default() -> None:
    assert {preset: minimum_steps(preset) for preset in PRESETS} == {
        "quality": 8,
        "balanced": 7,
        "fast": 7,
        "adaptive": 6,
    }
    assert set(PRESET_RULES) == set(STATIC_PRESETS)
