"""Measures jobs drawn one by one against the same jobs drawn in one pass.

    python -m benchmarks.shared_pass [--model ID] [--most N] [--repeat N] [--flags JSON] [--json]

One engine, as a worker with `microbatch` prepares it. For each number of jobs that its warm-up allows in one
pass, the jobs are drawn alone and then together, in turn; the medians are compared, in wall time and in CPU
time. A ratio of 2 means that a pass of them takes half of the time of all of them alone.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from pipeline.engine import Engine
from pipeline.memory import find_hardware
from policy.catalogue import Catalogue
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest
from policy.resolve import resolve

PROMPTS = (
    "a white house with a blue roof and an orange tree on a beach",
    "a red boat on the sea by night",
    "a green tree in the snow",
    "a yellow house on a meadow with hills",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of jobs.

    Attributes:
        jobs: How many.
        likeness: Of their pictures with those drawn alone.
        alone_s: Median wall time of all of them, one after the other, seconds.
        together_s: Median wall time of one pass of them.
        ratio: The first over the second.
        cpu_ratio: The same of CPU time.
    """

    jobs: int
    likeness: str
    alone_s: float
    together_s: float
    ratio: float
    cpu_ratio: float


def measure(engine: Engine, plans: Sequence[RenderPlan], repeat: int) -> Row:
    """Draws the plans both ways, in turn."""
    alone, together = [], []
    for _ in range(repeat):
        alone.append(_timed(lambda: [engine.render(plan) for plan in plans]))
        together.append(_timed(lambda: engine.render_together(plans)))
    (alone_s, alone_cpu), (together_s, together_cpu) = map(_medians, (alone, together))
    ratio, cpu_ratio = alone_s / together_s, alone_cpu / together_cpu
    drawn = engine.render_together(plans)[0]
    told = str(drawn.acceleration["likeness"])  # type: ignore[union-attr]
    return Row(len(plans), told, *(round(value, 3) for value in (alone_s, together_s, ratio, cpu_ratio)))


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _medians(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each number of jobs."""
    given = _read(arguments)
    spec = Catalogue.load().get_model(given.model)
    flags = {"microbatch": given.most, **json.loads(given.flags)}
    policy = resolve(spec, flags=flags, env={}, hardware=find_hardware())
    engine = Engine(spec, policy, source=given.source)
    engine.prepare()
    plans = [
        make_plan(
            RenderRequest(model=spec.id, prompt=PROMPTS[seed % len(PROMPTS)], seed=seed, quality="high"),
            spec,
            lambda: 0,
        )
        for seed in range(given.most)
    ]
    rows = [measure(engine, plans[:size], given.repeat) for size in engine.shared_sizes(plans[0]).mixed]
    engine.close()
    _show(rows, as_json=given.json)
    return 0


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        return
    sys.stdout.write("jobs  likeness  alone s  together s  ratio  CPU ratio\n")
    for row in rows:
        sys.stdout.write(
            f"{row.jobs:>4}  {row.likeness:<8}  {row.alone_s:>7.3f}  {row.together_s:>10.3f}  "
            f"{row.ratio:>5.2f}  {row.cpu_ratio:>9.2f}\n"
        )


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--source", help="folder or hub id that replaces the model's own")
    parser.add_argument("--most", type=int, default=4, help="most jobs in one pass")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--flags", default="{}", help="other options of the worker, a JSON object")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
