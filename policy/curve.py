"""The curve of a checkpoint: step masks fitted to it, and how far each leads from uncached pictures.

`renderq bench cache MODEL --fit --write` makes it, one file per checkpoint in the folder `masks` of a
catalogue's folder; what several folders have adds up. It holds masks for a few step counts, each at several
numbers of reused steps. A preset names a share of reused steps, and so a point of the curve. The rule for a
job of `n` steps:

- `n` was fitted: of its masks the one whose number of reused steps is nearest to the share, the lower of two;
- `n` lies between two fitted counts: both masks are read as the share of all reused steps that lies before
  each part of the way; the two are mixed by the distance of `n`, as are their shares and their lead-ins, and
  a step is reused as soon as the mixture is half a step ahead of what was reused so far;
- `n` is above the largest: that one's mask is stretched in the same way;
- `n` is below the smallest: there is no mask, and the rule of the nearest preset is used (`policy.mask`).

The lead-in and the last step stay computed, whatever the mixture says.
"""

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy.tomlfile import MASK, read_file

FOLDER = "masks"
Order = Literal[0, 1, 2]
Positive = Annotated[int, Field(gt=0)]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FittedMask(_Facts):
    """One point of the curve. Decibels are PSNR against the same picture uncached, before rounding to 8 bits.

    Attributes:
        mask: One digit per step, 1 computed and 0 reused.
        order: Of the Taylor predictor.
        fit_mean_db: Mean over the prompts that the mask was fitted on; `fit_worst_db`: the worst of them.
        check_mean_db: The same over other prompts; `check_worst_db`: the worst of them.
    """

    mask: str = Field(pattern=MASK)
    order: Order
    fit_mean_db: float
    fit_worst_db: float
    check_mean_db: float
    check_worst_db: float

    @property
    def steps(self) -> int:
        """Length of the jobs that it was fitted for."""
        return len(self.mask)

    @property
    def reused(self) -> int:
        """How many steps it reuses."""
        return self.mask.count("0")

    @property
    def lead_in(self) -> int:
        """How many steps it computes before it reuses one."""
        return len(self.mask) - len(self.mask.lstrip("1"))

    def reused_before(self, part: float) -> float:
        """Share of its reused steps that lie in the first `part` of the way, both 0 to 1."""
        place = part * self.steps
        whole = int(place)
        inside = place - whole if self.mask[whole : whole + 1] == "0" else 0.0
        return (self.mask[:whole].count("0") + inside) / self.reused


class Fit(_Facts):
    """The masks of one step count, and how they came about: enough to repeat it, and to see when it is old.

    Attributes:
        steps: Length of the jobs that they are for.
        prompts: How many they were fitted on, and `check_prompts` how many others they were checked on.
        seed: Of the first prompt's picture; the next ones count up.
    """

    steps: Positive
    date: dt.date
    command: str
    device: str
    prompts: Positive
    check_prompts: Positive
    seed: int
    versions: Mapping[str, str]
    masks: tuple[FittedMask, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_reuses(self) -> Self:
        reused = {mask.reused for mask in self.masks}
        if 0 in reused or len(reused) < len(self.masks):
            raise ValueError("each mask reuses a step, and a number of reused steps has one mask")
        if {mask.steps for mask in self.masks} != {self.steps}:
            raise ValueError(f"each mask has a digit for each of the {self.steps} steps")
        return self

    def nearest(self, percent: int) -> FittedMask:
        """The mask whose share of reused steps is nearest to `percent`, the lower of two."""
        wanted = percent * self.steps / 100
        return min(self.masks, key=lambda mask: (abs(mask.reused - wanted), mask.reused))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mask for a job: 1 computed, 0 reused; `order` is that of its Taylor predictor."""

    mask: tuple[int, ...]
    order: Order
    fitted: bool


class Curve(_Facts):
    """All masks that were fitted to one checkpoint."""

    model: str
    revision: str | None = None
    fits: tuple[Fit, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        counts = [fit.steps for fit in self.fits]
        if counts != sorted(set(counts)):
            raise ValueError("the step counts ascend, and each has one fit")
        return self

    def with_fits(self, fits: Iterable[Fit]) -> "Curve":
        """The same with these fits added, each in the place of an older one of its step count."""
        kept = {fit.steps: fit for fit in (*self.fits, *fits)}
        return self.model_copy(update={"fits": tuple(kept[steps] for steps in sorted(kept))})

    def choose(self, percent: int, steps: int) -> Chosen | None:
        """The mask of a job by the rule of this module; None: below the smallest fitted count."""
        if steps < self.fits[0].steps:
            return None
        below = max((fit for fit in self.fits if fit.steps <= steps), key=lambda fit: fit.steps)
        above = next((fit for fit in self.fits if fit.steps >= steps), below)
        lower, upper = below.nearest(percent), above.nearest(percent)
        if steps == below.steps:
            return Chosen(tuple(map(int, lower.mask)), lower.order, fitted=True)
        weight = (steps - below.steps) / (above.steps - below.steps) if above is not below else 0.0
        nearer = lower if weight <= 0.5 else upper
        return Chosen(_mixture(lower, upper, weight, steps), nearer.order, fitted=False)


def _mixture(lower: FittedMask, upper: FittedMask, weight: float, steps: int) -> tuple[int, ...]:
    def mixed(of_lower: float, of_upper: float) -> float:
        return (1 - weight) * of_lower + weight * of_upper

    total = round(steps * mixed(lower.reused / lower.steps, upper.reused / upper.steps))
    lead_in = round(mixed(lower.lead_in, upper.lead_in))
    mask: list[int] = []
    reused = 0
    for step in range(steps):
        part = (step + 1) / steps
        ahead = total * mixed(lower.reused_before(part), upper.reused_before(part)) - reused
        reuses = lead_in <= step < steps - 1 and ahead >= 0.5
        mask.append(int(not reuses))
        reused += reuses
    return tuple(mask)


def read_curve(path: Path) -> Curve:
    """Reads and checks one file.

    Raises:
        InvalidCatalogue: It cannot be used; the message names the file and what is wrong.
    """
    return read_file(path, Curve)
