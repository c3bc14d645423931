"""What `renderq bench cache --fit` is asked, read and checked before anything is loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.exits import CliError
from cli.reading import Limits, Reader

if TYPE_CHECKING:
    from policy.model_spec import ModelSpec

STEPS = (20, 28, 50)
"""Step counts that are fitted when none are named, as far as the model takes them."""
FIT_PROMPTS = 32
LEAST_STEPS = 4
"""Two steps before the first that is reused, that one, and the last."""
MOST_PROMPTS = 100_000
SEED = Limits(0, 2**53 - 1, 5000)
ORDERS = Limits(0, 2, 1)
BEAM = Limits(1, 100, 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of a fit as they were typed; None: not given."""

    steps: str | None = None
    prompts: Path | None = None
    fit_prompts: str | None = None
    seed: str | None = None
    orders: str | None = None
    beam: str | None = None

    def given(self) -> list[str]:
        """The flags that were given."""
        return [f"--{name.replace('_', '-')}" for name in self.__slots__ if getattr(self, name) is not None]

    def refuse_without_fit(self) -> None:
        """Raise `CliError` where there is something to fit by and nothing is to be fitted."""
        from policy.wording import listing

        if flags := self.given():
            given = listing(flags, "and")
            raise CliError(f"nothing is fitted without --fit: give it as well, or leave out {given}")

    def words(self, spec: "ModelSpec") -> Mapping[str, str]:
        """Flags and values for `pipeline.fit`; raises `InvalidOptions` with every mistake."""
        read = Reader()
        words = dict(self._words(spec, read))
        read.finish()
        return words

    def _words(self, spec: "ModelSpec", read: Reader) -> Iterator[tuple[str, str]]:
        yield "--steps", _joined(self._steps(spec, read))
        texts = read.prompts(self.prompts)
        if self.prompts is not None:
            yield "--prompts", str(self.prompts)
        yield "--fit-prompts", str(self._fit_prompts(texts, read))
        yield "--seed", str(read.number("--seed", _or(self.seed, str(SEED.usual)), SEED))
        yield "--orders", _joined(read.numbers("--orders", _or(self.orders, "1,2"), ORDERS))
        yield "--beam", str(read.number("--beam", _or(self.beam, str(BEAM.usual)), BEAM))

    def _steps(self, spec: "ModelSpec", read: Reader) -> list[int]:
        limits = Limits(max(LEAST_STEPS, spec.steps.minimum), spec.steps.maximum, spec.steps.default)
        if self.steps is None:
            return [count for count in STEPS if limits.least <= count <= limits.most] or [limits.usual]
        return read.numbers(f"--steps for {spec.id}", self.steps, limits)

    def _fit_prompts(self, texts: list[str] | None, read: Reader) -> int:
        asked = _or(self.fit_prompts, str(FIT_PROMPTS))
        if texts is None:
            return read.number("--fit-prompts", asked, Limits(1, MOST_PROMPTS, FIT_PROMPTS))
        most = len(texts) - 1
        if not most:
            read.add(
                "prompts",
                f"--prompts must hold 2 prompts, one of them for the check: {self.prompts} has 1",
                1,
            )
            return 1
        why = f"{self.prompts} has {len(texts)} prompts, and one at least is for the check"
        return read.number("--fit-prompts", asked, Limits(1, most, min(FIT_PROMPTS, most), why))


def _or(given: str | None, otherwise: str) -> str:
    return otherwise if given is None else given


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
