"""`renderq bench`: measured evidence for the way workers are prepared."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from cli.benchcache import bench_cache
from cli.benchmodel import bench_model
from cli.exits import CliError, ExitCode
from cli.leash import run_held
from cli.places import places
from cli.terminal import print_json, print_table, say

OURS, REVERSED = "mount>compile>warmup", "compile>warmup>mount"
PUBLISHED_PERCENT = 43.77
PUBLISHED_FOR = "SGLang PR 25328, H200, Qwen-Image-2512"
FIGURES = (
    *("first_denoise_s", "steady_denoise_s", "first_over_steady"),
    *("compiles_warmup", "compiles_first_request"),
)

app = typer.Typer(help="Measure.", no_args_is_help=True)
app.command("model")(bench_model)
app.command("cache")(bench_cache)


@app.callback()
def group() -> None:
    """Measure."""


@app.command("first-request")
def first_request(
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="Model to measure.")] = "tiny",
    compile_scope: Annotated[
        Literal["whole", "regional"], typer.Option(help="Compile the whole transformer or its blocks.")
    ] = "whole",
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Compare the first request after "ready" when the cache is mounted before compiling, and after.

    Each order runs in a fresh process with compile on. Takes some minutes on a CPU.
    """
    from cli.explain import load_catalogue

    load_catalogue().get_model(model)
    orders = {order: measure(model, order, compile_scope) for order in (REVERSED, OURS)}
    report = {
        "model": model,
        "compile_scope": compile_scope,
        "orders": {order: orders[order] for order in (OURS, REVERSED)},
        "first_request_reduction_percent": reduction_percent(orders),
    }
    if as_json:
        print_json(report)
    else:
        show(report)


def measure(model: str, order: str, compile_scope: str) -> dict[str, Any]:
    """One order in a fresh process, so that nothing compiled is left from the other."""
    say(f"measuring {order} ...")
    command = (
        *(sys.executable, "-P", "-m", "pipeline.order"),
        *("--model", model, "--order", order, "--compile-scope", compile_scope, *places(model)),
    )
    done = run_held([*command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise CliError(f"the order {order} could not be measured: {' '.join(reason)}", ExitCode.FAILED)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def reduction_percent(orders: Mapping[str, Mapping[str, float]]) -> float:
    """How much shorter the first request is in our order than in the reversed one."""
    ours, reverse = (orders[order]["first_denoise_s"] for order in (OURS, REVERSED))
    return round(100 * (1 - ours / reverse), 2)


def show(report: Mapping[str, Any]) -> None:
    """The report as a table, beside the published figure."""
    rows = [(order, *(figures[name] for name in FIGURES)) for order, figures in report["orders"].items()]
    print_table(("order", *FIGURES), rows)
    print(f"first request {report['first_request_reduction_percent']} % shorter in the order {OURS}")
    print(f"published for the same change of order: {PUBLISHED_PERCENT} % ({PUBLISHED_FOR})")
