"""The real worker with an engine that renders nothing, for `benchmarks.queue_overhead` and `benchmarks.bulk`.

    python -m benchmarks.noop_worker [SECONDS_PER_JOB]

Everything is the product's but the engine, which the worker is given. No command and no setting of renderq
leads to this file.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from PIL import Image

from core.hardware import detect
from core.log import configure_logging
from core.settings import get_settings
from pipeline.rendering import Picture, PreparationStep, Rendering
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from policy.resolve import Policy, resolve
from tasks.engine import EngineFactory
from tasks.worker import run_worker

MODEL = "tiny"


class NoopEngine:
    """Prepares nothing and returns one blank picture at once."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None,
        report: Callable[[PreparationStep], None],
        pace_s: float = 0.0,
    ) -> None:
        del policy, source
        self.device = SimpleNamespace(type=detect().device)
        self._report = report
        self._pace_s = pace_s
        self._image = Image.new("RGB", spec.size.default)

    def prepare(self) -> list[PreparationStep]:
        steps = [PreparationStep("load", "started"), PreparationStep("load", "done", 0.0)]
        for step in steps:
            self._report(step)
        return steps

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool],
        *,
        safer: bool,
        inputs: object = None,
    ) -> Rendering:
        del safer, inputs
        time.sleep(self._pace_s)
        on_step(plan.num_inference_steps, plan.num_inference_steps)
        return self.blank(plan)

    def blank(self, plan: RenderPlan) -> Rendering:
        """The pictures of a job, all the same."""
        pictures = tuple(Picture(index, seed, self._image, None) for index, seed in enumerate(plan.seeds))
        return Rendering(pictures, {"total": 0.0}, {"cache": "off", "steps": 0, "cached_steps": 0})


def run_with(engine_factory: EngineFactory) -> int:
    """Run the worker with this engine; returns its exit code."""
    configure_logging("worker")
    spec = Catalogue.load().get_model(MODEL)
    policy = resolve(spec, flags={}, env=os.environ, hardware=detect())
    return run_worker(get_settings(), spec, policy, engine_factory=engine_factory)


def main() -> int:
    pace_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    return run_with(partial(NoopEngine, pace_s=pace_s))


if __name__ == "__main__":
    sys.exit(main())
