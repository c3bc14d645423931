"""Runs the ways of a model in fresh processes, in turn, and makes figures of what they report."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.adherence import find_captions, judge_pictures
from cli.exits import CliError, ExitCode
from cli.leash import run_held
from cli.places import places
from cli.terminal import say

if TYPE_CHECKING:
    from pipeline.distance import Pixels
    from policy.model_spec import ModelSpec
    from policy.variants import Variant

MEDIANS = ("ready_s", "first_s", "steady_s")
MOST = ("compiles_warmup", "compiles_requests", "memory_mb")
SHARED = ("device", "device_name", "width", "height", "steps")
VERSIONS = ("python", "torch", "diffusers", "cache-dit")

Process = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it.

    Attributes:
        facts: Of the whole measurement: checkpoint, device, versions, what was asked.
        figures: One for each way, as `policy.evidence.Figures` takes them.
        failed: Ways that could not be run, with the reason.
        processes: Every report, by the name of the way, in the order of the rounds.
    """

    facts: dict[str, Any]
    figures: list[dict[str, Any]]
    failed: list[str]
    processes: dict[str, list[Process]]


class Failed(Exception):
    """A process could not measure its way."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class Bench:
    """One measurement of one model.

    Args:
        spec: The model.
        scratch: A folder for pictures.
        requests: Requests after the first, in each process.
        prompts: To use in turn; None: captions that can be judged where there are some, else some of ours.
    """

    def __init__(
        self, spec: "ModelSpec", scratch: Path, requests: int, prompts: Sequence[str] | None = None
    ) -> None:
        self.spec = spec
        self.scratch = scratch
        self.requests = requests
        self.captions = None if prompts else find_captions(spec, requests + 1)
        self.prompts = prompts or self.captions
        self.load = 0.0

    def run(self, variants: Sequence["Variant"], rounds: int) -> Measured:
        """Measure each way once in every round; one that fails is left out from then on.

        Raises:
            CliError: The first way failed, with which the others are compared.
        """
        processes: dict[str, list[Process]] = {variant.name: [] for variant in variants}
        failed: dict[str, str] = {}
        for number in range(1, rounds + 1):
            for variant in variants:
                if variant.name in failed:
                    continue
                say(f"round {number} of {rounds}: {variant.name} ...")
                try:
                    processes[variant.name].append(self._measure(variant, number))
                except Failed as failure:
                    self._give_up(variant, variants[0], failure)
                    failed[variant.name] = str(failure)
        whole = [variant for variant in variants if variant.name not in failed]
        reports = {variant.name: processes[variant.name] for variant in whole}
        return Measured(
            self._facts(reports[variants[0].name], rounds),
            [self._figures(variant, variants[0], reports[variant.name]) for variant in whole],
            [f"{name}: {reason}" for name, reason in failed.items()],
            reports,
        )

    def _measure(self, variant: "Variant", number: int) -> Process:
        folder = self._pictures(variant, number)
        folder.mkdir(parents=True)
        done = run_held(
            [*self._command(variant, folder), *(["--checkpoint"] if number == 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.load = max(self.load, os.getloadavg()[0])
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Failed(" ".join(reason) or f"ended with {done.returncode}", done.returncode)
        report: Process = json.loads(done.stdout.strip().splitlines()[-1])
        say("  " + ", ".join(f"{name.removesuffix('_s')} {report[name]:.3f} s" for name in MEDIANS))
        return report

    def _command(self, variant: "Variant", folder: Path) -> list[str]:
        words = ["--model", self.spec.id, "--flags", json.dumps(variant.flags())]
        words += ["--requests", str(self.requests), "--pictures", str(folder), *places(self.spec.id)]
        if self.prompts:
            file = self.scratch / "prompts.txt"
            file.write_text("\n".join(self.prompts), encoding="utf-8")
            words += ["--prompts", str(file)]
        return [sys.executable, "-P", "-m", "pipeline.variant", *words]

    def _give_up(self, variant: "Variant", plain: "Variant", failure: Failed) -> None:
        say(f"  {variant.name} could not be measured: {failure}")
        if variant == plain:
            known = failure.code in (ExitCode.USAGE, ExitCode.LOAD_FAILED)
            code = ExitCode(failure.code) if known else ExitCode.FAILED
            raise CliError(f"{self.spec.id} could not be measured: {failure}", code)

    def _pictures(self, variant: "Variant", number: int) -> Path:
        return self.scratch / variant.name.replace("/", "-") / str(number)

    def _facts(self, reports: Sequence[Process], rounds: int) -> dict[str, Any]:
        first = reports[0]
        return {
            "model": self.spec.id,
            "revision": first["revision"],
            "weights": first["weights"],
            **{name: first[name] for name in SHARED},
            "versions": {name: first["versions"][name] for name in VERSIONS},
            "rounds": rounds,
            "requests": self.requests,
            "load": round(self.load, 1),
        }

    def _figures(self, variant: "Variant", plain: "Variant", reports: Sequence[Process]) -> dict[str, Any]:
        from pipeline.distance import measure_distance

        pictures = self._read_pictures(variant)
        distance = measure_distance(pictures, self._read_pictures(plain))
        return {
            "scope": variant.scope,
            "cache": variant.cache,
            **{name: round(statistics.median(_each(reports, name)), 4) for name in MEDIANS},
            **{name: max(_each(reports, name)) for name in MOST},
            "psnr_db": distance.all_db,
            "psnr_worst_db": distance.worst_db,
            "adherence": judge_pictures(self.captions, pictures) if self.captions else None,
        }

    def _read_pictures(self, variant: "Variant") -> list["Pixels"]:
        """Those of the first round: the same seeds give the same pictures in every other one."""
        import numpy as np

        folder = self._pictures(variant, 1)
        return [np.load(folder / f"{number}.npy") for number in range(self.requests + 1)]


def _each(reports: Sequence[Process], name: str) -> Iterator[Any]:
    return (report[name] for report in reports)
