"""Compares the first request after "ready" with later ones, for the miniature of every family.

    python -m benchmarks.first_request [--model ID ...] [--backend inductor] [--requests N] [--rounds N]

Each cell is a fresh process with its engine prepared: compile on and off, cache on and off, and beside them
the faulty order (the whole transformer, before the cache is mounted). A request draws up to eight pictures,
because a single one of a miniature is soon lost in a machine's noise. Its steps and guidance are those that
the engine was prepared for: others mount the cache anew, first request or not. `ratio` is the first request's
CPU time over the median of the later ones; compiling counts in full, in helper processes too. A process has
one first request only, so every cell is measured in several processes, the cells in turn, and the median of
their ratios counts; compilations are added up. The faulty order runs once. The exit status is 1 where a first
request of the right order compiled anything or took longer than promised.
"""

import functools
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.miniatures import fresh_processes, long_plan, small_engine
from benchmarks.report import read_arguments, report
from policy.catalogue import Catalogue
from policy.plan import RenderPlan

MOST_RATIO = 1.05
#: compile, cache, and whether in the faulty order.
FAULTY_CELL = (True, True, True)
CELLS = ((False, False, False), (False, True, False), (True, False, False), (True, True, False), FAULTY_CELL)
PICTURES = 8
FAULTY = "compile>warmup>mount"
RIGHT = "mount>compile>warmup"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one process did, or several of one kind.

    Attributes:
        order: In which order it was prepared.
        warmup_compiles: Compilations before it was ready.
        first_compiles: Compilations in the first request; of several processes, all.
        first_s: CPU time of the first request; of several, the median, as of the next two.
        steady_s: Median CPU time of the later ones.
        ratio: `first_s` / `steady_s`.
        ratios: Of each process.
    """

    model: str
    compiled: bool
    cached: bool
    order: str
    warmup_compiles: int
    first_compiles: int
    first_s: float
    steady_s: float
    ratio: float
    ratios: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Whether nobody waits for a compiler; the faulty order is there to be compared with."""
        return self.order == FAULTY or (self.first_compiles == 0 and self.ratio <= MOST_RATIO)


def measure(
    model_id: str, folder: Path, backend: str, requests: int, *, compiled: bool, cached: bool, faulty: bool
) -> Cell:
    """Measures one cell; to be called in a process of its own."""
    from pipeline.engine import Engine
    from pipeline.order import CompiledFirst, time_requests

    engine, _ = small_engine(
        model_id,
        folder,
        backend,
        kind=CompiledFirst if faulty else Engine,
        compile=compiled,
        cache=cached,
        compile_scope="whole" if faulty else "regional",
        new_shape="compile",
    )
    several = {"n": min(PICTURES, engine.spec.limits.n)}

    def plan_request() -> RenderPlan:
        # The faulty order is prepared for no cache, and shows with one only.
        plan = long_plan(engine.spec) if faulty else engine.reference_plan
        return plan.model_copy(update=several)

    timed = time_requests(engine, plan_request, requests)
    ratio = round(timed.first.cpu_s / timed.steady_cpu_s, 3)
    return Cell(
        model=model_id,
        compiled=compiled,
        cached=cached,
        order=FAULTY if faulty else RIGHT,
        warmup_compiles=timed.compiles_warmup,
        first_compiles=timed.first.compiles,
        first_s=round(timed.first.cpu_s, 3),
        steady_s=round(timed.steady_cpu_s, 3),
        ratio=ratio,
        ratios=(ratio,),
    )


def measure_model(model_id: str, folder: Path, backend: str, requests: int, rounds: int) -> Iterator[Cell]:
    """Measures every cell of one model, each in processes of its own."""
    measured: dict[tuple[bool, bool, bool], list[Cell]] = {kind: [] for kind in CELLS}
    with fresh_processes() as processes:
        for turn, (kind, cells) in itertools.product(range(rounds), measured.items()):
            if turn == 0 or kind != FAULTY_CELL:
                words = dict(zip(("compiled", "cached", "faulty"), kind, strict=True))
                call = functools.partial(measure, model_id, folder, backend, requests, **words)
                cells.append(processes.submit(call).result())
    return map(joined, measured.values())


def joined(cells: Sequence[Cell]) -> Cell:
    """One cell of several processes of its kind."""
    ratios = tuple(cell.ratio for cell in cells)
    return replace(
        cells[0],
        first_compiles=sum(cell.first_compiles for cell in cells),
        first_s=statistics.median(cell.first_s for cell in cells),
        steady_s=statistics.median(cell.steady_s for cell in cells),
        ratio=statistics.median(ratios),
        ratios=ratios,
    )


def table(cells: Iterable[Cell]) -> Iterator[str]:
    """The cells as text."""
    head = ("compile", "cache", "order", "warm-up", "first", "first s", "steady s", "ratio", "from", "to")
    yield ("{:<18}{:>8}{:>7}  {:<22}{:>8}{:>7}{:>9}{:>9}{:>8}{:>8}{:>8}").format("model", *head)
    for cell in cells:
        words = ["on" if each else "off" for each in (cell.compiled, cell.cached)]
        yield (
            f"{cell.model:<18}{words[0]:>8}{words[1]:>7}  {cell.order:<22}{cell.warmup_compiles:>8}"
            f"{cell.first_compiles:>7}{cell.first_s:>9.3f}{cell.steady_s:>9.3f}{cell.ratio:>8.3f}"
            f"{min(cell.ratios):>8.3f}{max(cell.ratios):>8.3f}"
            f"{'' if cell.is_right else '  WRONG'}"
        )


def main() -> int:
    """Runs from the command line."""
    parser = read_arguments(__doc__)
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    parser.add_argument("--requests", type=int, default=9, help="requests after the first (default: 9)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder:
        cells = (
            cell
            for model in options.model or Catalogue.load()
            for cell in measure_model(
                model, Path(folder) / model, options.backend, options.requests, options.rounds
            )
        )
        return report(cells, table, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
