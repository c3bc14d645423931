"""What the warm-up finds out of passes that draw several pictures: whether each is the one it is alone.

Pictures are drawn alone first and then in passes of two, three and more, beside others. A pass counts as
exact when latents and decoded values of every picture have the same bits both ways, and not only the same
pixels: what rounding to eight bits hides in these pictures would show in others. Prompts are of several
lengths, and, where that is not exact, of one: some pipelines pad prompts to the longest of the pass.
All that is of few steps. Passes that are close then are judged by one with the steps of a job.

Nothing of this fails a worker. A pass that cannot be drawn, that does not fit into memory or that compiles
anew each time is not shared, and the worker's row says why.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from pipeline.compilation import compiles_so_far
from pipeline.distance import measure_distance
from pipeline.errors import OutOfMemory
from pipeline.render import Drawn, Pass
from pipeline.shapes import Shape
from policy.cache import CacheConfig
from policy.microbatch import Likeness, Sizes
from policy.plan import RenderPlan
from policy.request import Quality

CLOSE_DB = 40.0
"""Least peak signal-to-noise ratio of pictures that count as close, dB; measured are 46 dB and more."""

DrawPass = Callable[[Sequence[RenderPlan]], Pass]


class Compared(NamedTuple):
    """How the pictures of a pass compare with those drawn alone; ``words`` are for the worker's row."""

    likeness: Likeness
    words: str


class _Kept(NamedTuple):
    bits: bytes
    pixels: np.ndarray


@dataclass(slots=True)
class Found:
    """What is known of the passes of one shape, by the number of their pictures."""

    mixed: dict[int, Compared] = field(default_factory=dict)
    alike: dict[int, Compared] = field(default_factory=dict)

    def sizes(self, quality: Quality) -> Sizes:
        """Returns how many pictures a pass for this quality may hold."""
        mixed = [size for size, found in self.mixed.items() if found.likeness.serves(quality)]
        alike = [size for size, found in self.alike.items() if found.likeness.serves(quality)]
        return Sizes(tuple(sorted(mixed)), tuple(sorted({*mixed, *alike})))

    def likeness(self, size: int, *, alike: bool) -> Likeness:
        """Returns how the pictures of such a pass compare with single ones; ``alike``: of one prompt."""
        both = (self.mixed, self.alike) if alike else (self.mixed,)
        known = {found[size].likeness for found in both if size in found}
        return next((best for best in Likeness if best in known), Likeness.OTHER)

    @property
    def drawn(self) -> tuple[int, ...]:
        """The numbers of pictures whose passes were drawn as asked for."""
        both = {**self.mixed, **self.alike}.items()
        return tuple(size for size, found in both if found.likeness is not Likeness.OTHER)

    def forbid(self, size: int) -> None:
        """Notes that passes of this size, and so of larger ones, do not fit into memory."""
        for found in (self.mixed, self.alike):
            found.update({n: _NO_MEMORY for n in found if n >= size})

    def in_words(self) -> dict[str, str]:
        """Returns what the worker's row tells."""
        return {str(size): self._of(size) for size in sorted(self.mixed)}

    def _of(self, size: int) -> str:
        alike = self.alike.get(size)
        words = self.mixed[size].words
        return words if alike is None else f"{words}; of one prompt: {alike.words}"


_NO_MEMORY = Compared(Likeness.OTHER, "not enough memory")
Unfit = Mapping[int, Compared]
Result = TypeVar("Result")


class Way(NamedTuple):
    """What a look is true of; plans that are drawn in another way are drawn alone.

    Attributes:
        shape: Of a single picture.
        kernel: Of attention.
        settings: Of the cache of each transformer, but for what depends on a job's steps.
    """

    shape: Shape
    kernel: str
    settings: tuple[CacheConfig, ...]


class Together:
    """The passes of several pictures that one engine may draw."""

    def __init__(self) -> None:
        self._found: dict[Way, Found] = {}

    def note(self, way: Way, found: Found) -> None:
        """Notes what was found."""
        self._found[way] = found

    def sizes(self, way: Way, quality: Quality) -> Sizes:
        """Returns how many pictures a pass may hold; none where nobody looked."""
        found = self._found.get(way)
        return Sizes() if found is None else found.sizes(quality)

    def likeness(self, way: Way, size: int, *, alike: bool) -> Likeness:
        """Returns how the pictures of a pass compare with single ones."""
        found = self._found.get(way)
        return Likeness.OTHER if found is None else found.likeness(size, alike=alike)

    def forbid(self, shape: Shape, size: int) -> None:
        """Notes that a pass of this size did not fit into memory."""
        for way, found in self._found.items():
            if way.shape == shape:
                found.forbid(size)

    def in_words(self) -> dict[str, dict[str, str]]:
        """Returns what the worker's row tells, by shape."""
        several = len({way.kernel for way in self._found}) > 1
        return {
            f"{way.shape} on {way.kernel}" if several else str(way.shape): found.in_words()
            for way, found in self._found.items()
        }


def warm(draw: DrawPass, plan: RenderPlan, prompts: Sequence[str], most: int) -> Unfit:
    """Draws every pass of 2 to ``most`` pictures once, for what they compile.

    A pass may leave code behind that single pictures run from then on, also at other sizes: so everything is
    warmed before the first single picture is drawn to be compared with.

    Returns:
        The numbers of pictures that cannot be drawn, and why.
    """
    return _warm(draw, _mixed(plan, prompts, most))


def look(
    draw: DrawPass,
    plan: RenderPlan,
    prompts: Sequence[str],
    most: int,
    *,
    warmed: Unfit | None = None,
    in_full: DrawPass | None = None,
) -> Found:
    """Draws a plan alone and in passes of 2 to ``most`` pictures, and compares.

    Args:
        draw: Draws one pass.
        plan: What to draw; each picture has a seed of its own.
        prompts: Of several lengths.
        most: Most pictures in one pass.
        warmed: What `warm` gave of them; None: nothing is compiled.
        in_full: Draws a pass with all steps of a job; None: close ones are as close as the short ones are.
    """
    mixed, alike = _mixed(plan, prompts, most), _seeded(plan, most)
    found = Found(mixed=_look(draw, mixed, warmed or {}))
    if any(compared.likeness is not Likeness.EXACT for compared in found.mixed.values()):
        found.alike = _look(draw, alike, {} if warmed is None else _warm(draw, alike))
    if in_full is not None:
        found.mixed |= _judge(in_full, mixed, _close(found.mixed))
        rest = {size: each for size, each in _close(found.alike).items() if size not in _close(found.mixed)}
        found.alike |= _judge(in_full, alike, rest)
    return found


def _close(found: Mapping[int, Compared]) -> dict[int, Compared]:
    return {size: each for size, each in found.items() if each.likeness is Likeness.CLOSE}


def _judge(draw: DrawPass, plans: Sequence[RenderPlan], close: Mapping[int, Compared]) -> dict[int, Compared]:
    """Judges passes that are close after few steps by the largest of them in full: differences grow."""
    if not close:
        return {}
    most = max(close)

    def compare_pass(size: int) -> Compared:
        alone = [_keep(draw([plan]).drawn[0]) for plan in plans[:size]]
        return compare(list(map(_keep, draw(plans[:size]).drawn)), alone)

    done, unfit = _try_each([most], compare_pass)
    judged = {**done, **unfit}[most]
    if judged.likeness is Likeness.EXACT:  # which few steps were not
        judged = Compared(Likeness.CLOSE, "close, equal bits")
    told = f"{judged.words} in full, {most} at once"
    few = {size: f"{each.words} in few steps" for size, each in close.items()}
    return {size: Compared(judged.likeness, f"{told}; {words}") for size, words in few.items()}


def _seeded(plan: RenderPlan, most: int) -> list[RenderPlan]:
    return [plan.model_copy(update={"seed": seed}) for seed in range(most)]


def _mixed(plan: RenderPlan, prompts: Sequence[str], most: int) -> list[RenderPlan]:
    return [
        each.model_copy(update={"prompt": prompts[index % len(prompts)]})
        for index, each in enumerate(_seeded(plan, most))
    ]


def _warm(draw: DrawPass, plans: Sequence[RenderPlan]) -> Unfit:
    _, unfit = _try_each(range(2, len(plans) + 1), lambda size: draw(plans[:size]))
    return unfit


def _look(draw: DrawPass, plans: Sequence[RenderPlan], unfit: Unfit) -> dict[int, Compared]:
    alone: list[_Kept] = []

    def compare_pass(size: int) -> Compared:
        alone.extend(_keep(draw([plan]).drawn[0]) for plan in plans[len(alone) : size])
        before = compiles_so_far()
        drawn = list(map(_keep, draw(plans[:size]).drawn))
        if compiles_so_far() > before:
            return Compared(Likeness.OTHER, "compiles anew each time")
        return compare(drawn, alone)

    sizes = [size for size in range(2, len(plans) + 1) if size not in unfit]
    found, unfit_now = _try_each(sizes, compare_pass)
    return {**unfit, **found, **unfit_now}


def _try_each(sizes: Sequence[int], do: Callable[[int], Result]) -> tuple[dict[int, Result], Unfit]:
    """Does something for each size; what does not fit ends it, and any other error is told of its size."""
    done: dict[int, Result] = {}
    unfit: dict[int, Compared] = {}
    for size in sizes:
        try:
            done[size] = do(size)
        except OutOfMemory:
            return done, unfit | {each: _NO_MEMORY for each in sizes if each >= size}
        except Exception as error:  # noqa: BLE001 - whatever it is, such passes are not shared then
            words = " ".join(str(error).split())[:200]
            unfit[size] = Compared(Likeness.OTHER, f"cannot be drawn: {type(error).__name__}: {words}")
    return done, unfit


def compare(drawn: Sequence[_Kept], alone: Sequence[_Kept]) -> Compared:
    """Compares pictures of a pass with the same ones drawn alone, each by each."""
    pairs = list(zip(drawn, alone, strict=False))
    if all(one.bits == other.bits for one, other in pairs):
        return Compared(Likeness.EXACT, "exact")
    worst = measure_distance([one.pixels for one, _ in pairs], [other.pixels for _, other in pairs]).worst_db
    told = "equal pixels" if worst is None else f"{worst:.1f} dB"
    if worst is None or worst >= CLOSE_DB:
        return Compared(Likeness.CLOSE, f"close, {told}")
    return Compared(Likeness.OTHER, f"other, {told}")


def _keep(drawn: Drawn) -> _Kept:
    latents = b"" if drawn.latents is None else drawn.latents.float().cpu().numpy().tobytes()
    bits = hashlib.sha256(latents + np.ascontiguousarray(drawn.values).tobytes()).digest()
    return _Kept(bits, drawn.pixels)
