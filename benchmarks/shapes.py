"""Measures what a request at a size that nobody declared costs, and what the next one at it finds.

    python -m benchmarks.shapes [--model ID ...] [--backend inductor] [--repeat N] [--json]

For the miniature of each family, in one process: the engine prepares with compile on and one declared size.
Then requests at another size run in turn with requests that run as if nothing had been compiled, and the
medians of their CPU time are compared. The shape is warmed as a worker warms it while idle, and left once in
the middle of that. Then the same requests run again. Ratios are of one run; the exit status is 1 if a promise
is not kept: a request at a new size takes at most 1.1 times an uncompiled one and compiles nothing, and the
next one after the warm-up runs compiled and compiles nothing.
"""

import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.miniatures import long_plan, small_engine
from benchmarks.report import read_arguments, report
from pipeline.interruption import Interrupted, Interruption
from policy.plan import RenderPlan

if TYPE_CHECKING:
    from types import FrameType

    from pipeline.engine import Engine

MOST_RATIO = 1.1
MODELS = ("flux.1-dev", "qwen-image", "wan2.2-t2v-a14b")
STEPS = 10
CALL_BACK_S = 0.5
HEAD = (
    *("model", "size", "cold / eager", "compiles", "uncompiled calls", "left after s", "warming s"),
    *("then compiled", "compiles", "warm / eager"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one family did.

    Attributes:
        size: The size that was not declared.
        cold_ratio: Median CPU time of a request at it / median time of the same run uncompiled.
        cold_compiles: Compilations in those requests.
        uncompiled_calls: Calls in each that found nothing compiled.
        interrupted_s: How long it took to leave the warm-up when a job came; None: it was done before.
        warming_s: How long the warm-up took after that.
        compiled: Whether all later requests ran compiled.
        warm_compiles: Compilations in those.
        warm_ratio: Their median time / the uncompiled one.
    """

    model: str
    size: str
    cold_ratio: float
    cold_compiles: int
    uncompiled_calls: int
    interrupted_s: float | None
    warming_s: float
    compiled: bool
    warm_compiles: int
    warm_ratio: float

    @property
    def is_right(self) -> bool:
        """Whether the promises are kept."""
        cold = self.cold_ratio <= MOST_RATIO and self.cold_compiles == 0 and self.uncompiled_calls > 0
        return cold and self.compiled and self.warm_compiles == 0


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of the requests, and what the last record of them said; the counts are of all."""

    seconds: float
    eager_seconds: float
    compiles: int
    compiled: bool
    uncompiled_calls: int


def measure(model_id: str, folder: Path, backend: str, repeat: int) -> Row:
    """Measures one model of the catalogue.

    Args:
        model_id: Its id.
        folder: Where its miniature is built.
        backend: A backend of torch.compile.
        repeat: Requests of each kind.
    """
    engine, plan = small_engine(model_id, folder, backend, compile=True, cache=False)
    engine.prepare()
    plan = long_plan(engine.spec, height=plan.height // 2, num_inference_steps=STEPS, cache="off")
    engine.render(plan, safer=True)  # what a first call of any kind costs is not what is compared
    cold = _compare(engine, plan, repeat)
    interrupted_s = _leave(engine)
    started = time.perf_counter()
    while engine.wants_warm_up:
        engine.warm_next(Interruption())
    warming_s = time.perf_counter() - started
    warm = _compare(engine, plan, repeat)
    engine.close()
    return Row(
        model_id,
        f"{plan.width}x{plan.height}",
        round(cold.seconds / cold.eager_seconds, 3),
        cold.compiles,
        cold.uncompiled_calls,
        interrupted_s,
        round(warming_s, 2),
        warm.compiled,
        warm.compiles,
        round(warm.seconds / warm.eager_seconds, 3),
    )


def _compare(engine: "Engine", plan: RenderPlan, repeat: int) -> _Times:
    """Runs the plan as a request and uncompiled, in turn, so that a slow moment of the machine hits both."""
    as_request: list[float] = []
    uncompiled: list[float] = []
    compiles, calls, compiled = 0, 0, True
    for _ in range(repeat):
        seconds, told = _time(engine, plan, safer=False)
        as_request.append(seconds)
        compiles += int(str(told["compiles"]))
        calls = int(str(told["uncompiled_calls"]))
        compiled = compiled and bool(told["compiled"])
        uncompiled.append(_time(engine, plan, safer=True)[0])
    return _Times(statistics.median(as_request), statistics.median(uncompiled), compiles, compiled, calls)


def _time(engine: "Engine", plan: RenderPlan, *, safer: bool) -> tuple[float, dict[str, object]]:
    started = time.process_time()
    told = engine.render(plan, safer=safer).acceleration
    return time.process_time() - started, told


def _leave(engine: "Engine") -> float | None:
    """Begins the warm-up and leaves it in its middle; returns how long that took."""
    interruption = Interruption()
    called_at = 0.0

    def call_back(_number: int, frame: "FrameType | None") -> None:
        nonlocal called_at
        called_at = called_at or time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        interruption.strike(frame)

    before = signal.signal(signal.SIGALRM, call_back)
    signal.setitimer(signal.ITIMER_REAL, CALL_BACK_S)
    try:
        engine.warm_next(interruption)
    except Interrupted:
        return round(time.monotonic() - called_at, 3)
    else:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as text, one family a line."""
    lines = [HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.model,
        row.size,
        f"{row.cold_ratio:.3f}",
        str(row.cold_compiles),
        str(row.uncompiled_calls),
        "done before" if row.interrupted_s is None else f"{row.interrupted_s:.3f}",
        f"{row.warming_s:.2f}",
        "yes" if row.compiled else "NO",
        str(row.warm_compiles),
        f"{row.warm_ratio:.3f}",
    )


def main() -> int:
    """Runs from the command line."""
    parser = read_arguments(__doc__)
    parser.add_argument("--backend", default="inductor", help="of torch.compile; eager counts and is fast")
    parser.add_argument("--repeat", type=int, default=9, help="requests of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder:
        rows = [
            measure(model_id, Path(folder) / model_id, options.backend, options.repeat)
            for model_id in options.model or MODELS
        ]
    return report(rows, table, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
