"""The real worker with jobs that render nothing for as many seconds as their prompt says, in steps of 50 ms.

    python -m benchmarks.slow_worker

For `benchmarks.recovery`. It ends with whoever started it and stops at its next step when it is told to.
"""

import sys
import time
from collections.abc import Callable

from benchmarks.noop_worker import NoopEngine, run_with
from cli.leash import hold_leash
from pipeline.errors import Stopped
from pipeline.rendering import Rendering
from policy.plan import RenderPlan

STEP_S = 0.05


class SlowEngine(NoopEngine):
    """Takes the seconds that the prompt is."""

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool],
        *,
        safer: bool,
        inputs: object = None,
    ) -> Rendering:
        steps = max(1, round(float(plan.prompt) / STEP_S))
        for step in range(1, steps):
            time.sleep(STEP_S)
            if not on_step(step, steps):
                raise Stopped(step)
        return super().render(plan, on_step, safer=safer, inputs=inputs)


def main() -> int:
    hold_leash()
    return run_with(SlowEngine)


if __name__ == "__main__":
    sys.exit(main())
