"""Measures what a worker saves that begins with what the compiler made for another one.

    python -m benchmarks.cold_start [--model ID] [--pairs N] [--json]

Each start is a process of its own that loads, mounts, compiles with inductor and warms up. The first of a
pair begins with nothing; what it made is packed as a worker packs it, and unpacked for the second. The ratio
is that of compile and warm-up together, wall time and CPU time of the process and the compilers it ran;
both sha256 of a picture must be equal. The exit status is 1 if the ratio of wall times is above 0.35, or the
pictures differ. ``--model tiny`` is the bundled model, any other its miniature.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from core import archive
from policy.catalogue import Catalogue
from policy.modes import Hardware
from policy.plan import make_plan
from policy.request import RenderRequest
from policy.resolve import resolve

CPU = Hardware("cpu", None, 1, 4.0, 4.0, supports_bf16=True)
MOST_RATIO = 0.35
MOST_BYTES = 10**9
FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def start(model_id: str, folder: Path) -> dict[str, Any]:
    """One start, in this process: what a worker's child does before it is ready.

    Args:
        model_id: Of the catalogue.
        folder: Where the miniature is built, if it is one.
    """
    from torch._dynamo.utils import counters

    from pipeline.engine import Engine
    from pipeline.miniature import build, spec_of

    spec, source = Catalogue.load()[model_id], None
    if model_id != "tiny":
        source = str(build(spec, folder))
        spec = spec_of(spec)
    policy = resolve(spec, flags={"compile": True}, env={}, hardware=CPU)
    engine = Engine(spec, policy, source=source, device="cpu")
    before = _cpu_s()
    steps = {step.name: step for step in engine.prepare()}
    cpu_s = _cpu_s() - before
    request = RenderRequest(model=spec.id, prompt="a house", num_inference_steps=8, seed=7)
    rendering = engine.render(make_plan(request, spec, lambda: 7))
    picture = rendering.pictures[0]
    pixels = picture.image.tobytes() if picture.image is not None else b""
    return {
        "compile_s": steps["compile"].seconds,
        "warm_up_s": steps["warmup"].seconds,
        "cpu_s": round(cpu_s, 2),
        "compiles": steps["warmup"].detail["compiles"],
        "graphs_found": counters["inductor"]["fxgraph_cache_hit"],
        "graphs_made": counters["inductor"]["fxgraph_cache_miss"],
        "sha256": hashlib.sha256(pixels).hexdigest(),
        "request_compiles": rendering.acceleration["compiles"],
    }


def _cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it ran and that have ended."""
    ran = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ran.ru_utime + ran.ru_stime


def measure(model_id: str) -> dict[str, Any]:
    """One pair of starts."""
    with tempfile.TemporaryDirectory(prefix="renderq-") as name:
        folder = Path(name)
        first = _in_process(model_id, folder / "first", folder / "model-1")
        started = time.perf_counter()
        data = archive.pack(folder / "first")
        packing_s = time.perf_counter() - started
        (folder / "second").mkdir()
        started = time.perf_counter()
        archive.unpack(data, folder / "second", most_bytes=MOST_BYTES)
        unpacking_s = time.perf_counter() - started
        second = _in_process(model_id, folder / "second", folder / "model-2")
    return {
        "model": model_id,
        "first": first,
        "second": second,
        "wall_ratio": round((_wall(second) + unpacking_s) / _wall(first), 3),
        "cpu_ratio": round(second["cpu_s"] / first["cpu_s"], 3),
        "archive_bytes": len(data),
        "packing_s": round(packing_s, 3),
        "unpacking_s": round(unpacking_s, 3),
        "same_picture": first["sha256"] == second["sha256"],
    }


def _wall(told: dict[str, Any]) -> float:
    return float(told["compile_s"]) + float(told["warm_up_s"])


def _in_process(model_id: str, cache: Path, folder: Path) -> dict[str, Any]:
    environment = {**os.environ, FOLDER_VARIABLE: str(cache)}
    command = [sys.executable, "-m", "benchmarks.cold_start", "--start", str(folder), "--model", model_id]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return told


def is_right(pair: dict[str, Any]) -> bool:
    """Whether the second start was as short as promised, and drew the same picture."""
    return bool(
        pair["wall_ratio"] <= MOST_RATIO and pair["same_picture"] and pair["second"]["graphs_made"] == 0
    )


def main() -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--model", default="tiny", choices=tuple(Catalogue.load()))
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(start(options.model, options.start)))
        return 0
    pairs = [measure(options.model) for _ in range(options.pairs)]
    if options.json:
        print(json.dumps([{**pair, "right": is_right(pair)} for pair in pairs], indent=2))
    for pair in [] if options.json else pairs:
        first, second = pair["first"], pair["second"]
        print(
            f"{pair['model']}: compile and warm-up {_wall(first):.1f} s, then {_wall(second):.1f} s "
            f"({pair['wall_ratio']:.3f}); CPU {first['cpu_s']:.1f} s, then {second['cpu_s']:.1f} s "
            f"({pair['cpu_ratio']:.3f}); archive {pair['archive_bytes'] / 1e6:.2f} MB; "
            f"{'the same' if pair['same_picture'] else 'ANOTHER'} picture"
        )
    return 0 if all(map(is_right, pairs)) else 1


if __name__ == "__main__":
    sys.exit(main())
