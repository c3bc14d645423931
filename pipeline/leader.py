"""The engine of a worker over several GPUs: an engine on the first one, and followers that do the same.

    engine = LeadingEngine(spec, policy)     # degrees above 1
    engine.prepare(); engine.render(plan); engine.close()

All ranks run the same code on the same plan. This one decides: after each step it tells the others to go on
or to stop, so none leaves a job alone. What goes wrong on all of them alike leaves them together; where one
is gone, or stays behind, the engine is unsound, and its process is to end.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from pipeline.acceleration import Backend
from pipeline.channel import write_inputs
from pipeline.engine import Engine
from pipeline.errors import LoadFailed, PipelineError
from pipeline.inputs import Inputs
from pipeline.interruption import Interruption
from pipeline.memory import find_device, settles
from pipeline.parallel import Ranks, device_of, join, leave, offer_store
from pipeline.rendering import PreparationStep, Rendering, ShapeReport
from pipeline.team import HERE_S, READY_S, Abandon, Team
from policy.model_spec import ModelSpec
from policy.parallel import Degrees
from policy.plan import RenderPlan
from policy.resolve import Policy

_STEP: Final = "followers"


def _ignore(_: object) -> None:
    pass


def _stay(_: PipelineError, *, stuck: bool) -> None:
    pass


def _go_on(_done: int, _total: int) -> bool:
    return True


class LeadingEngine:
    """Rank 0 of a worker, with its followers."""

    def __init__(
        self,
        spec: ModelSpec,
        policy: Policy,
        *,
        source: str | None = None,
        device: str | None = None,
        report: Callable[[PreparationStep], None] = _ignore,
        backend: Backend | None = None,
        abandon: Abandon = _stay,
    ) -> None:
        """Remembers what to prepare; starts and loads nothing yet.

        Args:
            spec: The model.
            policy: Its resolved options, with a degree above 1.
            source: A folder or hub id that replaces the spec's own.
            device: The first torch device; None: the accelerator of this process, or the CPU.
            report: Told each preparation step when it starts and when it is done.
            backend: A backend of torch.compile by its name; None: the platform's.
            abandon: Told, most often in another thread, why this process can render no more. With `stuck` it
                waits for a rank in an exchange that it cannot leave, and has to end now; where `abandon`
                returns, the job fails when the exchange does.
        """
        self.spec = spec
        self.policy = policy
        self.degrees = Degrees.from_policy(policy)
        self.device = torch.device(device) if device else find_device()
        self._source = source
        self._report = report
        self._backend = backend
        self.abandon = abandon
        self._team: Team | None = None
        self._engine: Engine | None = None

    @property
    def sound(self) -> bool:
        """Whether all ranks follow; if not, this process can render no more."""
        return self._team is None or self._team.lost is None

    def prepare(self) -> list[PreparationStep]:
        """Starts the followers, and prepares all ranks side by side.

        Raises:
            PipelineError: In words to act on; no weights are held then, and no follower is left.
        """
        try:
            return self._prepare()
        except BaseException:
            self.close()
            raise

    def render(
        self,
        plan: RenderPlan,
        on_step: Callable[[int, int], bool] = _go_on,
        *,
        safer: bool = False,
        inputs: Inputs | None = None,
    ) -> Rendering:
        """As `Engine.render`, on all ranks.

        Raises:
            FollowerLost: A follower died or failed alone; the engine is unsound.
        """
        if self._engine is None or self._team is None:
            raise LoadFailed(f"{self.spec.id} is not loaded: prepare() comes first, and close() last")
        team = self._team
        with team.working():
            team.tell(
                order="render", plan=plan.model_dump(mode="json"), safer=safer, inputs=write_inputs(inputs)
            )
            with team.leaving(partial(settles, self.device)):
                return self._engine.render(plan, team.asking(on_step), safer=safer, inputs=inputs)

    def compile_facts(self) -> dict[str, object] | None:
        """See `Engine.compile_facts`."""
        return Engine(self.spec, self.policy, device=str(self.device)).compile_facts()

    @property
    def shapes(self) -> ShapeReport:
        """See `Engine.shapes`."""
        if self._engine is None:
            raise LoadFailed(f"{self.spec.id} is not loaded")
        return self._engine.shapes

    @property
    def wants_warm_up(self) -> bool:
        """Never: a warm-up that a job interrupts is left at no step that all ranks could agree on."""
        return False

    def warm_next(self, interruption: Interruption) -> str | None:
        """Warms nothing."""
        del interruption
        return None

    def close(self) -> None:
        """Lets go of the weights and ends the followers. The engine can be prepared again."""
        team, self._team = self._team, None
        engine, self._engine = self._engine, None
        if team is not None:
            team.close()
        if engine is not None:
            engine.close()
        leave()

    def _prepare(self) -> list[PreparationStep]:
        self._report(PreparationStep(_STEP, "started"))
        started = time.perf_counter()
        team, ranks = self._gather()
        devices = [str(device_of(self.device, rank)) for rank in range(self.degrees.world)]
        detail: dict[str, object] = {"degrees": self.degrees.as_json(), "pids": team.pids, "devices": devices}
        gathered = PreparationStep(_STEP, "done", round(time.perf_counter() - started, 3), detail)
        self._report(gathered)
        self._engine = Engine(
            self.spec,
            self.policy,
            source=self._source,
            device=str(ranks.device),
            report=self._report,
            backend=self._backend,
            ranks=ranks,
        )
        with team.working():
            steps = self._engine.prepare()
            team.expect("ready", READY_S)
        return [gathered, *steps]

    def _end(self, lost: PipelineError, *, stuck: bool) -> None:
        self.abandon(lost, stuck=stuck)

    def _gather(self) -> tuple[Team, Ranks]:
        world = self.degrees.world
        store = offer_store(world)
        setup = {
            "spec": self.spec.model_dump(mode="json"),
            "policy": self.policy.as_json(),
            "source": self._source,
            "device": str(self.device),
            "backend": self._backend if isinstance(self._backend, str) else None,
            "port": store.port,
        }
        self._team = team = Team(world - 1, self.spec.id, setup, self._end)
        with team.working():
            team.expect("here", HERE_S)
            return team, join(store, 0, self.degrees, self.device)
