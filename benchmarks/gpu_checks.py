"""What `benchmarks.gpu` checks beside its figures: bad numbers, full memory, the worker's two processes."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_ways import FLUX, Blocks, bytes_of, spec_for
from benchmarks.miniatures import PRESET, long_plan
from benchmarks.procfs import PROC, children
from policy.resolve import resolve

if TYPE_CHECKING:
    from pipeline.engine import Engine
    from policy.plan import RenderPlan

PATIENCE_S = 90.0
ORDER = {"model": "tiny", "prompt": "a white house by the sea", "seed": 7}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to hold; ``ok`` is None where it cannot be tried here, and ``seen`` says why."""

    name: str
    ok: bool | None
    seen: str


def check_engine(folder: Path, blocks: Blocks) -> list[Check]:
    """Has one engine draw after weights of NaN and after a full device; in a process of its own."""
    from pipeline.engine import Engine
    from pipeline.memory import find_hardware

    spec = spec_for(FLUX, blocks)
    flags = {"cache": True, "cache_preset": PRESET, "compile": False}
    engine = Engine(spec, resolve(spec, flags=flags, env={}, hardware=find_hardware()), source=str(folder))
    engine.prepare()
    plan = long_plan(spec)
    expected = bytes_of(engine.render(plan))
    checks = [_check_not_finite(engine, plan, expected), _check_out_of_memory(engine, plan, expected)]
    engine.close()
    return checks


def _check_not_finite(engine: "Engine", plan: "RenderPlan", expected: bytes) -> Check:
    import torch

    from pipeline.errors import NotFinite

    weight: Any = engine.parts[0].transformer.proj_out.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    seen = _told(lambda: engine.render(plan), NotFinite)
    with torch.no_grad():
        weight.copy_(kept)
    same = bytes_of(engine.render(plan)) == expected
    return Check("a picture of NaN is refused", seen is not None and same, _words(seen, same=same))


def _check_out_of_memory(engine: "Engine", plan: "RenderPlan", expected: bytes) -> Check:
    import torch

    from pipeline.errors import OutOfMemory

    name = "a job that does not fit leaves the engine well"
    if not torch.cuda.is_available():
        return Check(name, None, "not tried: there is no device memory to fill")
    total = torch.cuda.mem_get_info()[1]
    handle = engine.parts[0].transformer.register_forward_pre_hook(
        lambda *_: torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    )
    seen = _told(lambda: engine.render(plan), OutOfMemory)
    handle.remove()
    same = bytes_of(engine.render(plan)) == expected
    return Check(name, seen is not None and same, _words(seen, same=same))


def _told(call: Callable[[], object], kind: type[Exception]) -> str | None:
    try:
        call()
    except kind as error:
        return str(error)
    return None


def _words(seen: str | None, *, same: bool) -> str:
    after = "the next picture is as before" if same else "THE NEXT PICTURE DIFFERS"
    return f"{seen or 'NOTHING WAS RAISED'}; {after}"


def check_worker() -> Iterator[Check]:
    """Runs the whole system with the bundled model, and looks at the worker's two processes.

    Celery forks the child, so the parent must not have touched the GPU; a killed child has a successor that
    can use it.
    """
    from benchmarks.running import run_up
    from cli.client import Client

    with run_up("--model", "tiny") as running:
        client = Client(running.url, patience_s=PATIENCE_S)
        first = _draw(client, "first")
        parent = next(pid for pid in _below(running.pid) if _is_worker(pid))
        child = children(parent)[-1]
        yield _check_libraries(parent, child)
        os.kill(child, signal.SIGKILL)
        second = _draw(client, "second")
        successor = children(parent)[-1]
        seen = f"child {child} was killed, {successor} drew"
        yield Check(
            "a killed child has a successor, and the same request gives the same picture",
            successor != child and first == second,
            seen + (" the same bytes" if first == second else " OTHER BYTES"),
        )


def _draw(client: Any, key: str) -> str:  # noqa: ANN401 - imported late
    job_id = client.submit(ORDER, key)["id"]
    *_, job = client.follow(job_id)
    if job["status"] != "completed":
        raise RuntimeError(f"job {job['status']}: {job['error']}")
    return sha256(client.content(job_id, 0)).hexdigest()


def _check_libraries(parent: int, child: int) -> Check:
    found = {pid: _libraries(pid) for pid in (parent, child)}
    seen = f"parent has loaded {found[parent] or 'neither'}, child {found[child] or 'neither'}"
    return Check("the worker's parent leaves the GPU alone", not found[parent] and bool(found[child]), seen)


def _libraries(pid: int) -> str:
    maps = (PROC / str(pid) / "maps").read_text()
    return " and ".join(name for name in ("libtorch_cpu.so", "libcuda.so") if name in maps)


def _below(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _below(child)


def _is_worker(pid: int) -> bool:
    words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return b"worker" in words
