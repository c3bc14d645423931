"""What a worker needs of an engine, and the one that it uses unless told otherwise.

The worker's parent hands a factory to the child, which calls it: the GPU stack is imported there and nowhere
else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.inputs import Inputs
    from pipeline.interruption import Interruption
    from pipeline.rendering import PreparationStep, Rendering, ShapeReport
    from policy.model_spec import ModelSpec
    from policy.plan import RenderPlan
    from policy.resolve import Policy


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
class Compiles(Protocol):
    """An engine that may compile."""

    def compile_facts(self) -> Mapping[str, object] | None:
        """What decides whether it can use what another one's compiler made; None: it compiles nothing."""


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

    engine = import_engine(quantise=policy["quantize"] != "none").Engine
    made: Engine = engine(spec, policy, source=source, report=report)
    return made
