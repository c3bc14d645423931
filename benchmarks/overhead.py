"""Measures what the engine adds to a plain call of the pipeline with the same acceleration.

    python -m benchmarks.overhead [--model ID ...] [--pairs 30] [--json]

In one process, in turn: `Engine.render` of a plan, and diffusers' pipeline called with the same arguments,
after the same mount was refreshed by Cache-DiT. Both end with uint8 pixels, which must be equal. The ratio is
that of the medians of the CPU time; one thread computes, so it is the time that a request takes on a machine
that does nothing else. The exit status is 1 where the engine adds more than 2 %.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.miniatures import fresh_processes, long_plan, small_engine
from benchmarks.report import read_arguments, report

if TYPE_CHECKING:
    from pipeline.engine import Engine
    from policy.plan import RenderPlan

MOST_RATIO = 1.02
MODELS = ("tiny", "flux.1-dev", "qwen-image", "wan2.1-t2v-1.3b")
STEPS = 24


@dataclass(frozen=True, slots=True)
class Row:
    """What one model's engine adds.

    Attributes:
        steps: Steps of the job.
        cached: Reused steps.
        plain_s: Median CPU time of the plain call.
        engine_s: Median CPU time of the engine.
        ratio: `engine_s` / `plain_s`.
        equal: Whether both gave the same pixels.
    """

    model: str
    steps: int
    cached: int
    plain_s: float
    engine_s: float
    ratio: float
    equal: bool

    @property
    def is_right(self) -> bool:
        """Whether it is as little as promised."""
        return self.ratio <= MOST_RATIO and self.equal


def measure(model_id: str, folder: Path, pairs: int) -> Row:
    """Measures one model; to be called in a process of its own."""
    engine, _ = small_engine(model_id, folder, "eager", compile=False)
    engine.prepare()
    plan = long_plan(engine.spec, num_inference_steps=STEPS)
    kinds: tuple[Callable[[Engine, RenderPlan], tuple[np.ndarray, int]], ...] = (_by_hand, _by_engine)
    seconds: tuple[list[float], list[float]] = ([], [])
    results: list[tuple[np.ndarray, int]] = []
    for pair in range(pairs):
        for kind in (0, 1) if pair % 2 else (1, 0):
            started = time.process_time()
            results.append(kinds[kind](engine, plan))
            seconds[kind].append(time.process_time() - started)
    plain_s, engine_s = map(statistics.median, seconds)
    first, cached = results[0]
    return Row(
        model=model_id,
        steps=STEPS,
        cached=cached,
        plain_s=round(plain_s, 4),
        engine_s=round(engine_s, 4),
        ratio=round(engine_s / plain_s, 4),
        equal=all(np.array_equal(first, pixels) for pixels, _ in results),
    )


def _by_engine(engine: "Engine", plan: "RenderPlan") -> tuple[np.ndarray, int]:
    rendering = engine.render(plan)
    picture = rendering.pictures[0]
    pixels = picture.frames if picture.frames is not None else np.asarray(picture.image)
    return pixels, int(str(rendering.acceleration["cached_steps"]))


def _by_hand(engine: "Engine", plan: "RenderPlan") -> tuple[np.ndarray, int]:
    import torch

    from pipeline.render import call_arguments

    pipe, acceleration = engine.parts
    acceleration.mount(engine.decide(plan))
    arguments: dict[str, Any] = call_arguments(pipe, engine.spec, plan, plan.seed)
    with torch.no_grad():
        output = pipe(**arguments)
    values = np.asarray((output.frames if plan.kind == "video" else output.images)[0])
    return (values * 255).round().astype(np.uint8), sum(acceleration.cached_steps())


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as text."""
    yield f"{'model':<18}{'steps':>6}{'reused':>8}{'plain s':>10}{'engine s':>10}{'ratio':>8}  pixels"
    for row in rows:
        yield (
            f"{row.model:<18}{row.steps:>6}{row.cached:>8}{row.plain_s:>10.4f}{row.engine_s:>10.4f}"
            f"{row.ratio:>8.4f}  {'equal' if row.equal else 'DIFFER'}"
        )


def main() -> int:
    """Runs from the command line."""
    parser = read_arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="calls of each kind (default: 30)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder, fresh_processes() as processes:
        rows = [
            processes.submit(measure, model, Path(folder) / model, options.pairs).result()
            for model in options.model or MODELS
        ]
    return report(rows, table, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
