"""Which plans may share one denoising pass, and which waiting jobs are taken along. Pure.

One pass draws several pictures at once: one call of the pipeline with a list of prompts and a generator for
each. Whatever is one number for the whole call has to be the same for all.

A picture of a shared pass is not the bytes of the single one: the libraries add up a matrix product of four
rows in another order than one of one row. So a job of `quality` lossless shares a pass only where the warm-up
found no bit changed, and one of `quality` high also where it found the pictures close (`Likeness`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policy.plan import RenderPlan
from policy.request import Quality

_OWN = frozenset({"prompt", "negative_prompt", "seed", "output_format"})
"""Fields of a plan that each picture of a pass has for itself; a field that is new is one for all."""

LOOK = 64
"""Waiting jobs that are looked at for mates, next first."""


class Likeness(StrEnum):
    """How pictures of a shared pass compare with the same ones drawn alone."""

    EXACT = "exact"
    """Latents and decoded values are equal to the bit."""
    CLOSE = "close"
    """They differ by no more than kernels that are used for quality high differ."""
    OTHER = "other"
    """They are other pictures, or cannot be drawn together at all."""

    def serves(self, quality: Quality) -> bool:
        """Whether a job of this quality may be drawn so."""
        return self is Likeness.EXACT or (self is Likeness.CLOSE and quality == "high")


def worst(passes: Iterable[Likeness | None]) -> Likeness | None:
    """Returns the likeness of a job whose passes had these; None: each had a single picture."""
    known = {likeness for likeness in passes if likeness is not None}
    return next((each for each in reversed(Likeness) if each in known), None)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many pictures one pass may hold, each a number that was looked at.

    Attributes:
        mixed: Whatever their prompts are.
        alike: When all have the same prompt and negative prompt. Where prompts are as long as they are, a
            shorter one is padded to the longest of its pass, which changes its sums.
    """

    mixed: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.mixed or self.alike)

    def only(self, these: Callable[[int], bool]) -> "Sizes":
        """Returns those of the sizes that are among ``these``."""
        return Sizes(tuple(filter(these, self.mixed)), tuple(filter(these, self.alike)))

    def of_one_job(self, pictures: int) -> int:
        """Returns how many of so many pictures of one job to draw in one pass."""
        return largest({*self.mixed, *self.alike}, pictures)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job that a worker could take now.

    Attributes:
        id: The job's id.
        rank: 0 goes first.
        tried: Whether an attempt was made before. It is alone in its next one: what went wrong may have been
            its own doing, or its mates'.
        attempts: Most attempts. One that has a single one shares it with nobody.
        plan: None: this worker cannot read it.
    """

    id: str
    rank: int
    tried: bool
    attempts: int
    plan: RenderPlan | None


def may_share(plan: RenderPlan) -> bool:
    """Tells whether several pictures of this plan, or it and others, may be drawn in one pass at all."""
    return plan.image is None


def one_pass(first: RenderPlan, other: RenderPlan) -> bool:
    """Tells whether two jobs may be drawn in one pass: all that is one value for the pass is the same."""
    return first.n == other.n == 1 and may_share(first) and may_share(other) and _key(first) == _key(other)


def _key(plan: RenderPlan) -> tuple[object, ...]:
    shared = tuple(value for name, value in plan if name not in _OWN)
    return (*shared, plan.negative_prompt is None)


def takes_along(plan: RenderPlan, attempt: int, attempts: int) -> bool:
    """Tells whether a job that has just been claimed may take others along.

    Args:
        plan: Its plan.
        attempt: The number of this attempt.
        attempts: Most attempts.
    """
    return plan.n == 1 and may_share(plan) and attempt == 1 and attempts > 1


@dataclass(frozen=True, slots=True)
class Mates:
    """The jobs to draw in a leader's pass.

    Attributes:
        ids: Of the jobs, next first; empty when there is none.
        sizes: How many pictures a pass of these may hold.
    """

    ids: tuple[str, ...]
    sizes: tuple[int, ...]

    def fit(self, free: int) -> int:
        """Returns how many mates to take when so many can be had."""
        return largest(self.sizes, 1 + free) - 1


def choose_mates(leader: RenderPlan, waiting: Sequence[Waiting], sizes: Sizes, idle: int) -> Mates:
    """Returns the jobs to draw in the leader's pass.

    They are taken in the order in which they wait. Where one that cannot be taken waits, none of a lower
    priority is: it would make the pass longer, and the other one wait for it. Of its own priority some are:
    it leads the next pass, so it waits for one pass at most that its juniors have made longer.

    Args:
        leader: The plan of the job that was claimed.
        waiting: What waits for a worker of this model, next first.
        sizes: How many pictures the pass may hold.
        idle: Other workers that have nothing to do: each is left its share.
    """
    mixed = _take(leader, waiting, sizes.mixed, idle, one_pass)
    alike = _take(leader, waiting, sizes.alike, idle, _one_prompt)
    return max(mixed, alike, key=lambda mates: len(mates.ids))


_LAST = 9
_Fits = Callable[[RenderPlan, RenderPlan], bool]


def _take(
    leader: RenderPlan, waiting: Sequence[Waiting], sizes: tuple[int, ...], idle: int, fits: _Fits
) -> Mates:
    able: list[str] = []
    barred = _LAST
    for job in waiting:
        if job.rank > barred:
            break
        if not job.tried and job.attempts > 1 and job.plan is not None and fits(leader, job.plan):
            able.append(job.id)
        else:
            barred = min(barred, job.rank)
    share = -(-(1 + len(able)) // (1 + idle))
    return Mates(tuple(able[: largest(sizes, share) - 1]), sizes)


def _one_prompt(first: RenderPlan, other: RenderPlan) -> bool:
    texts = (first.prompt, first.negative_prompt) == (other.prompt, other.negative_prompt)
    return texts and one_pass(first, other)


def largest(sizes: Collection[int], most: int) -> int:
    """Returns the largest of the sizes that is not above ``most``, or 1."""
    return max((size for size in sizes if size <= most), default=1)
