"""What a GPU makes of the engine, in under five minutes: figures of every way to run it, and checks.

    python -m benchmarks.gpu [--dry-run] [--seconds 280] [--only TEXT ...] [--out FOLDER]

Needs no network: the models have random weights, FLUX-like and Wan-like, in the shapes that the real ones
compute in (`benchmarks.full_width`), with few blocks. Each way is a fresh process with an empty compiler
cache: preparation, the first request after it, the median of the next ones, compilations, peak memory, and
whether two renders of a plan were equal. Then: a picture of NaN, a full device, and the worker's two
processes under Celery with a real Valkey. What no time is left for is named and left out; `--only` runs it
alone. Ways that take two GPUs are measured where there are two.

`--dry-run` does the same on the CPU with miniatures, and may take ten times as long: the figures mean
nothing, but everything that needs no GPU has run. Writes `gpu.json` and `gpu.md` into the folder. The exit
status is 1 where a check or a way failed, or a request compiled.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks import Check, check_engine, check_worker
from benchmarks.gpu_ways import FLUX, WAN, WAYS, Blocks, Measured, Way, measure, prepare_folder
from benchmarks.spare_process import CallFailed, SpareProcess

BLOCKS = {FLUX: 6, WAN: 6}
REQUESTS = 3
BUILD_S, CHECK_S, WORKER_S = 60, 40, 60
SECONDS = 280.0
#: So many times longer anything may take on a CPU.
DRY = 10
_CHECKS = "checks"
#: How the reasons begin of ways that this machine or the time that is left does not allow.
_LEFT_OUT = ("InvalidOptions", "needs", "not begun")


class Run:
    """One run: its processes, folders and the time that is left."""

    def __init__(self, folder: Path, processes: SpareProcess, seconds: float, *, dry: bool) -> None:
        """Starts the clock."""
        self._folder, self._processes, self._dry = folder, processes, dry
        self._patience = DRY if dry else 1
        self._ends = time.monotonic() + seconds * self._patience
        self._built: dict[str, Path] = {}

    def ways(self, ways: Sequence[Way], gpus: int) -> Iterator[Measured]:
        """Measures each way, or says why not."""
        for way in ways:
            if way.gpus > gpus and not self._dry:
                yield Measured(way.name, way.model, error=f"needs {way.gpus} GPUs, and there is {gpus}")
                continue
            try:
                folder = self._build(way.model)
                call = functools.partial(measure, way, folder, self._blocks(way.model), REQUESTS)
                yield self._call(call, way.seconds)
            except CallFailed as failure:
                yield Measured(way.name, way.model, error=str(failure))

    def checks(self) -> Iterator[Check]:
        """Runs each check, or says why not."""
        try:
            folder = self._build(FLUX)
            yield from self._call(functools.partial(check_engine, folder, self._blocks(FLUX)), CHECK_S)
            yield from self._call(functools.partial(_all_of_worker), WORKER_S)
        except CallFailed as failure:
            yield Check(_CHECKS, None if "left" in str(failure) else False, str(failure))

    def _blocks(self, model_id: str) -> Blocks:
        return None if self._dry else BLOCKS[model_id]

    def _build(self, model_id: str) -> Path:
        if model_id not in self._built:
            folder = self._folder / model_id
            self._call(functools.partial(prepare_folder, model_id, folder, self._blocks(model_id)), BUILD_S)
            self._built[model_id] = folder
        return self._built[model_id]

    def _call(self, call: Callable[[], Any], seconds: float) -> Any:  # noqa: ANN401 - the call's answer
        left, seconds = self._ends - time.monotonic(), seconds * self._patience
        if left < seconds:
            raise CallFailed(f"not begun: {max(left, 0):.0f} s are left, and it may take {seconds:.0f} s")
        return self._processes.run(call, seconds)


def _all_of_worker() -> list[Check]:
    return list(check_worker())


def main() -> int:
    """Runs from the command line."""
    given = read_arguments()
    began = time.monotonic()
    chosen = [way for way in WAYS if _is_chosen(f"{way.model} {way.name}", given.only)]
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder, SpareProcess() as processes:
        machine = processes.run(find_machine, DRY * BUILD_S)
        if machine["gpus"] == 0 and not given.dry_run:
            sys.stderr.write("benchmarks/gpu.py needs an NVIDIA GPU; torch sees none here. See --dry-run\n")
            return 1
        run = Run(Path(folder), processes, given.seconds, dry=given.dry_run)
        checks = list(_shown(run.checks())) if _is_chosen(_CHECKS, given.only) else []
        rows = list(_shown(run.ways(chosen, machine["gpus"])))
    report = {
        **machine,
        "command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        "seconds": round(time.monotonic() - began, 1),
        "ways": [asdict(row) for row in rows],
        "checks": [asdict(check) for check in checks],
    }
    write(report, rows, checks, given.out)
    wrong = any(map(_is_wrong, rows)) or any(check.ok is False for check in checks)
    return 1 if wrong else 0


def read_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with miniatures")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it (default: 280)")
    parser.add_argument("--only", action="append", help=f"ways with this in their name, or {_CHECKS!r}")
    parser.add_argument("--out", type=Path, default=Path(), help="where gpu.json and gpu.md are written")
    return parser.parse_args()


def find_machine() -> dict[str, Any]:
    """The GPUs of this machine and the versions that matter; to be called in a process of its own."""
    import torch

    from pipeline.memory import find_hardware
    from pipeline.versions import collect

    hardware = find_hardware()
    gpus = torch.cuda.device_count()
    return {"device": hardware.name or hardware.device, "gpus": gpus, "versions": collect()}


def write(report: dict[str, Any], rows: Sequence[Measured], checks: Sequence[Check], folder: Path) -> None:
    """Writes the JSON document and the Markdown page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text("\n".join(page(report, rows, checks)) + "\n", encoding="utf-8")


def page(report: dict[str, Any], rows: Sequence[Measured], checks: Sequence[Check]) -> Iterator[str]:
    """The report as Markdown."""
    yield f"`{report['command']}` on {report['device']}, {report['seconds']:.0f} s\n"
    yield f"| {' | '.join(_HEAD)} |"
    yield "| --- " * len(_HEAD) + "|"
    for row in rows:
        yield f"| {row.model} | {row.name} | {_figures(row)} |"
    yield "\n| check | holds | seen |\n| --- | --- | --- |"
    for check in checks:
        yield f"| {check.name} | {_VERDICTS[check.ok]} | {check.seen} |"


_HEAD = (
    *("model", "way", "ready s", "first s", "steady s", "first / steady", "compiles + after"),
    *("cached", "MB", "repeats"),
)
_VERDICTS = {True: "yes", False: "NO", None: "not tried"}


def _figures(row: Measured) -> str:
    if row.error:
        return f"{row.error} |" + " |" * 6
    return " | ".join(
        (
            *(f"{row.ready_s:.1f}", f"{row.first_s:.3f}", f"{row.steady_s:.3f}", f"{row.ratio:.2f}"),
            f"{row.compiles} + {row.compiles_after}",
            f"{row.cached} of {row.steps}",
            str(row.memory_mb),
            "yes" if row.repeats else "NO",
        )
    )


def _shown(rows: Iterator[Any]) -> Iterator[Any]:
    """Tells each row on standard error as it comes: time may run out."""
    for row in rows:
        sys.stderr.write(f"{row}\n")
        yield row


def _is_wrong(row: Measured) -> bool:
    """A request that compiled in the right order, or a way that failed and was not refused or left out."""
    if row.error is not None:
        return not row.error.startswith(_LEFT_OUT)
    return row.compiles_after > 0 and row.name not in {way.name for way in WAYS if way.faulty}


def _is_chosen(name: str, only: Sequence[str] | None) -> bool:
    return only is None or any(text in name for text in only)


if __name__ == "__main__":
    sys.exit(main())
