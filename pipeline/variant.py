"""Measures one way of running a model in this process, as `renderq bench model` does it many times over.

    python -m pipeline.variant --model tiny --flags '{"compile": true}' --requests 7 --pictures FOLDER

Prints one line of JSON. The engine is that of a worker, with the options that one would get here from the
flags alone; variables of the environment are left out. The compiler starts with an empty cache, so that the
time to ready is that of the first worker of its kind.
"""

import argparse
import json
import platform
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._inductor.utils import fresh_cache

from pipeline.acceleration import Backend
from pipeline.compilation import compiles_so_far
from pipeline.engine import Engine
from pipeline.errors import PipelineError
from pipeline.fingerprint import hash_weights
from pipeline.load import locate
from pipeline.memory import find_hardware, synchronise
from pipeline.rendering import Rendering
from pipeline.versions import collect
from policy.catalogue import Catalogue
from policy.errors import PolicyError
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan, make_plan
from policy.request import parse_request
from policy.resolve import Policy, resolve

BAD_INPUT, NOT_LOADED = 2, 70
FIRST_SEED = 1000
PROMPTS = (
    "a white house with a blue roof and an orange tree on a beach and mountains at sunset",
    "a red boat on the sea by night",
    "a green tree in the snow",
    "a yellow house on a meadow with hills, by day",
)
_MB = 1e6


class _Request(NamedTuple):
    rendering: Rendering
    compiles: int

    @property
    def seconds(self) -> float:
        return self.rendering.timings_ms["total"] / 1000


def measure_variant(engine: Engine, plans: Sequence[RenderPlan]) -> tuple[dict[str, Any], list[Rendering]]:
    """Prepares an engine and runs the plans: the first is the first request, the others the steady state.

    Returns:
        The figures, seconds and MB (10^6 bytes), and what was rendered.
    """
    if engine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(engine.device)
    before = compiles_so_far()
    preparation = engine.prepare()
    warmed = compiles_so_far()
    first, *steady = [_render(engine, plan) for plan in plans]
    accelerated = [request.rendering.acceleration for request in (first, *steady)]
    figures = {
        "ready_s": round(sum(step.seconds or 0 for step in preparation), 3),
        "preparation_s": {step.name: step.seconds for step in preparation},
        "first_s": first.seconds,
        "steady_s": statistics.median(request.seconds for request in steady),
        "requests_s": [request.seconds for request in steady],
        "compiles_warmup": warmed - before,
        "compiles_requests": compiles_so_far() - warmed,
        "compiled_requests": sum(bool(record["compiled"]) for record in accelerated),
        "cached_steps": [record["cached_steps"] for record in accelerated],
        "effective": engine.effective(),
        "memory_mb": round(_peak_memory(engine.device) / _MB, 1),
    }
    return figures, [request.rendering for request in (first, *steady)]


def _render(engine: Engine, plan: RenderPlan) -> _Request:
    before = compiles_so_far()
    rendering = engine.render(plan)
    synchronise(engine.device)
    return _Request(rendering, compiles_so_far() - before)


def _peak_memory(device: torch.device) -> int:
    """Bytes: torch's peak on a GPU, else the largest resident size of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had before this program replaced it
        kilobytes = status.read_text().partition("VmHWM:")[2].split(maxsplit=1)[0]
        return int(kilobytes) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def plan_requests(
    spec: ModelSpec, catalogue: Catalogue, prompts: Sequence[str], count: int
) -> list[RenderPlan]:
    """Returns plans of the model's default size and steps, a seed of its own for each."""
    bodies = (
        {"model": spec.id, "prompt": prompts[number % len(prompts)], "seed": FIRST_SEED + number}
        for number in range(count)
    )
    return [make_plan(parse_request(body, catalogue), spec, lambda: 0) for body in bodies]


def save_pictures(renderings: Sequence[Rendering], folder: Path) -> None:
    """Writes each first picture as `N.npy`, uint8, (H, W, 3) or (F, H, W, 3)."""
    for number, rendering in enumerate(renderings):
        picture = rendering.pictures[0]
        np.save(
            folder / f"{number}.npy", np.asarray(picture.frames if picture.image is None else picture.image)
        )


def describe_checkpoint(spec: ModelSpec, source: str | None) -> dict[str, str | None]:
    """Returns the revision, and the hash of the weights where they lie in a folder."""
    place, is_folder = locate(source or spec.source)
    return {"revision": spec.revision, "weights": hash_weights(Path(place)) if is_folder else None}


def describe_device(engine: Engine) -> dict[str, str]:
    """Returns the class and the name of the device."""
    kind = engine.device.type
    name = torch.cuda.get_device_name(engine.device) if kind == "cuda" else _processor()
    return {"device": kind, "device_name": name}


def _processor(info: Path = Path("/proc/cpuinfo")) -> str:
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine() or "unknown")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the command line names; prints one line of JSON."""
    given = _read(arguments)
    try:
        sys.stdout.write(json.dumps(_measure(given)) + "\n")
    except (PolicyError, PipelineError) as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT if isinstance(error, PolicyError) else NOT_LOADED
    return 0


def _measure(given: argparse.Namespace, backend: Backend = "inductor") -> dict[str, Any]:
    catalogue = Catalogue.load(*given.catalogue_dir)
    spec = catalogue.get_model(given.model)
    policy: Policy = resolve(spec, flags=json.loads(given.flags), env={}, hardware=find_hardware())
    prompts = given.prompts.read_text(encoding="utf-8").splitlines() if given.prompts else PROMPTS
    plans = plan_requests(spec, catalogue, prompts, given.requests + 1)
    engine = Engine(spec, policy, source=given.source, backend=backend)
    with fresh_cache():
        figures, renderings = measure_variant(engine, plans)
    engine.close()
    save_pictures(renderings, given.pictures)
    return {
        **figures,
        **describe_device(engine),
        **(describe_checkpoint(spec, given.source) if given.checkpoint else {}),
        "versions": collect(),
        **{name: getattr(plans[0], name) for name in ("width", "height")},
        "steps": plans[0].num_inference_steps,
    }


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.variant", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--flags", required=True, help="options of the worker, a JSON object")
    parser.add_argument("--requests", type=int, required=True, help="requests after the first")
    parser.add_argument("--pictures", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--prompts", type=Path, help="file with a prompt a line")
    parser.add_argument("--checkpoint", action="store_true", help="also tell which weights these are")
    parser.add_argument("--source", help="folder or hub id that replaces the model's own")
    parser.add_argument("--catalogue-dir", type=Path, action="append", default=[])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
