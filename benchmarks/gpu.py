"""What a GPU makes of the engine: the same requests in every way of running them, as one table.

    python benchmarks/gpu.py [--model tiny] [--source FOLDER] [--width 64 --height 64] [--json]

Each row is one engine in this process: preparation in seconds, then the first request after it and the median
of the next ones (wall time of the denoising, after the device has caught up), peak device memory, compiles
during requests, and whether two renders of one plan were equal byte for byte. Ways that take two GPUs are
measured where there are two. Refuses to run without a GPU.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pipeline.engine import Engine
from pipeline.errors import PipelineError
from pipeline.leader import LeadingEngine
from pipeline.memory import find_hardware
from policy.catalogue import Catalogue
from policy.errors import PolicyError
from policy.model_spec import ModelSpec
from policy.parallel import Degrees
from policy.plan import make_plan
from policy.request import RenderRequest
from policy.resolve import resolve

WAYS: dict[str, dict[str, object]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, no cache": {"dtype": "bfloat16", "cache": False},
    "bfloat16, fast": {"dtype": "bfloat16", "cache_preset": "fast"},
    "compiled blocks": {"dtype": "bfloat16", "compile": True},
    "compiled blocks, no cache": {"dtype": "bfloat16", "compile": True, "cache": False},
    "compiled whole": {"dtype": "bfloat16", "compile": True, "compile_scope": "whole"},
    "offload model": {"dtype": "bfloat16", "offload": "model"},
    "offload group": {"dtype": "bfloat16", "offload": "group"},
    "offload sequential": {"dtype": "bfloat16", "offload": "sequential"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "fp8": {"dtype": "bfloat16", "quantize": "fp8"},
    "int8, compiled blocks": {"dtype": "bfloat16", "quantize": "int8", "compile": True},
    "CUDA graphs, no cache": {"dtype": "bfloat16", "capture": True, "cache": False},
    "cuDNN attention": {"dtype": "bfloat16", "attention_backend": "_native_cudnn"},
    "flash attention": {"dtype": "bfloat16", "attention_backend": "_native_flash"},
}


# Ways that take two GPUs; a model that does not allow one gets a row that says why. What shares tokens comes
# last: it changes attention for the whole process.
WAYS_OF_TWO: dict[str, dict[str, object]] = {
    "guidance on two": {"dtype": "bfloat16", "cfg_parallel": 2},
    "weights on two": {"dtype": "bfloat16", "fsdp": 2},
    "guidance and weights on two": {"dtype": "bfloat16", "cfg_parallel": 2, "fsdp": 2},
    "tokens on two": {"dtype": "bfloat16", "context_parallel": 2},
    "tokens on two, no cache": {"dtype": "bfloat16", "context_parallel": 2, "cache": False},
    "tokens on two, compiled blocks": {"dtype": "bfloat16", "context_parallel": 2, "compile": True},
    "tokens and weights on two": {"dtype": "bfloat16", "context_parallel": 2, "fsdp": 2},
}


def main() -> int:
    """Measures every way and prints the table."""
    given = read_arguments()
    if not torch.cuda.is_available():
        sys.stderr.write("benchmarks/gpu.py needs an NVIDIA GPU, and torch sees none here\n")
        return 1
    spec = Catalogue.load().get_model(given.model)
    rows = list(measure_all(spec, given))
    device = torch.cuda.get_device_name()
    if given.json:
        print(json.dumps({"device": device, "torch": torch.__version__, "model": spec.id, "rows": rows}))
    else:
        print(f"{spec.id} on {device}, torch {torch.__version__}")
        for row in rows:
            print("  ".join(f"{name}={value}" for name, value in row.items()))
    return 0


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--source", help="folder or hub id that replaces the model's own")
    parser.add_argument("--width", type=int)
    parser.add_argument("--height", type=int)
    parser.add_argument("--requests", type=int, default=5, help="requests after the first")
    parser.add_argument(
        "--only", action="append", choices=[*WAYS, *WAYS_OF_TWO], help="a way; may be repeated"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_all(spec: ModelSpec, given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measures each way; one that fails is a row that says why."""
    ways = WAYS | (WAYS_OF_TWO if torch.cuda.device_count() > 1 else {})
    for name in given.only or ways:
        try:
            yield {"way": name, **measure(spec, (WAYS | WAYS_OF_TWO)[name], given)}
        except (PolicyError, PipelineError) as error:
            yield {"way": name, "error": str(error)}


def measure(spec: ModelSpec, flags: dict[str, object], given: argparse.Namespace) -> dict[str, object]:
    """Prepares an engine, times its requests, and lets it go."""
    torch._dynamo.reset()  # noqa: SLF001 (so that no row finds another's graphs)
    torch.cuda.reset_peak_memory_stats()
    policy = resolve(spec, flags=flags, env={}, hardware=find_hardware())
    kind = Engine if Degrees.from_policy(policy).world == 1 else LeadingEngine
    engine = kind(spec, policy, source=given.source)
    steps = {step.name: step.seconds for step in engine.prepare()}
    fields: dict[str, Any] = {"width": given.width, "height": given.height}
    request = RenderRequest(model=spec.id, prompt="a house on a beach", seed=1, **fields)
    plan = make_plan(request, spec, lambda: 1)
    renderings = [engine.render(plan) for _ in range(given.requests + 1)]
    engine.close()
    times = [rendering.timings_ms["denoise"] for rendering in renderings]
    return {
        "prepare_s": steps,
        "first_denoise_ms": times[0],
        "steady_denoise_ms": round(statistics.median(times[1:]), 2),
        "cached_steps": renderings[0].acceleration["cached_steps"],
        "peak_memory_mb": round(torch.cuda.max_memory_allocated() / 1e6),
        "compiles_in_requests": sum(rendering.acceleration["compiles"] for rendering in renderings),  # type: ignore[misc]
        "repeats": len({_bytes(rendering) for rendering in renderings}) == 1,
    }


def _bytes(rendering: Any) -> bytes:  # noqa: ANN401 (an image or an array)
    picture = rendering.pictures[0]
    content: bytes = (picture.image if picture.image is not None else picture.frames).tobytes()
    return content


if __name__ == "__main__":
    sys.exit(main())
