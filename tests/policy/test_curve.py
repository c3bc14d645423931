"""Fitted masks: which one a job gets."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.maskfile import write_curve
from policy.catalogue import Catalogue
from policy.curve import Curve, Fit, FittedMask, read_curve
from policy.errors import InvalidCatalogue
from policy.mask import PRESET_RULES, choose_mask, step_mask
from tests.policy.parts import FLUX, TINY, problems

HALF_OF_8, HALF_OF_16 = "11010101", "1101010101010011"
QUARTER_OF_8, QUARTER_OF_16 = "11011101", "1101110111011101"


def point(mask: str, order: int = 2) -> dict[str, Any]:
    figures = dict.fromkeys(("fit_mean_db", "fit_worst_db", "check_mean_db", "check_worst_db"), 50.0)
    return {"mask": mask, "order": order, **figures}


def fit(*masks: dict[str, Any]) -> dict[str, Any]:
    return {
        "steps": len(masks[0]["mask"]),
        "date": dt.date(2026, 12, 1),
        "command": "renderq bench cache tiny --fit",
        "device": "CPU",
        "prompts": 24,
        "check_prompts": 72,
        "seed": 1,
        "versions": {"torch": "2.13.0"},
        "masks": masks,
    }


def curve_of(*fits: dict[str, Any]) -> Curve:
    return Curve.model_validate({"model": "tiny", "fits": fits})


CURVE = curve_of(
    fit(point(QUARTER_OF_8, 1), point(HALF_OF_8, 1)), fit(point(QUARTER_OF_16), point(HALF_OF_16))
)


def chosen(rule: str, steps: int, **settings: Any) -> str:
    return "".join(map(str, choose_mask(rule, steps, CURVE, **settings).mask))


def test_a_fitted_count_gets_the_mask_whose_share_is_nearest() -> None:
    assert chosen("fit:50", 8) == HALF_OF_8
    assert chosen("fit:27", 8) == QUARTER_OF_8
    assert chosen("fit:99", 16) == HALF_OF_16
    assert (chosen("fit:31", 8), chosen("fit:32", 8)) == (QUARTER_OF_8, HALF_OF_8)
    assert choose_mask("fit:50", 8, CURVE).order == 1
    assert choose_mask("fit:50", 16, CURVE).order == 2


def test_a_count_between_two_is_a_mixture_of_both() -> None:
    between = choose_mask("fit:50", 12, CURVE)
    assert "".join(map(str, between.mask)) == "111001011001"
    assert (between.mask.count(0), between.order, between.fitted) == (5, 1, False)
    assert choose_mask("fit:50", 13, CURVE).order == 2, "of the nearer count"


def test_beyond_the_largest_its_mask_is_stretched_and_below_the_smallest_the_rule_is_used() -> None:
    assert chosen("fit:50", 32).count("0") == 14
    for preset, rule in PRESET_RULES.items():
        percent = {"quality": 27, "balanced": 50, "fast": 58}[preset]
        assert choose_mask(f"fit:{percent}", 7, CURVE).mask == step_mask(rule, 7)
        assert choose_mask(f"fit:{percent}", 24).mask == step_mask(rule, 24), "and where nothing was fitted"


@given(st.integers(1, 99), st.integers(1, 120), st.sampled_from([CURVE, TINY.curve]))
def test_every_mask_is_as_long_as_the_job_and_computes_the_lead_in_and_the_last_step(
    percent: int, steps: int, curve: Curve | None
) -> None:
    mask = choose_mask(f"fit:{percent}", steps, curve).mask
    assert len(mask) == steps
    assert set(mask) <= {0, 1}
    assert (mask[0], mask[-1]) == (1, 1)
    if steps > 1:
        assert mask[1] == 1, "a predictor needs two points"


@given(st.integers(9, 15), st.sampled_from([25, 50]))
def test_a_mixture_reuses_the_mixed_share(steps: int, percent: int) -> None:
    low, high = (CURVE.fits[0].nearest(percent), CURVE.fits[1].nearest(percent))
    weight = (steps - 8) / 8
    share = (1 - weight) * low.reused / 8 + weight * high.reused / 16
    assert abs(chosen(f"fit:{percent}", steps).count("0") - share * steps) <= 0.51


def test_a_lead_in_takes_the_first_reused_steps_away() -> None:
    assert chosen("fit:50", 8, lead_in=5) == "11111101"
    assert chosen("fit:50", 8, lead_in=20) == "1" * 8


def test_a_share_of_reused_steps_is_counted_within_a_step_too() -> None:
    mask = FittedMask.model_validate(point(HALF_OF_8))
    assert [round(mask.reused_before(part), 3) for part in (0, 0.25, 0.3125, 0.375, 1)] == [
        0,
        0,
        0.167,
        0.333,
        1,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masks": [point("0110")]}, "pattern"),
        ({"masks": [point("1111")]}, "each mask reuses a step"),
        ({"masks": [point("1101"), point("1011")]}, "has one mask"),
        ({"masks": [point("11011")]}, "a digit for each of the 4 steps"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fit.model_validate(fit(point("1101")) | change)


def test_the_counts_of_a_curve_ascend() -> None:
    one = fit(point(HALF_OF_8))
    for fits in ([one, one], [fit(point(HALF_OF_16)), one]):
        with pytest.raises(ValueError, match="ascend"):
            curve_of(*fits)


def test_a_curve_about_another_checkpoint_is_refused(tmp_path: Path) -> None:
    bundled = Path(__file__).parents[2] / "policy" / "catalogue"
    (tmp_path / "masks").mkdir()
    (tmp_path / "tiny.toml").write_text((bundled / "tiny.toml").read_text())
    text = (bundled / "masks" / "tiny.toml").read_text()
    file = tmp_path / "masks" / "tiny.toml"
    file.write_text(text)
    assert Catalogue.load(tmp_path)["tiny"].curve == TINY.curve
    file.write_text(text.replace('model = "tiny"', 'model = "tiny"\nrevision = "main"'))
    with pytest.raises(InvalidCatalogue, match=r"made for tiny at revision main, .* fit the masks anew"):
        Catalogue.load(tmp_path)
    file.write_text("fits = 1")
    with pytest.raises(InvalidCatalogue, match=r"tiny.toml: model is missing; fits must be a list, not 1"):
        read_curve(file)


def test_masks_of_ones_own_add_step_counts_to_the_bundled_ones_and_replace_those_of_the_same(
    tmp_path: Path,
) -> None:
    own = curve_of(fit(point(HALF_OF_8)), fit(point("1" * 19 + "0" * 4 + "1")))
    assert TINY.curve is not None
    write_curve(own, tmp_path)
    curve = Catalogue.load(tmp_path)["tiny"].curve
    assert curve is not None
    assert [found.steps for found in curve.fits] == [8, 20, 24, 28]
    assert curve.fits[0] == own.fits[0]
    assert curve.fits[1] == TINY.curve.fits[0]
    assert curve.fits[2] == own.fits[1]


def test_masks_for_a_model_that_there_is_not_are_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write_curve(curve_of(fit(point(HALF_OF_8))), tmp_path)
    path.write_text(path.read_text().replace('model = "tiny"', 'model = "tinny"'))
    with pytest.raises(InvalidCatalogue, match=r'tiny.toml: model: no model "tinny" .* did you mean "tiny"'):
        Catalogue.load(tmp_path)


def test_a_worker_cannot_ask_for_a_fitted_mask_that_there_is_not() -> None:
    error = problems(FLUX, {"cache_scm": "fit:50"})["cache_scm"]
    assert error.message == "cache_scm fit:50 asks for a fitted mask, and none was fitted to flux.1-dev"
    assert error.nearest == "4:1:1"
