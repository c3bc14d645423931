"""Compares the first request after "ready" with later ones, for the miniature of every family.

    python -m benchmarks.first_request [--model ID ...] [--backend inductor] [--requests N] [--json]

Each cell is a fresh process with its engine prepared: compile on and off, cache on and off, and beside them
the faulty order (the whole transformer, before the cache is mounted). A request draws up to eight pictures,
because a single one of a miniature is soon lost in a machine's noise. `ratio` is the first request's
CPU time over the median of the later ones; compiling counts in full, in helper processes too. The exit status
is 1 where a first request of the right order compiled anything or took longer than promised.
"""

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.miniatures import fresh_processes, small_engine
from policy.catalogue import Catalogue

MOST_RATIO = 1.05
#: compile, cache, and whether in the faulty order.
CELLS = (
    *((False, False, False), (False, True, False), (True, False, False), (True, True, False)),
    (True, True, True),
)
PICTURES = 8
FAULTY = "compile>warmup>mount"
RIGHT = "mount>compile>warmup"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one process did.

    Attributes:
        order: In which order it was prepared.
        warmup_compiles: Compilations before it was ready.
        first_compiles: Compilations in the first request.
        first_s: CPU time of the first request.
        steady_s: Median CPU time of the later ones.
        ratio: `first_s` / `steady_s`.
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

    engine, plan = small_engine(
        model_id,
        folder,
        backend,
        kind=CompiledFirst if faulty else Engine,
        compile=compiled,
        cache=cached,
        compile_scope="whole" if faulty else "regional",
        new_shape="compile",
    )
    plan = plan.model_copy(update={"n": min(PICTURES, engine.spec.limits.n)})
    timed = time_requests(engine, plan, requests)
    return Cell(
        model=model_id,
        compiled=compiled,
        cached=cached,
        order=FAULTY if faulty else RIGHT,
        warmup_compiles=timed.compiles_warmup,
        first_compiles=timed.first.compiles,
        first_s=round(timed.first.cpu_s, 3),
        steady_s=round(timed.steady_cpu_s, 3),
        ratio=round(timed.first.cpu_s / timed.steady_cpu_s, 3),
    )


def measure_model(model_id: str, folder: Path, backend: str, requests: int) -> Iterator[Cell]:
    """Measures every cell of one model, each in a process of its own."""
    with fresh_processes() as processes:
        for compiled, cached, faulty in CELLS:
            call = functools.partial(
                measure, model_id, folder, backend, requests, compiled=compiled, cached=cached, faulty=faulty
            )
            yield processes.submit(call).result()


def table(cells: list[Cell]) -> Iterator[str]:
    """The cells as text."""
    head = ("compile", "cache", "order", "warm-up", "first", "first s", "steady s", "ratio")
    yield ("{:<18}{:>8}{:>7}  {:<22}{:>8}{:>7}{:>9}{:>9}{:>8}").format("model", *head)
    for cell in cells:
        words = ["on" if each else "off" for each in (cell.compiled, cell.cached)]
        yield (
            f"{cell.model:<18}{words[0]:>8}{words[1]:>7}  {cell.order:<22}{cell.warmup_compiles:>8}"
            f"{cell.first_compiles:>7}{cell.first_s:>9.3f}{cell.steady_s:>9.3f}{cell.ratio:>8.3f}"
            f"{'' if cell.is_right else '  WRONG'}"
        )


def main() -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    parser.add_argument("--requests", type=int, default=9, help="requests after the first (default: 9)")
    parser.add_argument("--model", action="append", choices=tuple(Catalogue.load()), help="only this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder:
        cells = [
            cell
            for model in options.model or Catalogue.load()
            for cell in measure_model(model, Path(folder) / model, options.backend, options.requests)
        ]
    if options.json:
        print(json.dumps([{**asdict(cell), "right": cell.is_right} for cell in cells], indent=2))
    else:
        print("\n".join(table(cells)))
    return 0 if all(cell.is_right for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
