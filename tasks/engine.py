"""What a worker needs of an engine, and the one that it uses unless told otherwise.

The worker's parent hands a factory to the child, which calls it: the GPU stack is imported there and nowhere
else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.log import get_logger
from policy.parallel import Degrees

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.errors import PipelineError
    from pipeline.inputs import Inputs
    from pipeline.interruption import Interruption
    from pipeline.rendering import PreparationStep, Rendering, ShapeReport
    from pipeline.team import Abandon
    from policy.microbatch import Sizes
    from policy.model_spec import ModelSpec
    from policy.plan import RenderPlan
    from policy.resolve import Policy
    from tasks.board import Board


#: Exit code of a child whose device or follower stopped working; its parent forks another.
DEVICE_LOST_EXIT = 71

_log = get_logger()


class Device(Protocol):
    """Where an engine computes; a `torch.device` is one."""

    @property
    def type(self) -> str: ...


class Engine(Protocol):
    """What the worker's child asks of an engine; `pipeline.engine.Engine` is one."""

    @property
    def device(self) -> Device: ...

    def prepare(self) -> list[PreparationStep]: ...

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool],
        *,
        safer: bool,
        inputs: Inputs | None,
    ) -> Rendering: ...


@runtime_checkable
class LearnsShapes(Protocol):
    """An engine that can warm, between two jobs, the shapes that requests had."""

    @property
    def shapes(self) -> ShapeReport: ...

    @property
    def wants_warm_up(self) -> bool: ...

    def warm_next(self, interruption: Interruption) -> str | None: ...


@runtime_checkable
class SharesPasses(Protocol):
    """An engine that can draw pictures of several jobs in one pass."""

    def shared_sizes(self, plan: RenderPlan) -> Sizes: ...

    def render_together(
        self, plans: Sequence[RenderPlan], on_step: Callable[[int, int], bool]
    ) -> Sequence[Rendering | PipelineError]:
        """Render one picture of each plan; one that is none comes as an error."""


@runtime_checkable
class Compiles(Protocol):
    """An engine that may compile."""

    def compile_facts(self) -> Mapping[str, object] | None:
        """What decides whether it can use what another one's compiler made; None: it compiles nothing."""


@runtime_checkable
class Leads(Protocol):
    """An engine that renders together with other processes."""

    @property
    def sound(self) -> bool:
        """Whether all of them are there; if not, the child can render no more."""

    #: Called when they are not, with what that is for a job, and whether one is stuck in it.
    abandon: Abandon


class EngineFactory(Protocol):
    """Makes an engine that holds nothing yet; called once in each new child."""

    def __call__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None,
        report: Callable[[PreparationStep], None],
    ) -> Engine: ...


def load_pipeline_engine(
    spec: ModelSpec, policy: Policy, *, source: str | None, report: Callable[[PreparationStep], None]
) -> Engine:
    """Import the GPU stack, which takes as long as a small model's load, and make the product's engine."""
    from pipeline.importing import import_engine

    made: Engine
    engine = import_engine(quantise=policy["quantize"] != "none").Engine
    if Degrees.from_policy(policy).world == 1:
        made = engine(spec, policy, source=source, report=report)
        return made
    from pipeline import leader

    return leader.LeadingEngine(spec, policy, source=source, report=report)


def end_child(board: Board, lost: PipelineError, *, stuck: bool) -> None:
    """End a child that can render no more; its parent forks another, which ends the job with these words.

    Args:
        board: Where the next child finds them.
        lost: What the attempt ends with.
        stuck: The job cannot be left. One that only has its files to store does so first, and its attempt
            then sees that this child was left alone.
    """
    if board.busy and not stuck:
        return
    _log.error("worker.follower_lost", code=lost.code, reason=lost.message)
    board.leave_words(lost.code, lost.message)
    os._exit(DEVICE_LOST_EXIT)
