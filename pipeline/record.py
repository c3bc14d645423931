"""Adds up what the passes of one job did: pictures, times, reused steps, compiles."""

from collections.abc import Mapping, Sequence

from pipeline.compilation import compiles_so_far
from pipeline.render import Pass
from pipeline.rendering import Picture, Rendering
from policy.cache import CacheDecision
from policy.plan import RenderPlan


class Record:
    """The account of one job, opened before its first pass."""

    def __init__(self, plan: RenderPlan, decision: CacheDecision) -> None:
        self.total_steps = plan.executed_steps * plan.n
        self._decision = decision
        self._compiles_before = compiles_so_far()
        self._pictures: list[Picture] = []
        self._timings_ms: dict[str, float] = {}
        self._cached_steps = 0

    @property
    def pictures(self) -> int:
        """How many there are so far."""
        return len(self._pictures)

    def add(self, pictures: Sequence[Picture], done: Pass, cached_steps: Sequence[int]) -> None:
        """Adds one pass.

        Args:
            pictures: What it gave this job.
            done: Its times.
            cached_steps: Steps reused on each transformer, for each picture.
        """
        self._pictures.extend(pictures)
        for name, value in done.timings_ms.items():
            self._timings_ms[name] = self._timings_ms.get(name, 0.0) + value
        self._cached_steps += sum(cached_steps) * len(pictures)

    def rendering(self, compile_facts: Mapping[str, object]) -> Rendering:
        """Closes the account."""
        decision = self._decision
        acceleration: dict[str, object] = {
            "cache": decision.preset if decision.configs is not None else "off",
            "cache_reason": decision.reason,
            "mounted": decision.configs is not None,
            "masks": _masks(decision),
            "cached_steps": self._cached_steps,
            "steps": self.total_steps,
            "compiles": compiles_so_far() - self._compiles_before,
            **compile_facts,
        }
        timings_ms = {name: round(value, 3) for name, value in self._timings_ms.items()}
        return Rendering(tuple(self._pictures), timings_ms, acceleration)


def _masks(decision: CacheDecision) -> list[str | None]:
    """The mask of each transformer as digits, 1 computed and 0 reused; None where a threshold decided."""
    configs = decision.configs or ()
    return [None if config.mask is None else "".join(map(str, config.mask)) for config in configs]
