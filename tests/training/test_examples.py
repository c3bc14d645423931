"""Batches depend on their arguments only, and held-out scenes stay out of them."""

import numpy as np
import pytest

from training import captions
from training.examples import Mixture, held_out_landscapes, held_out_shapes, is_held_out, training_batch
from training.scenes import Landscape

PLAIN = Mixture(vague=0, unknown_words=0, empty=0)


def test_the_same_step_has_the_same_batch() -> None:
    pixels, texts = training_batch(Mixture(), 8, seed=1, step=5)
    again, texts_again = training_batch(Mixture(), 8, seed=1, step=5)
    assert texts == texts_again
    np.testing.assert_array_equal(pixels, again)


@pytest.mark.parametrize(("seed", "step"), [(1, 6), (2, 5)])
def test_another_step_or_seed_has_another_batch(seed: int, step: int) -> None:
    assert training_batch(Mixture(), 8, seed, step)[1] != training_batch(Mixture(), 8, 1, 5)[1]


def test_batches_are_pictures_of_the_models_size() -> None:
    pixels, texts = training_batch(Mixture(), 3, seed=1, step=0)
    assert pixels.shape == (3, 64, 64, 3)
    assert pixels.dtype == np.dtype(np.uint8)
    assert len(texts) == 3


def test_training_never_shows_a_held_out_scene() -> None:
    for step in range(10):
        _, texts = training_batch(PLAIN, 32, seed=1, step=step)
        assert not [text for text in texts if is_held_out(captions.read(text))]


def test_held_out_captions_are_different_and_depend_on_the_seed() -> None:
    examples = held_out_landscapes(200, seed=1)
    texts = [caption for caption, _ in examples]
    assert len(set(texts)) == 200
    assert examples == held_out_landscapes(200, seed=1)
    assert texts != [caption for caption, _ in held_out_landscapes(200, seed=2)]
    assert all(is_held_out(scene) and captions.read(caption) == scene for caption, scene in examples)


def test_held_out_landscapes_show_everything_of_the_grammar() -> None:
    found = [scene for _, scene in held_out_landscapes(300, seed=1) if isinstance(scene, Landscape)]
    assert len(found) == 300
    assert {scene.ground for scene in found} == {"meadow", "beach", "snow", "sea"}
    assert {scene.tree for scene in found} == {None, "green", "orange", "pink"}


def test_shapes_can_be_held_out_too() -> None:
    assert len(held_out_shapes(20, seed=1)) == 20


def test_the_mixture_decides_what_is_drawn() -> None:
    _, texts = training_batch(Mixture(landscapes=1, sea=1, unknown_words=0, empty=0), 16, seed=1, step=0)
    assert all("boat" in text for text in texts)
    _, texts = training_batch(Mixture(empty=1), 16, seed=1, step=0)
    assert set(texts) == {""}
