"""Captions of the grammar name one scene each and are read back exactly."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import captions
from training.captions import UnknownCaptionError
from training.examples import random_landscape, random_shape
from training.scenes import Landscape, Shape


@given(st.integers(0, 2**32))
def test_every_caption_is_read_back_as_the_scene_it_was_written_for(seed: int) -> None:
    rng = random.Random(seed)
    for scene in (random_landscape(rng), random_shape(rng)):
        assert captions.read(captions.write(scene, rng)) == scene


def test_what_a_landscape_leaves_unsaid_has_one_meaning() -> None:
    assert captions.read("a house with a red roof on a meadow") == Landscape(
        sky="day", ground="meadow", side="left", wall="white", roof="red"
    )
    assert captions.read("A boat with a red sail on the sea.") == Landscape(
        sky="day", ground="sea", side="left", sail="red"
    )


def test_a_full_landscape_is_understood() -> None:
    caption = "a white house with a blue roof and an orange tree on a beach and mountains at sunset"
    assert captions.read(caption) == Landscape(
        sky="sunset", ground="beach", side="left", wall="white", roof="blue", tree="orange", far="mountains"
    )


def test_a_caption_can_leave_details_out() -> None:
    caption = "a red house with a blue roof on the right and a green tree in the snow at night"
    assert {captions.leave_out_details(caption, random.Random(seed)) for seed in range(20)} == {
        "a red house on the right and a green tree in the snow at night",
        "a red house on the right and a green tree at night",
        "a house on the right and a tree in the snow at night",
        "a house on the right and a tree at night",
    }


def test_what_a_shape_leaves_unsaid_has_one_meaning() -> None:
    assert captions.read("a red circle") == Shape("circle", "red", "medium", "center", "white")


@pytest.mark.parametrize(
    "caption",
    [
        "",
        "a cat on a meadow",
        "a boat with a red sail on a meadow",
        "a green tree on the sea",
        "a green tree and a pink tree on a meadow",
        "a green tree on a meadow, the moon on the left",
        "a green tree on a meadow at night, the sun on the left",
        "a green tree on a meadow at night at sunset",
        "a red circle on a red background",
        "a white circle",
    ],
)
def test_other_sentences_are_refused(caption: str) -> None:
    with pytest.raises(UnknownCaptionError):
        captions.read(caption)
