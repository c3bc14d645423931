"""The real worker with an engine that renders nothing at a pace.

    python -m tests.faults.paced_worker FOLDER

Into ``FOLDER/<pid of the parent>.phase`` it writes one line whenever the job in hand enters another phase:
the child's id, a number that rises, and ``starting``, ``step K``, ``saving`` or ``stopped``. A prompt that
holds the words ``hold at step K`` waits there, after step K, until ``FOLDER/go`` exists.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from benchmarks.noop_worker import run_with
from cli.leash import hold_leash
from core.hardware import detect
from pipeline.errors import Stopped
from pipeline.rendering import Picture, PreparationStep, Rendering
from policy.microbatch import Sizes
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from policy.resolve import Policy

SHORTEST_S, LONGEST_S = 0.05, 0.2
LOAD_S = 0.2
HOLD = re.compile(r"hold at step (\d+)")
LINE = 60
"""Every line is padded to this length, so that one write replaces the one before."""


class PacedEngine:
    """Takes 0.05 to 0.2 s for a job, by its seed; the pictures of two attempts differ."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None,
        report: Callable[[PreparationStep], None],
    ) -> None:
        del spec, source
        self._most = policy["microbatch"]
        self.device = SimpleNamespace(type=detect().device)
        self._report = report
        self._folder = Path(sys.argv[1])
        self._file = os.open(self._folder / f"{os.getppid()}.phase", os.O_RDWR | os.O_CREAT)
        self._count = 0

    def prepare(self) -> list[PreparationStep]:
        self._report(PreparationStep("load", "started"))
        time.sleep(LOAD_S)
        done = PreparationStep("load", "done", LOAD_S)
        self._report(done)
        return [done]

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool],
        *,
        safer: bool,
        inputs: object = None,
    ) -> Rendering:
        del safer, inputs
        steps = plan.num_inference_steps * len(plan.seeds)
        pace_s = (SHORTEST_S + plan.seeds[0] % 1000 / 1000 * (LONGEST_S - SHORTEST_S)) / steps
        held = HOLD.search(plan.prompt)
        self._tell("starting")
        for step in range(steps + 1):
            if held and step == int(held[1]):
                self._wait()
            if step == steps:
                break
            time.sleep(pace_s)
            self._tell(f"step {step + 1}")
            if not on_step(step + 1, steps):
                self._tell("stopped")
                raise Stopped(step + 1)
        pictures = tuple(Picture(index, seed, _draw(plan), None) for index, seed in enumerate(plan.seeds))
        self._tell("saving")
        return Rendering(pictures, {"total": pace_s * steps}, {"cache": "off", "steps": steps})

    def shared_sizes(self, plan: RenderPlan) -> Sizes:
        del plan
        return Sizes(mixed=tuple(range(2, self._most + 1)))

    def render_together(
        self, plans: Sequence[RenderPlan], on_step: Callable[[int, int], bool]
    ) -> list[Rendering]:
        """Takes as long as the first would alone."""
        led = self.render(plans[0], on_step, safer=False)
        told = led.acceleration | {"microbatch": len(plans), "likeness": "exact"}
        return [
            Rendering((Picture(0, plan.seed, _draw(plan), None),), led.timings_ms, told) for plan in plans
        ]

    def _tell(self, phase: str) -> None:
        self._count += 1
        os.pwrite(self._file, f"{os.getpid()} {self._count} {phase}".ljust(LINE).encode(), 0)

    def _wait(self) -> None:
        while not (self._folder / "go").exists():
            time.sleep(0.01)


def _draw(plan: RenderPlan) -> Image.Image:
    red, green, blue = os.urandom(3)
    return Image.new("RGB", (plan.width, plan.height), (red, green, blue))


def main() -> int:
    hold_leash()
    return run_with(PacedEngine)


if __name__ == "__main__":
    sys.exit(main())
