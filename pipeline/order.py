"""Measures what the order of preparation costs the first request.

    python -m pipeline.order --model tiny --order "mount>compile>warmup" --compile-scope whole

One order in one fresh process, which prints one line of JSON. `mount>compile>warmup` is the engine as workers
run it. `compile>warmup>mount` is the faulty order: the transformer is compiled and warmed up bare, and the
cache is mounted by the first request. It exists for this measurement only; no worker can reach it.

In both orders requests may compile (`new_shape=compile`), or the engine's rule against it would hide the
fault, and both start from an empty compiler cache. A time is the wall time of a request's denoising; a
request has several pictures, so that a small model runs long enough to be timed on a shared machine. The
processor time of the whole request stands beside it, because it is the calmer of the two there.
"""

import argparse
import functools
import json
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from torch._inductor.utils import fresh_cache

from pipeline.acceleration import Acceleration, Backend
from pipeline.boundary import transformers_of
from pipeline.compilation import CompilePlan, compiles_so_far
from pipeline.engine import Engine
from pipeline.errors import PipelineError
from pipeline.loaded import Loaded
from pipeline.memory import find_hardware
from pipeline.rendering import PreparationStep
from policy.catalogue import Catalogue
from policy.errors import PolicyError
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest
from policy.resolve import Policy, Resolved, resolve

Order = Literal["mount>compile>warmup", "compile>warmup>mount"]
Scope = Literal["whole", "regional"]

STEADY_REQUESTS = 7
PICTURES = 8
_PROMPT = "a white house with a blue roof and an orange tree on a beach and mountains at sunset"


class Request(NamedTuple):
    """What one request took: wall time of its denoising, CPU time of all of it, compilations."""

    denoise_s: float
    cpu_s: float
    compiles: int


class Timed(NamedTuple):
    """What an engine took to become ready, and its requests after that."""

    preparation: Sequence[PreparationStep]
    compiles_warmup: int
    first: Request
    later: Sequence[Request]

    @property
    def steady_denoise_s(self) -> float:
        """Median of the later requests; likewise `steady_cpu_s`."""
        return statistics.median(request.denoise_s for request in self.later)

    @property
    def steady_cpu_s(self) -> float:
        return statistics.median(request.cpu_s for request in self.later)


class _LoadedToCompileFirst(Loaded):
    def _accelerate(self, backend: Backend | None) -> Acceleration:
        self.reference_steps = None  # the warm-up is to reuse nothing
        return Acceleration(
            functools.partial(transformers_of, self.pipe, self.spec),
            CompilePlan.from_policy(self.policy),
            cache_wanted=True,
            pipeline=self.pipe,
            backend=backend,
            compile_before_mount=True,
        )


class CompiledFirst(Engine):
    """The faulty order: compile, warm up without a cache, and leave the mount to the first request."""

    load_kind = _LoadedToCompileFirst

    def _mount(self) -> dict[str, object]:
        return {"mounted": False}


def measure_order(
    spec: ModelSpec,
    policy: Policy,
    order: Order,
    scope: Scope,
    *,
    source: str | None = None,
    device: str | None = None,
    backend: Backend = "inductor",
    requests: int = STEADY_REQUESTS,
) -> dict[str, Any]:
    """Prepares an engine in this order and times its first request and the ones after it.

    Args:
        spec: The model.
        policy: Its options; compile, scope and new_shape are set for the measurement.
        order: Which order.
        scope: What is compiled.
        source: A folder that replaces the spec's source.
        device: A torch device.
        backend: A backend of torch.compile.
        requests: How many requests after the first; steady is their median.

    Returns:
        ``first_denoise_s``, ``steady_denoise_s``, ``first_over_steady`` (wall time), ``first_cpu_s``,
        ``steady_cpu_s`` (processor time of the whole request), ``compiles_warmup``,
        ``compiles_first_request``, and what was run.
    """
    kind = Engine if order == "mount>compile>warmup" else CompiledFirst
    engine = kind(spec, _for_measuring(policy, scope), source=source, device=device, backend=backend)
    plan = _plan(spec)
    timed = time_requests(engine, lambda: plan, requests)
    effective = engine.effective()
    engine.close()
    return {
        "order": order,
        "first_denoise_s": round(timed.first.denoise_s, 4),
        "steady_denoise_s": round(timed.steady_denoise_s, 4),
        "first_over_steady": round(timed.first.denoise_s / timed.steady_denoise_s, 3),
        "first_cpu_s": round(timed.first.cpu_s, 4),
        "steady_cpu_s": round(timed.steady_cpu_s, 4),
        "compiles_warmup": timed.compiles_warmup,
        "compiles_first_request": timed.first.compiles,
        "compiles_later_requests": sum(request.compiles for request in timed.later),
        "compile_scope": effective["compile_scope"],
        "cache_mounted": effective["mounted"],
        "steps": plan.num_inference_steps,
        "pictures": plan.n,
        "requests": requests,
        "preparation_s": {step.name: step.seconds for step in timed.preparation},
    }


def time_requests(engine: Engine, plan_request: Callable[[], RenderPlan], requests: int) -> Timed:
    """Prepares the engine with nothing compiled before, and times the first request and those after it.

    Args:
        engine: Not prepared yet.
        plan_request: Called when it is ready; the plan is run again and again.
        requests: How many after the first.
    """
    with fresh_cache():
        before = compiles_so_far()
        preparation = engine.prepare()
        compiles_warmup = compiles_so_far() - before
        plan = plan_request()
        first, *later = [_time(engine, plan) for _ in range(1 + requests)]
    return Timed(preparation, compiles_warmup, first, later)


def _time(engine: Engine, plan: RenderPlan) -> Request:
    cpu, compiles = _cpu_s(), compiles_so_far()
    rendering = engine.render(plan)
    return Request(rendering.timings_ms["denoise"] / 1000, _cpu_s() - cpu, compiles_so_far() - compiles)


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _for_measuring(policy: Policy, scope: Scope) -> Policy:
    reason = "set for the measurement"
    values = {"compile": True, "compile_scope": scope, "new_shape": "compile", "warmup": True}
    changed = {name: Resolved(value, "flag", reason) for name, value in values.items()}
    return replace(policy, options={**policy.options, **changed})


def _plan(spec: ModelSpec) -> RenderPlan:
    prompt = _PROMPT[: spec.limits.prompt_characters]
    request = RenderRequest(model=spec.id, prompt=prompt, seed=1, n=min(PICTURES, spec.limits.n))
    return make_plan(request, spec, lambda: 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the command line names; prints one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.order", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--order", choices=get_args(Order), required=True)
    parser.add_argument("--compile-scope", choices=get_args(Scope), default="whole")
    parser.add_argument("--source", help="folder or hub id that replaces the model's own")
    parser.add_argument("--catalogue-dir", type=Path, action="append", default=[])
    parser.add_argument("--requests", type=int, default=STEADY_REQUESTS, help="requests after the first")
    given = parser.parse_args(arguments)
    try:
        spec = Catalogue.load(*given.catalogue_dir).get_model(given.model)
        policy = resolve(spec, flags={"compile": True}, env={}, hardware=find_hardware())
        result = measure_order(
            spec, policy, given.order, given.compile_scope, source=given.source, requests=given.requests
        )
    except (PolicyError, PipelineError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
