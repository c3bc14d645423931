"""The checker accepts the drawings of a caption and nothing else."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from PIL import Image

from training import drawing, scenes
from training.captions import UnknownCaptionError
from training.checker import check, judge
from training.examples import held_out_landscapes, held_out_shapes
from training.scenes import Landscape, Scene

Drawn = list[tuple[str, Scene, Image.Image]]


def draw_all(examples: list[tuple[str, Scene]]) -> Drawn:
    return [(caption, scene, drawing.draw(scene, random.Random(caption))) for caption, scene in examples]


@pytest.fixture(scope="module")
def landscapes() -> Drawn:
    return draw_all(held_out_landscapes(300, seed=1))


@pytest.fixture(scope="module")
def shapes() -> Drawn:
    return draw_all(held_out_shapes(100, seed=1))


def test_drawings_are_right(landscapes: Drawn, shapes: Drawn) -> None:
    verdicts = {caption: judge(caption, picture) for caption, _, picture in landscapes + shapes}
    assert {caption: verdict.wrong for caption, verdict in verdicts.items() if not verdict.correct} == {}


def test_the_picture_of_another_caption_is_wrong(landscapes: Drawn, shapes: Drawn) -> None:
    for drawn in (landscapes, shapes):
        for (caption, scene, _), (_, other_scene, other_picture) in pairwise(drawn):
            assert scene == other_scene or not judge(caption, other_picture).correct, caption


def one_thing_changed(scene: Landscape, rng: random.Random) -> tuple[str, Landscape]:
    choices: dict[str, tuple[str | None, ...]] = {
        "sky": tuple(scenes.SKIES),
        "light": (None, *scenes.SIDES),
        "far": (None, *scenes.FAR),
    }
    if scene.wall:
        choices |= {"wall": scenes.WALLS, "roof": scenes.ROOFS, "tree": (None, *scenes.TREES)}
    if scene.sail:
        choices["sail"] = scenes.SAILS
    name = rng.choice(tuple(choices))
    other = rng.choice([value for value in choices[name] if value != getattr(scene, name)])
    changes: dict[str, Any] = {name: other}
    return name, replace(scene, **changes)


def test_a_single_wrong_thing_is_noticed(landscapes: Drawn) -> None:
    rng = random.Random(2)
    for _, scene, _ in landscapes:
        assert isinstance(scene, Landscape)
        changed, other = one_thing_changed(scene, rng)
        found = check(scene, drawing.draw(other, rng))
        assert not all(found.values()), f"{changed} of {scene} drawn as {other}"


def test_things_on_the_wrong_side_are_noticed(landscapes: Drawn) -> None:
    for _, scene, _ in landscapes[:100]:
        assert isinstance(scene, Landscape)
        mirrored = replace(scene, side="left" if scene.side == "right" else "right")
        assert not all(check(scene, drawing.draw(mirrored, random.Random(3))).values())


def test_noise_and_blank_pictures_are_wrong(landscapes: Drawn, shapes: Drawn) -> None:
    noise = Image.effect_noise((64, 64), 80)
    for caption, _, _ in landscapes + shapes:
        assert not judge(caption, noise).correct
        assert not judge(caption, Image.new("RGB", (64, 64), "white")).correct


def test_what_is_wrong_is_named() -> None:
    night = drawing.draw(Landscape(sky="night", ground="sea", side="left", sail="pink"), random.Random(0))
    verdict = judge("a boat with a red sail on the sea at night, the moon on the left", night)
    assert verdict.wrong == ("light", "sail")


def test_larger_pictures_are_judged_too() -> None:
    scene = Landscape(sky="day", ground="meadow", side="left", wall="red", roof="blue")
    picture = drawing.draw(scene, random.Random(0), size=256)
    assert judge("a red house with a blue roof on a meadow", picture).correct


def test_a_caption_outside_the_grammar_cannot_be_judged() -> None:
    with pytest.raises(UnknownCaptionError):
        judge("a cat on a sofa", Image.new("RGB", (64, 64)))
