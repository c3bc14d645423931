"""The sentences that name a scene: writing them and reading them back.

What a caption leaves unsaid has one meaning: the left side, daylight, a white wall, no sun, and for
shapes the middle, the medium size and a white background.
"""

import random
import re
from collections.abc import Iterable, Mapping
from typing import Final

from training.scenes import (
    COLOURS,
    FAR,
    PLACES,
    ROOFS,
    SAILS,
    SHAPES,
    SIDES,
    TREES,
    WALLS,
    Landscape,
    Scene,
    Shape,
)

_GROUND_WORDS: Final = {
    "meadow": (" on a meadow", " on green grass"),
    "beach": (" on a beach",),
    "snow": (" in the snow",),
    "sea": (" on the sea",),
}
_SKY_WORDS: Final = {
    "day": ("", " by day", " under a blue sky"),
    "night": (" at night",),
    "sunset": (" at sunset",),
}
_SIZE_WORDS: Final = {
    "small": ("small ", "tiny ", "little "),
    "medium": ("", "", "", "medium "),
    "large": ("large ", "big ", "huge "),
}
_PLACE_WORDS: Final = {
    "center": ("", "", "", " in the center", " in the middle"),
    "left": (" on the left", " on the left side"),
    "right": (" on the right", " on the right side"),
    "top": (" at the top", " near the top"),
    "bottom": (" at the bottom", " near the bottom"),
    **{
        corner: (f" in the {corner} corner", f" in the {corner}", f" at the {corner}")
        for corner in PLACES
        if " " in corner
    },
}
_OPENINGS: Final = ("", "", "", "a picture of ", "a drawing of ", "an image of ")


class UnknownCaptionError(ValueError):
    """The caption is not a sentence of the grammar."""


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def write(scene: Scene, rng: random.Random) -> str:
    """Name a scene, choosing among the equal wordings."""
    return _write_landscape(scene, rng) if isinstance(scene, Landscape) else _write_shape(scene, rng)


def _write_landscape(scene: Landscape, rng: random.Random) -> str:
    things = _things(scene, rng)
    if scene.side == "right" or rng.random() < 0.5:
        things[0] += f" on the {scene.side}"
    text = " and ".join(things) + rng.choice(_GROUND_WORDS[scene.ground])
    if scene.far:
        text += f" {rng.choice(('with', 'and'))} {scene.far}"
    text += rng.choice(_SKY_WORDS[scene.sky])
    if scene.light:
        text += f", the {'moon' if scene.sky == 'night' else 'sun'} on the {scene.light}"
    return text


def _things(scene: Landscape, rng: random.Random) -> list[str]:
    things = []
    if scene.sail:
        things.append(f"a boat with {_a(scene.sail)} sail")
    if scene.wall and scene.roof:
        house = "a house" if scene.wall == "white" and rng.random() < 0.5 else f"{_a(scene.wall)} house"
        things.append(f"{house} with {_a(scene.roof)} roof")
    if scene.tree:
        things.append(f"{_a(scene.tree)} tree")
    return things


def _write_shape(scene: Shape, rng: random.Random) -> str:
    name = _a(f"{rng.choice(_SIZE_WORDS[scene.size])}{scene.colour} {scene.shape}")
    text = rng.choice(_OPENINGS) + name + rng.choice(_PLACE_WORDS[scene.place])
    if scene.background == "white" and rng.random() < 0.5:
        return text
    article = _a(scene.background)
    return text + rng.choice(
        (f" on {article} background", f", {scene.background} background", f" on {scene.background}")
    )


def _any(words: Iterable[str]) -> str:
    """A regular expression for one of the words, the longest tried first."""
    return "|".join(sorted(map(re.escape, set(words)), key=lambda word: (-len(word), word)))


def _scene_of(words: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """From each wording to what it says."""
    return {wording: meaning for meaning, wordings in words.items() for wording in wordings}


_GROUND_OF: Final = _scene_of(_GROUND_WORDS)
_SKY_OF: Final = _scene_of(_SKY_WORDS)
_SIZE_OF: Final = _scene_of(_SIZE_WORDS)
_PLACE_OF: Final = _scene_of(_PLACE_WORDS)
_TREE: Final = f"an? (?P<{{}}>{_any(TREES)}) tree"
_LANDSCAPE: Final = re.compile(
    rf"(?:a boat with an? (?P<sail>{_any(SAILS)}) sail"
    rf"|an?(?: (?P<wall>{_any(WALLS)}))? (?P<house>house) with an? (?P<roof>{_any(ROOFS)}) roof"
    rf"|{_TREE.format('lone_tree')})"
    rf"(?: on the (?P<side>{_any(SIDES)}))?"
    rf"(?: and {_TREE.format('tree')})?"
    rf"(?P<ground>{_any(_GROUND_OF)})"
    rf"(?: (?:with|and) (?P<far>{_any(FAR)}))?"
    rf"(?P<sky>{_any(_SKY_OF)})"
    rf"(?:, the (?P<lamp>sun|moon) on the (?P<light>{_any(SIDES)}))?"
)
_BACKGROUND: Final = (
    rf"(?: on an? (?P<{{}}>{_any(COLOURS)}) background|, (?P<{{}}>{_any(COLOURS)}) background"
)
_SHAPE: Final = re.compile(
    rf"(?:{_any(_OPENINGS)})an? (?P<size>{_any(_SIZE_OF)})(?P<colour>{_any(COLOURS)})"
    rf" (?P<shape>{_any(SHAPES)})(?P<place>{_any(_PLACE_OF)})"
    rf"{_BACKGROUND.format('behind', 'plain')}| on (?P<bare>{_any(COLOURS)}))?"
)


_ROOF_OR_SAIL: Final = re.compile(rf" with an? (?:{_any((*ROOFS, *SAILS))}) (?:roof|sail)")
_COLOUR_OF_THING: Final = re.compile(rf"an? (?:{_any((*WALLS, *TREES))}) (?=house|tree)")
_ANY_GROUND: Final = re.compile(_any(_GROUND_OF))


def leave_out_details(landscape: str, rng: random.Random) -> str:
    """A shorter sentence, outside the grammar, that a landscape's caption is one answer to.

    The roof or sail always goes, other colours and the ground sometimes: "a red house at night".
    """
    text = _ROOF_OR_SAIL.sub("", landscape)
    if rng.random() < 0.5:
        text = _COLOUR_OF_THING.sub("a ", text)
    return _ANY_GROUND.sub("", text) if rng.random() < 0.5 else text


def read(caption: str) -> Scene:
    """The scene that a caption names; capitals and a final full stop do not matter.

    Raises:
        UnknownCaptionError: The caption is no sentence of the grammar, or contradicts itself.
    """
    text = " ".join(caption.lower().split()).removesuffix(".")
    if found := _LANDSCAPE.fullmatch(text):
        return _read_landscape(found.groupdict(), caption)
    if found := _SHAPE.fullmatch(text):
        return _read_shape(found.groupdict(), caption)
    raise UnknownCaptionError(f"not a caption of the tiny model's grammar: {caption!r}")


def _read_landscape(said: dict[str, str | None], caption: str) -> Landscape:
    ground, sky = _GROUND_OF[said["ground"] or ""], _SKY_OF[said["sky"] or ""]
    if (ground == "sea") != bool(said["sail"]):
        raise UnknownCaptionError(f"boats are on the sea and nothing else is: {caption!r}")
    if said["tree"] and not said["house"]:
        raise UnknownCaptionError(f"only a house has a tree beside it: {caption!r}")
    if said["lamp"] and (said["lamp"] == "moon") != (sky == "night"):
        raise UnknownCaptionError(f"the moon shines at night, the sun does not: {caption!r}")
    return Landscape(
        sky=sky,
        ground=ground,
        side=said["side"] or "left",
        wall=(said["wall"] or "white") if said["house"] else None,
        roof=said["roof"],
        sail=said["sail"],
        tree=said["tree"] or said["lone_tree"],
        far=said["far"],
        light=said["light"],
    )


def _read_shape(said: dict[str, str | None], caption: str) -> Shape:
    background = said["behind"] or said["plain"] or said["bare"] or "white"
    if background == said["colour"]:
        raise UnknownCaptionError(f"a {background} shape does not show on {background}: {caption!r}")
    return Shape(
        shape=said["shape"] or "",
        colour=said["colour"] or "",
        size=_SIZE_OF[said["size"] or ""],
        place=_PLACE_OF[said["place"] or ""],
        background=background,
    )
