"""The ways to run a model that `benchmarks.gpu` compares, and the measuring of one."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.full_width import build, spec_of_full_width
from benchmarks.miniatures import PRESET, long_plan
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.parallel import Degrees
from policy.resolve import resolve

if TYPE_CHECKING:
    from pipeline.rendering import Rendering

#: Blocks of the transformer; None: the whole miniature, for a machine without a GPU.
Blocks = int | None


@dataclass(frozen=True, slots=True)
class Way:
    """Options of a worker, by the name that the table gives them.

    Attributes:
        seconds: What it may take; one that has less left is not begun.
        faulty: Compiled before the cache is mounted.
        gpus: How many it takes.
    """

    name: str
    model: str
    flags: Mapping[str, object]
    seconds: int = 25
    faulty: bool = False
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One way in one process.

    Attributes:
        ready_s: From nothing to ready, with an empty compiler cache.
        first_s: Denoising time of the first request, after the device has caught up.
        steady_s: Median of the next ones.
        compiles: Compilations until ready; `compiles_after` those in requests.
        cached: Reused steps of `steps`.
        memory_mb: Most device memory at a time; without a GPU resident memory.
        repeats: Whether two renders of one plan were equal byte for byte.
        error: Why there are no figures.
    """

    name: str
    model: str
    ready_s: float = 0.0
    first_s: float = 0.0
    steady_s: float = 0.0
    ratio: float = 0.0
    compiles: int = 0
    compiles_after: int = 0
    cached: int = 0
    steps: int = 0
    memory_mb: int = 0
    repeats: bool = False
    error: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


STEPS = 20
FLUX, WAN = "flux.1-dev", "wan2.1-t2v-1.3b"
_OFF: dict[str, object] = {"cache": False, "compile": False}
_ON: dict[str, object] = {"cache": True, "cache_preset": PRESET, "compile": False}
_REGIONAL: dict[str, object] = {"compile": True, "compile_scope": "regional"}
_WHOLE: dict[str, object] = {"compile": True, "compile_scope": "whole"}

#: What matters most comes first: time may run out.
WAYS = (
    Way("eager", FLUX, _OFF),
    Way("eager, cache", FLUX, _ON),
    Way("regional", FLUX, {**_OFF, **_REGIONAL}, 60),
    Way("regional, cache", FLUX, {**_ON, **_REGIONAL}, 60),
    Way("whole, cache", FLUX, {**_ON, **_WHOLE}, 90),
    Way("whole, compiled before the mount", FLUX, {**_ON, **_WHOLE}, 120, faulty=True),
    Way("eager", WAN, _OFF),
    Way("eager, cache", WAN, _ON),
    Way("regional, cache", WAN, {**_ON, **_REGIONAL}, 60),
    Way("offload group, cache", FLUX, {**_ON, "offload": "group"}),
    Way("offload model, cache", FLUX, {**_ON, "offload": "model"}),
    Way("CUDA graphs", FLUX, {**_OFF, "capture": True}),
    Way("fp8, cache", FLUX, {**_ON, "quantize": "fp8"}),
    Way("int8, cache", FLUX, {**_ON, "quantize": "int8"}),
    Way("cuDNN attention, cache", FLUX, {**_ON, "attention_backend": "_native_cudnn"}),
    Way("flash attention, cache", FLUX, {**_ON, "attention_backend": "_native_flash"}),
    Way("offload sequential", FLUX, {**_OFF, "offload": "sequential"}),
    Way("guidance on two", WAN, {**_ON, "cfg_parallel": 2}, 60, gpus=2),
    Way("weights on two", FLUX, {**_OFF, "fsdp": 2}, 60, gpus=2),
    Way("tokens on two", FLUX, {**_ON, "context_parallel": 2}, 60, gpus=2),
)


def prepare_folder(model_id: str, folder: Path, blocks: Blocks) -> Path:
    """Builds a model; to be called in a process of its own, which may use the GPU."""
    from pipeline.memory import find_device
    from pipeline.miniature import build as build_miniature

    spec = Catalogue.load()[model_id]
    if blocks is None:
        return build_miniature(spec, folder)
    return build(spec, folder, blocks, str(find_device()))


def spec_for(model_id: str, blocks: Blocks) -> ModelSpec:
    """The spec of what `prepare_folder` builds."""
    from pipeline.miniature import spec_of

    spec = Catalogue.load()[model_id]
    return spec_of(spec) if blocks is None else spec_of_full_width(spec, blocks)


def measure(way: Way, folder: Path, blocks: Blocks, requests: int) -> Measured:
    """Measures one way; to be called in a process of its own."""
    from pipeline.engine import Engine
    from pipeline.leader import LeadingEngine
    from pipeline.memory import find_hardware
    from pipeline.order import CompiledFirst, time_requests

    spec = spec_for(way.model, blocks)
    # Requests may compile, or the rule against it would hide what the faulty order costs.
    policy = resolve(spec, flags={"new_shape": "compile", **way.flags}, env={}, hardware=find_hardware())
    alone = CompiledFirst if way.faulty else Engine
    kind: Any = alone if Degrees.from_policy(policy).world == 1 else LeadingEngine
    engine = kind(spec, policy, source=str(folder))
    plan = long_plan(spec, num_inference_steps=STEPS)
    timed = time_requests(engine, lambda: plan, requests)
    renderings = [engine.render(plan) for _ in range(2)]
    engine.close()
    return Measured(
        name=way.name,
        model=way.model,
        ready_s=round(sum(step.seconds or 0 for step in timed.preparation), 2),
        first_s=round(timed.first.denoise_s, 4),
        steady_s=round(timed.steady_denoise_s, 4),
        ratio=round(timed.first.denoise_s / timed.steady_denoise_s, 3),
        compiles=timed.compiles_warmup,
        compiles_after=sum(request.compiles for request in (timed.first, *timed.later)),
        cached=int(str(renderings[0].acceleration["cached_steps"])),
        steps=plan.num_inference_steps,
        memory_mb=peak_memory_mb(),
        repeats=bytes_of(renderings[0]) == bytes_of(renderings[1]),
        parts={step.name: step.seconds or 0 for step in timed.preparation},
    )


def bytes_of(rendering: "Rendering") -> bytes:
    """The pixels of its first picture, or of all frames."""
    picture = rendering.pictures[0]
    content: bytes = (picture.frames if picture.frames is not None else picture.image).tobytes()  # type: ignore[union-attr]
    return content


def peak_memory_mb() -> int:
    """Most device memory that this process held at a time; without a GPU its resident memory."""
    import torch

    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 1e6)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
