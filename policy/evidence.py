"""Opt-ins need evidence: each `compile = true` in the catalogue has measurements in which it wins.

Evidence is kept in TOML files, one `[[rows]]` table per measurement. Compiling must win twice for that very
checkpoint: on the first request after the worker is ready, and in the steady state. Most lose the former.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policy.errors import InvalidCatalogue
from policy.model_spec import ModelSpec

BUNDLED = Path(__file__).parent / "evidence"


class Evidence(BaseModel):
    """One measurement of a checkpoint on a class of device, seconds per request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    revision: str | None
    device: str
    first_eager_s: float = Field(gt=0)
    first_compiled_s: float = Field(gt=0)
    steady_eager_s: float = Field(gt=0)
    steady_compiled_s: float = Field(gt=0)
    versions: Mapping[str, str]

    @property
    def wins(self) -> bool:
        """Whether compiling is faster on the first request and in the steady state."""
        return self.first_compiled_s < self.first_eager_s and self.steady_compiled_s < self.steady_eager_s


def load_evidence(folder: Path = BUNDLED) -> tuple[Evidence, ...]:
    """Reads every row in the folder; a folder that is not there holds none."""
    return tuple(row for path in sorted(folder.glob("*.toml")) for row in _read(path))


def find_unbacked(specs: Iterable[ModelSpec], evidence: Iterable[Evidence]) -> list[str]:
    """Returns one sentence for each model that opts in to compile without evidence for it."""
    rows = tuple(evidence)
    return [message for spec in specs if spec.policy.get("compile") and (message := _unbacked(spec, rows))]


def _unbacked(spec: ModelSpec, rows: tuple[Evidence, ...]) -> str | None:
    own = [row for row in rows if (row.model, row.revision) == (spec.id, spec.revision)]
    if not own:
        return f"{spec.id} opts in to compile, and nothing was measured for its revision"
    losses = [row.device for row in own if not row.wins]
    if losses:
        return f"{spec.id} opts in to compile, and compiling loses on {', '.join(losses)}"
    return None


def _read(path: Path) -> Iterator[Evidence]:
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["rows"]
        yield from [Evidence.model_validate(row) for row in rows]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValidationError) as error:
        raise InvalidCatalogue(f"{path}: {error}") from error
