"""What an engine knows of shapes: which run compiled, and which requests had that do not.

A shape is what compiled code depends on and a request chooses: the size, the frames, whether guidance steers
(a second call, or twice the batch), whether the cache is mounted, what it starts from (noise, a picture), and
how many pictures are drawn in one pass.
The length of the prompt is not part of it, because it becomes symbolic in the warm-up; a request that finds
it otherwise makes its shape cold again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.rendering import ShapeReport
from policy.plan import RenderPlan

NOTHING_COMPILED = "nothing is compiled, so every shape runs alike and none is warmed while idle"
#: Fields of a plan that no compiled code depends on, or that the shape tells.
_ALIKE = {"seed", "n", "num_inference_steps", "strength", "image", "mask", "lora", "output_format", "fps"}
#: Shapes that are remembered as cold; beyond it the least wanted is forgotten, until it is asked for again.
MOST_COLD = 256


class Shape(NamedTuple):
    """One shape; `str` gives it in words for a person."""

    width: int
    height: int
    frames: int | None
    guided: bool
    cached: bool
    start: str = ""
    pictures: int = 1

    def __str__(self) -> str:
        frames = "" if self.frames is None else f"x{self.frames}"
        words = (
            f"{self.width}x{self.height}{frames}",
            "guided" * self.guided,
            "uncached" * (not self.cached),
            self.start,
            f"{self.pictures} at once" * (self.pictures > 1),
        )
        return " ".join(filter(None, words))


def _is_like(plan: RenderPlan, other: RenderPlan) -> bool:
    """Whether two requests of one shape surely run the same code; the length of a prompt may matter."""
    return plan.model_dump(exclude=_ALIKE) == other.model_dump(exclude=_ALIKE)


@dataclass(slots=True)
class Cold:
    """A shape at which requests ran uncompiled.

    Attributes:
        plan: The last such request's: what to run to have it warm.
        requests: How many there were.
        problem: Why it cannot be warmed; it is not tried again then.
    """

    plan: RenderPlan
    requests: int = 0
    problem: str | None = None


class Shapes:
    """The shapes of one engine since it was prepared."""

    def __init__(self, *, matter: bool, warm: Iterable[Shape] = ()) -> None:
        """Starts with what the warm-up ran.

        Args:
            matter: Whether anything is compiled.
            warm: Shapes that the warm-up ran.
        """
        self._matter = matter
        self._warm = set(warm)
        self._cold: dict[Shape, Cold] = {}

    def __contains__(self, shape: Shape) -> bool:
        """Whether it was warmed; where nothing is compiled, size and frames are all there is to that."""
        if self._matter:
            return shape in self._warm
        return shape[:3] in {warm[:3] for warm in self._warm}

    def add_warm(self, shape: Shape, plan: RenderPlan | None = None) -> None:
        """Notes that all of a pass at this shape ran compiled.

        Args:
            shape: The shape.
            plan: The request's, which says nothing of another one that was odd in a way that a shape does not
                tell, and ran uncompiled; None: what ran is what was wanted.
        """
        self._warm.add(shape)
        if shape in self._cold and (plan is None or _is_like(plan, self._cold[shape].plan)):
            del self._cold[shape]

    def add_cold(self, shape: Shape, plan: RenderPlan) -> None:
        """Notes a request that ran uncompiled, at least in part."""
        self._warm.discard(shape)
        known = self._cold.get(shape) or Cold(plan)
        if len(self._cold) >= MOST_COLD and shape not in self._cold:
            del self._cold[min(self._cold, key=lambda each: self._cold[each].requests)]
        self._cold[shape] = Cold(plan, known.requests + 1, known.problem)

    def give_up(self, shape: Shape, problem: str) -> None:
        """Notes that a shape cannot be warmed."""
        if shape in self._cold:
            self._cold[shape].problem = problem

    def most_wanted(self) -> tuple[Shape, RenderPlan] | None:
        """Returns the cold shape that most requests had, with what to run for it; None: nothing to do."""
        wanted = {shape: cold for shape, cold in self._cold.items() if cold.problem is None}
        if not wanted:
            return None
        shape = max(wanted, key=lambda each: wanted[each].requests)
        return shape, wanted[shape].plan

    def report(self) -> ShapeReport:
        """Returns what the worker's row shows."""
        if not self._matter:
            return ShapeReport(note=NOTHING_COMPILED)
        problems = [f"{shape}: {cold.problem}" for shape, cold in self._cold.items() if cold.problem]
        return ShapeReport(
            warm=tuple(str(shape) for shape in sorted(self._warm, key=str)),
            cold={str(shape): cold.requests for shape, cold in self._cold.items()},
            note="; ".join(problems) or None,
        )
