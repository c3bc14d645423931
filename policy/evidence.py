"""Opt-ins need evidence: each `compile = true` in the catalogue has measurements in which it wins.

Measurements are kept in `evidence/<model>.toml`, one `[[rows]]` table per run of `renderq bench model`. A row
backs an opt-in when all of this holds:

- it was made with this very checkpoint: the same revision, and the same weights where their hash is known;
- torch, diffusers and cache-dit had the same minor version (2.13 of 2.13.0) as those to be judged for. Patch
  releases mend; minor ones change what is compiled and how long that takes;
- it has at least `ENOUGH_ROUNDS` rounds, since one round on a busy machine proves nothing;
- it is of a GPU, because on a CPU an opt-in has no effect;
- it was asked to compile in the scope and with the cache that the model's file has, beside not compiling with
  that cache; a way that was asked for and failed is a loss;
- compiling wins twice there: on the first request after the worker is ready, and in the steady state. Most
  checkpoints lose the former.

Of several such rows of one device the newest counts, and a loss on one device is a loss.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from policy.errors import InvalidCatalogue
from policy.model_spec import ModelSpec
from policy.tomlfile import read_file
from policy.variants import Scope, Variant, own_cache, own_scope

BUNDLED = Path(__file__).parent / "evidence"
FOLDER = "evidence"
"""Name of the folder beside an operator's model files."""
DECISIVE = ("torch", "diffusers", "cache-dit")
"""Packages whose minor version makes a row old."""
ENOUGH_ROUNDS = 3


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figures(_Row):
    """One way of running the model: medians over the rounds, in seconds per request where it is a time.

    Attributes:
        scope: What was compiled; None: nothing.
        cache: The preset, or ``off``.
        ready_s: Loading, mounting, compiling and warming up together, with an empty compiler cache.
        first_s: The first request after that, text to picture.
        steady_s: Median of the requests after it.
        compiles_warmup: Compilations before ready.
        compiles_requests: Compilations while requests waited.
        memory_mb: Most that was held at once, in 10^6 bytes: of the process on a CPU, of torch on a GPU.
        psnr_db: Distance from the uncached eager pictures, all of them together; None: the same bytes.
        psnr_worst_db: The same of the picture that is farthest away.
        adherence: Share of the pictures that show all that their prompt says; None: nobody can judge it.
    """

    scope: Scope | None = None
    cache: str
    ready_s: float = Field(gt=0)
    first_s: float = Field(gt=0)
    steady_s: float = Field(gt=0)
    compiles_warmup: int = Field(ge=0)
    compiles_requests: int = Field(ge=0)
    memory_mb: float = Field(gt=0)
    psnr_db: float | None = None
    psnr_worst_db: float | None = None
    adherence: float | None = Field(default=None, ge=0, le=1)


class Evidence(_Row):
    """One run of the measurement on one device.

    Attributes:
        revision: The hub's revision; None: not from the hub.
        weights: SHA-256 of the weights, of a folder or of the bundled ones.
        device: Class of the device.
        device_name: Which one.
        requests: Requests after the first one, in each process.
        load: Most processes that were ready to run at once, as the machine's load average has it, this
            measurement's own among them; a number far above that of the cores means a busy machine.
        failed: Ways that could not be run, with the reason.
    """

    model: str
    revision: str | None = None
    weights: str | None = None
    device: Literal["cpu", "cuda", "mps"]
    device_name: str
    date: dt.date
    command: str
    rounds: int = Field(gt=0)
    requests: int = Field(gt=0)
    steps: int = Field(gt=0)
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    load: float = Field(ge=0)
    versions: Mapping[str, str]
    figures: tuple[Figures, ...] = Field(min_length=1)
    failed: tuple[str, ...] = ()

    def find(self, scope: Scope | None, cache: str) -> Figures | None:
        """Returns the figures of one way, if it was measured."""
        return next((item for item in self.figures if (item.scope, item.cache) == (scope, cache)), None)

    def comparisons(self) -> Iterator["Comparison"]:
        """Yields each compiled way that has its uncompiled counterpart, with the same cache."""
        for compiled in self.figures:
            eager = self.find(None, compiled.cache)
            if compiled.scope is not None and eager is not None:
                yield Comparison(eager, compiled)


class Comparison(NamedTuple):
    """Compiling against not compiling, with the same cache."""

    eager: Figures
    compiled: Figures

    @property
    def first_percent(self) -> float:
        """How much longer the first request takes; below 0: shorter."""
        return _percent(self.eager.first_s, self.compiled.first_s)

    @property
    def steady_percent(self) -> float:
        """How much longer the later requests take; below 0: shorter."""
        return _percent(self.eager.steady_s, self.compiled.steady_s)

    @property
    def wins(self) -> bool:
        """Whether compiling is faster, first request and later ones, and no request waited for it."""
        faster = self.compiled.first_s < self.eager.first_s and self.compiled.steady_s < self.eager.steady_s
        return faster and self.compiled.compiles_requests == 0


class _File(_Row):
    rows: tuple[Evidence, ...]


def load_evidence(*folders: Path) -> tuple[Evidence, ...]:
    """Reads every row in the folders, by default the bundled one; a folder that is not there holds none."""
    paths = (path for folder in folders or (BUNDLED,) for path in sorted(folder.glob("*.toml")))
    return tuple(row for path in paths for row in read_evidence(path))


def read_evidence(path: Path) -> tuple[Evidence, ...]:
    """Reads one file; raises `InvalidCatalogue` for one that holds no rows, or rows of another model."""
    read = read_file(path, _File).rows
    strange = {row.model for row in read} - {path.stem}
    if strange:
        raise InvalidCatalogue(f"{path}: rows of {', '.join(sorted(strange))} belong in a file of that name")
    return read


def why_not_counted(
    row: Evidence, spec: ModelSpec, versions: Mapping[str, str], weights: Mapping[str, str]
) -> str | None:
    """Returns why a row backs no opt-in of this checkpoint with these versions, or None: it counts.

    The check of opt-ins, `renderq policy evidence` and `renderq bench model` all ask this.

    Args:
        row: The measurement.
        spec: The checkpoint.
        versions: Of packages, those to judge for.
        weights: SHA-256 of the weights of each model of which they are known.
    """
    if row.device == "cpu":
        return "measured on a CPU, where an opt-in has no effect"
    if row.revision != spec.revision:
        return f"measured at revision {row.revision}, the model's file has {spec.revision}"
    if spec.id in weights and row.weights != weights[spec.id]:
        return "measured with other weights"
    if row.rounds < ENOUGH_ROUNDS:
        return f"{row.rounds} of {ENOUGH_ROUNDS} rounds"
    return find_age(row.versions, versions) or _gap(row, spec)


def find_age(measured: Mapping[str, str], versions: Mapping[str, str]) -> str | None:
    """Returns which package has another minor version than the row was measured with, or None."""
    for name in DECISIVE:
        then, now = measured.get(name), versions.get(name)
        if then is None or now is None or _minor(then) != _minor(now):
            return f"old: {name} was {then or 'not noted'} and is {now or 'not installed'}"
    return None


def find_unbacked(
    specs: Iterable[ModelSpec],
    evidence: Iterable[Evidence],
    versions: Mapping[str, str],
    weights: Mapping[str, str],
) -> list[str]:
    """Returns one sentence for each model that opts in to compile without evidence for it."""
    rows = tuple(evidence)
    opted_in = (spec for spec in specs if opts_in(spec))
    found = (_unbacked(spec, rows, versions, weights) for spec in opted_in)
    return [message for message in found if message]


def opts_in(spec: ModelSpec) -> bool:
    """Tells whether the model's file opts in to compile."""
    return spec.policy.get("compile") is True


def _unbacked(
    spec: ModelSpec, rows: tuple[Evidence, ...], versions: Mapping[str, str], weights: Mapping[str, str]
) -> str | None:
    says = f"{spec.id} opts in to compile, and "
    own = [row for row in rows if row.model == spec.id]
    if not own:
        return f"{says}nothing was measured"
    doubts = [(row, why_not_counted(row, spec, versions, weights)) for row in own]
    counted = [row for row, doubt in doubts if doubt is None]
    if not counted:
        reasons = dict.fromkeys(f"{row.device_name}: {doubt}" for row, doubt in doubts)
        return f"{says}no row counts ({'; '.join(reasons)})"
    wins = {row.device_name: _wins(row, spec) for row in sorted(counted, key=lambda row: row.date)}
    losses = [device for device, won in wins.items() if not won]
    return f"{says}compiling does not win on {', '.join(losses)}" if losses else None


def _gap(row: Evidence, spec: ModelSpec) -> str | None:
    """Why a row is silent on what the model's file asks for."""
    scope, cache = own_scope(spec), own_cache(spec)
    way, beside = Variant(scope, cache).name, Variant(None, cache).name
    if any(failed.startswith(f"{way}:") for failed in row.failed):
        return None
    if row.find(scope, cache) and row.find(None, cache):
        return None
    return f"{way} was not measured beside {beside}"


def _wins(row: Evidence, spec: ModelSpec) -> bool:
    wanted = (own_scope(spec), own_cache(spec))
    return any(
        pair.wins for pair in row.comparisons() if (pair.compiled.scope, pair.compiled.cache) == wanted
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])


def _percent(before: float, after: float) -> float:
    return round(100 * (after / before - 1), 1)
