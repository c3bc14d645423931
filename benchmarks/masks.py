"""What each way to reuse denoising steps costs in fidelity, and what it saves, on the tiny model.

    python -m benchmarks.masks --captions 20 --steps 24,28 [--json FILE] [--picture docs/images/masks.png]
    python -m benchmarks.masks --from FILE --picture docs/images/masks.png

The captions are held out: neither the training nor the fit of the masks has seen one of their scenes. Each is
rendered by the engine as a worker runs it, one job after the other, in every setting in turn, so that what
else the machine does falls on all of them alike:

- without a cache: what the others are compared with;
- the presets, which are points on the checkpoint's curve, and the evenly spaced rules that they were before;
- the residual threshold (`adaptive`);
- Cache-DiT's own step masks, with the first-order predictor and without.

Decibels are PSNR between the 8-bit pictures that a job delivers; equal pictures count 99.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curve_picture import draw
from pipeline.engine import Engine
from pipeline.memory import find_hardware
from policy.catalogue import Catalogue
from policy.mask import PRESET_RULES
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest
from policy.resolve import resolve
from training.captions import read
from training.checker import check
from training.examples import held_out_landscapes

EQUAL_DB = 99.0
FIRST_SEED = 9000
THRESHOLDS = (0.12, 0.24)
LIBRARY_MASKS = ("slow", "medium", "fast", "ultra")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way: kind and name, the job's field `cache`, and the threshold of the engine that runs it."""

    kind: str
    name: str
    cache: Any
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture."""

    pixels: np.ndarray
    right: int
    said: int
    reused: int
    denoise_ms: float
    cpu_ms: float


def settings(steps: int) -> Iterator[Setting]:
    """Every way that is compared at this step count, the uncached one first."""
    yield Setting("uncached", "off", "off")
    for preset, rule in PRESET_RULES.items():
        yield Setting("fitted", preset, preset)
        yield Setting("rule", rule, {"scm": rule, "taylorseer": 1})
    for threshold in THRESHOLDS:
        yield Setting("threshold", f"adaptive {threshold}", "default", threshold)
    for name in LIBRARY_MASKS:
        digits = library_mask(name, steps)
        yield Setting("library+taylor", f"SCM {name} + Taylor", {"scm": digits, "taylorseer": 1})
        yield Setting("library", f"SCM {name}", {"scm": digits, "taylorseer": 0})


def library_mask(name: str, steps: int) -> str:
    """Cache-DiT's own mask of this name."""
    import cache_dit

    return "".join(map(str, cache_dit.steps_mask(total_steps=steps, mask_policy=name)))


class Engines:
    """The tiny model once for each threshold, prepared when first asked for."""

    def __init__(self) -> None:
        self.spec = Catalogue.load().get_model("tiny")
        self._engines: dict[float | None, Engine] = {}

    def get(self, threshold: float | None) -> Engine:
        if threshold not in self._engines:
            adaptive = {"cache_preset": "adaptive", "cache_threshold": threshold}
            flags = {"performance_mode": "manual", **(adaptive if threshold else {})}
            policy = resolve(self.spec, flags=flags, env={}, hardware=find_hardware())
            self._engines[threshold] = Engine(self.spec, policy)
            self._engines[threshold].prepare()
        return self._engines[threshold]

    def shoot(self, setting: Setting, caption: str, seed: int, steps: int) -> Shot:
        plan = self._plan(setting, caption, seed, steps)
        began = time.process_time()
        rendering = self.get(setting.threshold).render(plan)
        cpu_ms = (time.process_time() - began) * 1000
        picture = rendering.pictures[0].image
        assert picture is not None
        found = check(read(caption), picture)
        reused = int(str(rendering.acceleration["cached_steps"]))
        denoise_ms = rendering.timings_ms["denoise"]
        return Shot(np.asarray(picture), sum(found.values()), len(found), reused, denoise_ms, cpu_ms)

    def _plan(self, setting: Setting, caption: str, seed: int, steps: int) -> RenderPlan:
        body = {"model": "tiny", "prompt": caption, "seed": seed, "num_inference_steps": steps}
        request = RenderRequest.model_validate({**body, "cache": setting.cache})
        return make_plan(request, self.spec, lambda: seed)


def decibels(picture: np.ndarray, other: np.ndarray) -> float:
    """PSNR of one 8-bit picture against another."""
    error = float(((picture.astype(float) - other.astype(float)) ** 2).mean())
    return min(EQUAL_DB, 10 * math.log10(255**2 / error)) if error else EQUAL_DB


def measure(captions: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """One row for each setting."""
    engines, ways = Engines(), list(settings(steps))
    shots: dict[Setting, list[Shot]] = {way: [] for way in map(_hashable, ways)}
    for number, caption in enumerate(captions):
        for way, key in zip(ways, shots, strict=True):
            shots[key].append(engines.shoot(way, caption, FIRST_SEED + number, steps))
    plain = next(iter(shots.values()))
    return [row(key, steps, taken, plain) for key, taken in shots.items()]


def _hashable(way: Setting) -> Setting:
    return Setting(way.kind, way.name, json.dumps(way.cache), way.threshold)


def row(way: Setting, steps: int, shots: Sequence[Shot], plain: Sequence[Shot]) -> dict[str, Any]:
    """The figures of one setting beside the uncached one."""
    values = [decibels(shot.pixels, other.pixels) for shot, other in zip(shots, plain, strict=True)]
    reused = statistics.fmean(shot.reused for shot in shots)
    saved = 1 - _median(shots, "denoise_ms") / _median(plain, "denoise_ms")
    saved_cpu = 1 - _median(shots, "cpu_ms") / _median(plain, "cpu_ms")
    return {
        "kind": way.kind,
        "name": way.name,
        "steps": steps,
        "reused": round(reused, 2),
        "share": round(reused / steps, 4),
        "mean_db": round(statistics.fmean(values), 2),
        "worst_db": round(min(values), 2),
        "right_pictures": sum(shot.right == shot.said for shot in shots),
        "right_things": round(sum(shot.right for shot in shots) / sum(shot.said for shot in shots), 4),
        "denoise_ms": round(_median(shots, "denoise_ms"), 1),
        "denoise_saved": round(saved, 4),
        "saved_of_share": round(saved * steps / reused, 3) if reused else None,
        "job_cpu_saved": round(saved_cpu, 4),
    }


def _median(shots: Sequence[Shot], name: str) -> float:
    return statistics.median(float(getattr(shot, name)) for shot in shots)


def unseen(count: int, number: int) -> list[str]:
    """Held-out captions of scenes that the prompts of the fit do not name."""
    lines = (ROOT / "pipeline" / "tiny" / "prompts.txt").read_text(encoding="utf-8").splitlines()
    seen = {read(line) for line in lines if not line.startswith("#")}
    return [caption for caption, scene in held_out_landscapes(count, number) if scene not in seen]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    names = (
        "steps",
        "name",
        "reused",
        "mean_db",
        "worst_db",
        "right_things",
        "denoise_saved",
        "saved_of_share",
    )
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for one in sorted(rows, key=lambda one: (one["steps"], one["reused"], one["mean_db"])):
        print(f"| {' | '.join(str(one[name]) for name in names)} |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--captions", type=int, default=20, help="those of scenes that the fit has seen fall away"
    )
    parser.add_argument("--set", type=int, default=9, help="number of the set of captions")
    parser.add_argument("--steps", default="24", help="step counts, comma separated")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--from", type=Path, dest="source", help="rows of an earlier run, instead of a run")
    parser.add_argument("--picture", type=Path, help="PNG to draw of the first step count")
    return parser.parse_args()


def main() -> int:
    given = parse()
    if given.source:
        report = json.loads(given.source.read_text(encoding="utf-8"))
    else:
        captions = unseen(given.captions, given.set)
        rows = [one for steps in given.steps.split(",") for one in measure(captions, int(steps))]
        report = {"captions": len(captions), "set": given.set, "rows": rows}
    rows = report["rows"]
    show(rows)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if given.picture:
        first = rows[0]["steps"]
        picture = draw([one for one in rows if one["steps"] == first], first)
        picture.save(given.picture, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
