"""How often the tiny model draws what a caption says, through the whole system.

    python benchmarks/adherence.py --captions 128 [--cache default|off] [--at-least 0.9] [--json]

The captions are held out: the training never drew one of their scenes. Each is sent over HTTP as a job with
its own seed, the picture is downloaded, and `training.checker` judges it by its pixels; a picture counts
only if everything that the caption says is right. Beside the verdict stands the share of denoising steps
that came from the cache. Same captions and seeds, same pictures: two runs differ only by what was changed.
"""

import argparse
import io
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from PIL import Image

from benchmarks.running import run_up
from cli.client import Client
from training.captions import read
from training.checker import check
from training.examples import held_out_landscapes

FIRST_SEED = 1000
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One caption: what was wrong in its picture, and how many of its steps were reused."""

    caption: str
    seed: int
    wrong: tuple[str, ...]
    said: int
    steps: int
    cached_steps: int


def main() -> int:
    arguments = parse()
    captions = [caption for caption, _ in held_out_landscapes(arguments.captions, arguments.set)]
    if arguments.url:
        report = measure(arguments.url, captions, arguments)
    else:
        with run_up() as running:
            report = measure(running.url, captions, arguments)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 0 if report["verdict"] == "pass" else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--captions", type=int, default=128)
    parser.add_argument("--cache", default="default", help="the job's cache field: default, off or a preset")
    parser.add_argument("--set", type=int, default=1, help="number of the set of captions")
    parser.add_argument(
        "--at-least", type=float, default=0.9, help="share that must be right for the verdict"
    )
    parser.add_argument("--url", help="a running server instead of one of its own")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(url: str, captions: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Send every caption, wait for all pictures, and judge them."""
    client = Client(url, patience_s=PATIENCE_S)
    began = time.monotonic()
    jobs = [
        client.submit(order(caption, number, arguments.cache), f"{began}-{number}")
        for number, caption in enumerate(captions)
    ]
    outcomes = [
        judge(client, caption, number, job["id"])
        for number, (caption, job) in enumerate(zip(captions, jobs, strict=True))
    ]
    return summarise(outcomes, arguments, time.monotonic() - began)


def order(caption: str, number: int, cache: str) -> dict[str, object]:
    return {"model": "tiny", "prompt": caption, "seed": FIRST_SEED + number, "cache": cache}


def judge(client: Client, caption: str, number: int, job_id: str) -> Outcome:
    """Wait for one job and look at its picture."""
    *_, job = client.follow(job_id)
    if job["status"] != "completed":
        sys.exit(f"job {job_id} {job['status']}: {job['error']}")
    checked = check(read(caption), Image.open(io.BytesIO(client.content(job_id, 0))))
    acceleration = job["acceleration"]
    return Outcome(
        caption,
        FIRST_SEED + number,
        tuple(what for what, is_right in checked.items() if not is_right),
        len(checked),
        acceleration["steps"],
        acceleration["cached_steps"],
    )


def summarise(outcomes: list[Outcome], arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Shares of pictures and of single things that are right, and of steps that were reused."""
    right = sum(not outcome.wrong for outcome in outcomes)
    said = sum(outcome.said for outcome in outcomes)
    wrong = Counter(what for outcome in outcomes for what in outcome.wrong)
    steps = sum(outcome.steps for outcome in outcomes)
    share = right / len(outcomes)
    return {
        "captions": len(outcomes),
        "cache": arguments.cache,
        "right": right,
        "right_share": round(share, 4),
        "things_right_share": round(1 - wrong.total() / said, 4),
        "cached_step_share": round(sum(outcome.cached_steps for outcome in outcomes) / steps, 4),
        "seconds": round(seconds, 1),
        "at_least": arguments.at_least,
        "verdict": "pass" if share >= arguments.at_least else "fail",
        "wrong_things": dict(wrong.most_common()),
        "wrong_captions": {outcome.caption: list(outcome.wrong) for outcome in outcomes if outcome.wrong},
    }


def show(report: dict[str, Any]) -> None:
    print(f"{report['right']} of {report['captions']} pictures right ({report['right_share']:.1%}), ", end="")
    print(f"wanted {report['at_least']:.0%}: {report['verdict']}")
    print(
        f"single things right: {report['things_right_share']:.1%}; wrong: {report['wrong_things'] or 'none'}"
    )
    print(
        f"steps from the cache ({report['cache']}): {report['cached_step_share']:.1%}; {report['seconds']} s"
    )


if __name__ == "__main__":
    sys.exit(main())
