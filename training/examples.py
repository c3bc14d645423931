"""Draws scenes and captions by lot, and splits them for good into training and held-out ones.

The split is by scene, not by wording: one scene in ten never reaches training in any wording.
Everything depends on the seeds only, so any step's batch can be made again without a stored state.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from training import captions, drawing, scenes
from training.scenes import Landscape, Scene, Shape

Pixels = npt.NDArray[np.uint8]

_HELD_OUT_SHARE: Final = 10  # one scene in ten
_UNKNOWN_WORD: Final = "zzz"


@dataclass(frozen=True)
class Mixture:
    """What a training batch is drawn from; each value is a share between 0 and 1.

    Attributes:
        landscapes: Landscapes among the scenes; the rest are single shapes.
        sea: Boats among the landscapes. There are only 378 scenes with a boat, but 64 800 with a house.
        vague: Landscapes whose caption leaves details out; the picture then shows any of them.
        unknown_words: Captions with one word outside the vocabulary, so that such words do no harm.
        empty: Captions left empty, which true classifier-free guidance needs.
    """

    landscapes: float = 0.88
    sea: float = 0.12
    vague: float = 0.08
    unknown_words: float = 0.06
    empty: float = 0.08


def random_landscape(rng: random.Random, sea: float = 0.25) -> Landscape:
    """Any landscape of the grammar; with the default every ground is equally likely."""
    ground = "sea" if rng.random() < sea else rng.choice(("meadow", "beach", "snow"))
    sky, side = rng.choice(tuple(scenes.SKIES)), rng.choice(scenes.SIDES)
    far, light = rng.choice((None, *scenes.FAR)), rng.choice((None, *scenes.SIDES))
    if ground == "sea":
        return Landscape(sky, ground, side, sail=rng.choice(scenes.SAILS), far=far, light=light)
    if rng.random() < 0.25:
        return Landscape(sky, ground, side, tree=rng.choice(tuple(scenes.TREES)), far=far, light=light)
    wall, roof = rng.choice(scenes.WALLS), rng.choice(scenes.ROOFS)
    tree = rng.choice((None, *scenes.TREES))
    return Landscape(sky, ground, side, wall=wall, roof=roof, tree=tree, far=far, light=light)


def random_shape(rng: random.Random) -> Shape:
    """Any single shape of the grammar, never on a background of its own colour."""
    background = rng.choice(tuple(scenes.COLOURS)) if rng.random() < 0.8 else "white"
    return Shape(
        shape=rng.choice(scenes.SHAPES),
        colour=rng.choice([name for name in scenes.COLOURS if name != background]),
        size=rng.choice(("small", "medium", "medium", "large", "large")),
        place=rng.choice(("center", "center", *scenes.PLACES)),
        background=background,
    )


def is_held_out(scene: Scene) -> bool:
    """Whether the scene is kept away from training."""
    return zlib.crc32(repr(astuple(scene)).encode()) % _HELD_OUT_SHARE == 0


def held_out_landscapes(count: int, seed: int) -> list[tuple[str, Scene]]:
    """Different captions of landscapes that training never sees, with their scenes."""
    return _held_out(random_landscape, count, seed)


def held_out_shapes(count: int, seed: int) -> list[tuple[str, Scene]]:
    """Different captions of single shapes that training never sees, with their scenes."""
    return _held_out(random_shape, count, seed)


def _held_out(sample: Callable[[random.Random], Scene], count: int, seed: int) -> list[tuple[str, Scene]]:
    rng = random.Random(seed)
    found: dict[str, Scene] = {}
    while len(found) < count:
        scene = sample(rng)
        if is_held_out(scene):
            found.setdefault(captions.write(scene, rng), scene)
    return list(found.items())


def training_batch(mixture: Mixture, count: int, seed: int, step: int) -> tuple[Pixels, list[str]]:
    """The pictures (count, 64, 64, 3) and captions of one step; the same arguments give the same batch."""
    rng = random.Random(seed * 1_000_003 + step)
    examples = [_example(scene, mixture, rng) for scene in _training_scenes(mixture, count, rng)]
    return np.stack([pixels for pixels, _ in examples]), [caption for _, caption in examples]


def _training_scenes(mixture: Mixture, count: int, rng: random.Random) -> Iterator[Scene]:
    made = 0
    while made < count:
        is_landscape = rng.random() < mixture.landscapes
        scene = random_landscape(rng, mixture.sea) if is_landscape else random_shape(rng)
        if not is_held_out(scene):
            made += 1
            yield scene


def _example(scene: Scene, mixture: Mixture, rng: random.Random) -> tuple[Pixels, str]:
    pixels = np.asarray(drawing.draw(scene, rng), np.uint8)
    caption = captions.write(scene, rng)
    if rng.random() < mixture.empty:
        return pixels, ""
    if isinstance(scene, Landscape) and rng.random() < mixture.vague:
        caption = captions.leave_out_details(caption, rng)
    if rng.random() < mixture.unknown_words:
        words = caption.split()
        words.insert(rng.randint(0, len(words)), _UNKNOWN_WORD)
        caption = " ".join(words)
    return pixels, caption
