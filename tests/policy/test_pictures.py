"""Pictures that are given: the size of the result, the part that is used, and the steps that are run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.catalogue import Catalogue
from policy.pictures import Box, PlannedPicture, crop_box, size_like
from policy.spec_tables import Size, SizeLimits
from policy.strength import LEAST, executed_steps

CATALOGUE = Catalogue.load()
SIDES = st.integers(1, 9000)
LIMITS = st.sampled_from([spec.size for spec in CATALOGUE.values() if spec.inputs is not None])


@given(SIDES, SIDES, LIMITS)
def test_a_result_like_a_picture_is_one_that_the_model_takes(
    width: int, height: int, limits: SizeLimits
) -> None:
    assert limits.admits(*size_like((width, height), limits))


@pytest.mark.parametrize(
    ("picture", "result"),
    [
        ((1024, 1024), (1024, 1024)),
        ((640, 480), (640, 480)),
        ((4000, 3000), (1184, 880)),  # as many pixels as the default
        ((3000, 4000), (880, 1184)),
        ((100, 80), (320, 256)),  # the shorter side reaches the model's least
        ((9000, 100), (2048, 256)),
    ],
)
def test_the_shape_is_the_pictures_and_the_pixels_no_more_than_usual(picture: Size, result: Size) -> None:
    assert size_like(picture, CATALOGUE["flux.1-dev"].size) == result


def test_a_model_of_one_size_makes_that_size() -> None:
    assert size_like((4000, 3000), CATALOGUE["tiny"].size) == (64, 64)


@given(SIDES, SIDES, st.integers(1, 200), st.integers(1, 200))
def test_nothing_is_stretched_and_most_is_kept(width: int, height: int, wide: int, high: int) -> None:
    left, top, right, bottom = crop_box((width, height), (wide, high))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (right - left == width) or (bottom - top == height)
    assert abs(left - (width - right)) <= 1
    assert abs(top - (height - bottom)) <= 1
    # The shape is right to half a pixel, where there are pixels to choose from.
    assert abs((right - left) * high - (bottom - top) * wide) <= max(wide, high) * 0.5 + max(
        0, wide - width, high - height
    ) * max(width, height)


@pytest.mark.parametrize(
    ("size", "result", "crop"),
    [
        ((200, 100), (64, 64), (50, 0, 150, 100)),
        ((100, 200), (64, 64), (0, 50, 100, 150)),
        ((64, 64), (64, 64), (0, 0, 64, 64)),
        ((300, 100), (64, 32), (50, 0, 250, 100)),
    ],
)
def test_what_stands_over_is_cut_at_both_sides(size: Size, result: Size, crop: Box) -> None:
    assert PlannedPicture.cut("0" * 64, size, result).crop == crop


@pytest.mark.parametrize(
    ("steps", "strength", "run"),
    [
        (24, None, 24),
        (24, 1.0, 24),
        (24, 0.5, 12),
        (10, 0.35, 4),
        (28, 0.6, 17),
        (4, 0.25, 1),
        (30, 0.1, 3),
        (10, 0.05, 1),
    ],
)
def test_strength_shortens_the_steps(steps: int, strength: float | None, run: int) -> None:
    assert executed_steps(steps, strength) == run


@given(st.integers(1, 1000), st.floats(LEAST, 1.0))
def test_any_strength_runs_a_step(steps: int, strength: float) -> None:
    assert 1 <= executed_steps(steps, strength) <= steps
    assert executed_steps(steps, LEAST) == 1
