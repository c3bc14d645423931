"""Miniatures of the catalogue's models, each in processes that know nothing of the others."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.catalogue import Catalogue
from policy.modes import Hardware
from policy.plan import RenderPlan, make_plan
from policy.request import parse_request
from policy.resolve import resolve

if TYPE_CHECKING:
    from pipeline.engine import Engine
    from policy.model_spec import ModelSpec

CPU = Hardware("cpu", None, 1, 4.0, 4.0, supports_bf16=True)
PRESET = "balanced"
PROMPT = "a white house by the sea"

Backend = str | Callable[..., Any]


def fresh_processes() -> ProcessPoolExecutor:
    """One process at a time, a new one for each call."""
    context = multiprocessing.get_context("forkserver")
    # Importing the libraries takes several seconds; every process starts as a copy of one that has.
    context.set_forkserver_preload(["benchmarks.preloaded"])
    return ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1)


def small_engine(
    model_id: str, folder: Path, backend: Backend, kind: "type[Engine] | None" = None, **flags: object
) -> "tuple[Engine, RenderPlan]":
    """An engine of the miniature, to be prepared, and a job long enough for its cache to reuse steps.

    Args:
        model_id: The model.
        folder: Where its miniature is, or is to be built.
        backend: A backend of torch.compile.
        kind: An engine that prepares in another way.
        flags: Options of the worker.
    """
    from pipeline.engine import Engine
    from pipeline.miniature import build, spec_of

    spec = Catalogue.load()[model_id]
    if not folder.exists():
        build(spec, folder)
    small = spec_of(spec)
    policy = resolve(small, flags={"cache": True, "cache_preset": PRESET, **flags}, env={}, hardware=CPU)
    make = Engine if kind is None else kind
    return make(small, policy, source=str(folder), device="cpu", backend=backend), long_plan(small)


def long_plan(spec: "ModelSpec", **fields: object) -> RenderPlan:
    """A job that is long enough for the cache to reuse steps, with a negative prompt where there is one."""
    enough = max(spec.steps.default, spec.cache_minimum_steps(PRESET) + 1)
    body: dict[str, object] = {
        "model": spec.id,
        "prompt": PROMPT,
        "num_inference_steps": min(enough, spec.steps.maximum),
        "seed": 7,
    }
    if spec.limits.negative_prompt:
        body["negative_prompt"] = "blurred"
    return make_plan(parse_request(body | fields, Catalogue({spec.id: spec})), spec, lambda: 0)
