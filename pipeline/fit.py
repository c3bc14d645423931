"""Fits step masks to a checkpoint and measures them.

    python -m pipeline.fit --model tiny --steps 20,28,50 --seed 5000

Prints one line of JSON. Masks are searched on the first prompts of the file, with the latents as the measure;
each that is kept is then run by the pipeline itself, with Cache-DiT mounted as for a job, on those prompts
and on the others, and its pictures are compared with the uncached ones before they are rounded to 8 bits.
Prompts share a pass: a mask decides without looking at them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import versions
from pipeline.boundary import transformers_of
from pipeline.engine import Engine
from pipeline.errors import PipelineError, Unsupported
from pipeline.load import locate
from pipeline.mask_search import Range, decibels, goal, search
from pipeline.memory import find_hardware
from pipeline.render import call_arguments
from pipeline.trajectory import Node, Trajectory
from policy.cache import UNCACHED, with_mask
from policy.catalogue import Catalogue
from policy.errors import PolicyError
from policy.model_spec import ModelSpec
from policy.plan import make_plan
from policy.request import RenderRequest
from policy.resolve import resolve

PERCENT = (20, 27, 34, 42, 50, 58, 66)  # shares of reused steps at which a curve has points
PROMPTS = "prompts.txt"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts with a seed each: `seed` for the first, counting up."""

    texts: Sequence[str]
    seed: int

    def parts(self, size: int) -> "Iterator[Prompts]":
        """The same in passes of at most `size`."""
        for first in range(0, len(self.texts), size):
            yield Prompts(self.texts[first : first + size], self.seed + first)


@dataclass(frozen=True, slots=True)
class Task:
    """What to fit.

    Attributes:
        steps: Step counts.
        fit: Prompts to fit on; `check`: others.
        orders: Of the Taylor predictor, each tried.
        beam: Ways kept to each state of the search.
        batch: Most prompts of a pass.
    """

    steps: Sequence[int]
    fit: Prompts
    check: Prompts
    orders: Sequence[int] = (1, 2)
    beam: int = 1
    batch: int = 32


class Quarters:
    """Reports a search at each quarter of its steps."""

    def __init__(self, steps: int, report: Callable[[str], None]) -> None:
        self.steps, self.report = steps, report

    def __call__(self, done: int) -> None:
        """Take note of the steps done."""
        if 4 * done // self.steps > 4 * (done - 1) // self.steps:
            self.report(f"{self.steps} steps: searched up to step {done}")


class Bench:
    """One loaded model, run in passes of several prompts."""

    def __init__(self, engine: Engine, batch: int) -> None:
        self.spec = engine.spec
        self.pipe, self.acceleration = engine.parts
        self.batch = batch

    def arguments(self, prompts: Prompts, steps: int) -> dict[str, Any]:
        """Of a pipeline call for these prompts, as a job of each would have them."""
        request = RenderRequest(
            model=self.spec.id, prompt=prompts.texts[0], num_inference_steps=steps, seed=0
        )
        plan = make_plan(request, self.spec, lambda: 0)
        arguments = call_arguments(self.pipe, self.spec, plan, seed=0)
        generators = [
            torch.Generator("cpu").manual_seed(prompts.seed + index) for index in range(len(prompts.texts))
        ]
        return {**arguments, "prompt": list(prompts.texts), "generator": generators}

    def record(self, prompts: Prompts, steps: int) -> Trajectory:
        """The way of these prompts without a cache."""
        self.acceleration.mount(UNCACHED)
        (module,) = transformers_of(self.pipe, self.spec)
        arguments = {**self.arguments(prompts, steps), "output_type": "latent"}
        return Trajectory.record(self.pipe, module, arguments)

    def pictures(self, prompts: Prompts, steps: int, mask: str | None, order: int = 0) -> np.ndarray:
        """Renders them, uncached when there is no mask; (P, H, W, 3), 0 to 1."""
        decision = UNCACHED if mask is None else with_mask(tuple(map(int, mask)), order)
        parts = []
        for part in prompts.parts(self.batch):
            self.acceleration.prepare_for(decision)
            with torch.no_grad():
                parts.append(np.asarray(self.pipe(**self.arguments(part, steps)).images))
            self.acceleration.check_executed()
        return np.concatenate(parts)


def fit(bench: Bench, task: Task, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Returns the points of the curve, as `policy.curve.FittedMask` takes them.

    Raises:
        Unsupported: The model is not one that masks can be fitted to.
    """
    points: list[dict[str, Any]] = []
    for steps in task.steps:
        found = _search_all(bench, task, steps, report)
        plain = [bench.pictures(prompts, steps, None) for prompts in (task.fit, task.check)]
        for mask, order in found:
            sides = [
                psnr(bench.pictures(prompts, steps, mask, order), uncached)
                for prompts, uncached in zip((task.fit, task.check), plain, strict=True)
            ]
            points.append({"mask": mask, "order": order, **_figures(*sides)})
            report(_words(points[-1]))
    return points


def _words(point: Mapping[str, Any]) -> str:
    mask = point["mask"]
    return (
        f"{len(mask)} steps: {mask.count('0')} reused, order {point['order']}: "
        f"{point['check_mean_db']:.1f} dB from uncached pictures, worst {point['check_worst_db']:.1f} dB"
    )


def _search_all(bench: Bench, task: Task, steps: int, report: Callable[[str], None]) -> list[tuple[str, int]]:
    """The best mask and order for each share of reused steps."""
    trajectory = bench.record(task.fit, steps)
    wanted = reused_counts(steps)
    limits = Range(wanted[0], wanted[-1], task.beam)
    best: dict[int, tuple[float, Node, int]] = {}
    for order in task.orders:
        report(f"{steps} steps, predictor of order {order} ...")
        quarters = Quarters(steps, report)
        for reused, nodes in search(trajectory, bench.acceleration, order, limits, quarters).items():
            candidate = (goal(trajectory.errors(nodes[0])), nodes[0], order)
            if reused not in best or candidate[0] > best[reused][0]:
                best[reused] = candidate
    return [("".join(map(str, best[reused][1].mask)), best[reused][2]) for reused in wanted if reused in best]


def reused_counts(steps: int) -> list[int]:
    """The numbers of reused steps at which a curve has points, ascending."""
    return sorted({max(1, round(steps * percent / 100)) for percent in PERCENT})


def psnr(pictures: np.ndarray, uncached: np.ndarray) -> torch.Tensor:
    """Decibels of each picture; (P,)."""
    errors = ((pictures - uncached) ** 2).reshape(len(uncached), -1).mean(1)
    return decibels(torch.from_numpy(errors))


def _figures(fitted: torch.Tensor, checked: torch.Tensor) -> dict[str, float]:
    sides = {"fit": fitted, "check": checked}
    return {
        f"{side}_{name}_db": round(float(value), 2)
        for side, values in sides.items()
        for name, value in (("mean", values.mean()), ("worst", values.min()))
    }


def read_prompts(path: Path) -> list[str]:
    """One prompt a line; lines that begin with # and empty ones are left out."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def load(spec: ModelSpec, source: str | None, batch: int) -> Bench:
    """Loads the model uncompiled.

    Raises:
        Unsupported: Masks cannot be fitted to a model of its kind.
    """
    if (
        spec.kind != "image"
        or len(spec.transformers) != 1
        or (spec.guidance.style == "separate" and spec.guidance.steers(spec.guidance.default))
    ):
        raise Unsupported(
            f"masks are fitted to image models that call one transformer once per step; {spec.id} is another"
        )
    policy = resolve(spec, flags={"warmup": False, "compile": False}, env={}, hardware=find_hardware())
    engine = Engine(spec, policy, source=source)
    engine.prepare()
    return Bench(engine, batch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits what the command line names; prints one line of JSON."""
    given = _parse(arguments)
    try:
        spec = Catalogue.load(*given.catalogue_dir).get_model(given.model)
        texts = read_prompts(given.prompts or _own_prompts(spec))
        if not 0 < given.fit_prompts < len(texts):
            raise Unsupported(_too_few(len(texts), given.fit_prompts))
        task = Task(
            steps=given.steps,
            fit=Prompts(texts[: given.fit_prompts], given.seed),
            check=Prompts(texts[given.fit_prompts :], given.seed + given.fit_prompts),
            orders=given.orders,
            beam=given.beam,
            batch=given.batch,
        )
        points = fit(load(spec, given.source, given.batch), task, _say)
    except (PolicyError, PipelineError, OSError) as error:
        _say(str(error))
        return 1
    sys.stdout.write(json.dumps(_result(spec, task, points)) + "\n")
    return 0


def _too_few(count: int, asked: int) -> str:
    if count < 2:
        return f"there is {count} prompt: give more, some to fit on and others for the check"
    return (
        f"--fit-prompts must be an integer from 1 to {count - 1}, not {asked}: there are {count} prompts, "
        f"and one at least is for the check; nearest: {min(max(asked, 1), count - 1)}"
    )


def _result(spec: ModelSpec, task: Task, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "model": spec.id,
        "revision": spec.revision,
        "device": find_hardware().name or "CPU",
        "prompts": len(task.fit.texts),
        "check_prompts": len(task.check.texts),
        "seed": task.fit.seed,
        "versions": versions.collect(),
        "masks": list(points),
    }


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def _own_prompts(spec: ModelSpec) -> Path:
    folder, is_folder = locate(spec.source)
    path = Path(folder) / PROMPTS
    if not (is_folder and path.is_file()):
        raise Unsupported(f"{spec.id} comes without prompts to fit on: name a file with --prompts")
    return path


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipeline.fit", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=_numbers, default=[20, 28, 50], help="step counts, comma separated")
    parser.add_argument("--prompts", type=Path, help="file with one prompt a line")
    parser.add_argument("--fit-prompts", type=int, default=32, help="how many, from the first, to fit on")
    parser.add_argument("--seed", type=int, default=5000, help="of the first prompt; they count up")
    parser.add_argument("--orders", type=_numbers, default=[1, 2], help="of the predictor, comma separated")
    parser.add_argument("--beam", type=int, default=1, help="ways kept to each state of the search")
    parser.add_argument("--batch", type=int, default=32, help="most prompts of a pass")
    parser.add_argument("--source", help="folder or hub id that replaces the model's own")
    parser.add_argument("--catalogue-dir", type=Path, action="append", default=[])
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


if __name__ == "__main__":
    sys.exit(main())
