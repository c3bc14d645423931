"""`renderq bench model`: one model in each way of running it, in fresh processes, beside each other."""

import datetime as dt
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.evidencefile import choose_folder, write_row
from cli.reading import Limits, Reader
from cli.terminal import print_json, print_table, say
from cli.variants import Bench, Measured

if TYPE_CHECKING:
    from policy.evidence import Evidence
    from policy.model_spec import ModelSpec

COLUMNS = (
    *("way", "ready s", "first s", "steady s", "first/steady", "compiles"),
    *("memory MB", "PSNR dB", "worst dB", "adherence"),
)

MOST = 1000
"""Rounds, and requests of a process."""


def bench_model(
    model: Annotated[str, typer.Argument(help="Model.")],
    *,
    matrix: Annotated[
        str, typer.Option(help="Axes, comma separated: compile, cache, scope.")
    ] = "compile,cache,scope",
    rounds: Annotated[
        str, typer.Option(metavar="N", help="Fresh processes of each way; 3 back an opt-in.")
    ] = "3",
    requests: Annotated[
        str, typer.Option(metavar="N", help="Requests after the first, in each process.")
    ] = "7",
    prompts: Annotated[
        Path | None, typer.Option(help="File with a prompt a line, used in turn. Default: some of ours.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Keep the figures as evidence.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: each process as well.")] = False,
) -> None:
    """Measure a model compiled and not, cached and not, each way in fresh processes, in turn.

    "first" is the first request after ready and "steady" the median of the next ones, text to picture. PSNR
    is the distance from the uncached eager pictures of the same seeds. Every process starts with an empty
    compiler cache. Takes minutes on a GPU and tens of minutes on a CPU.
    """
    from cli.explain import load_catalogue
    from policy.variants import parse_axes, plan_variants

    spec = load_catalogue().get_model(model)
    variants = plan_variants(spec, parse_axes(matrix))
    read = Reader()
    again, later = (
        read.number("--rounds", rounds, Limits(1, MOST, 3)),
        read.number("--requests", requests, Limits(1, MOST, 7)),
    )
    texts = read.prompts(prompts)
    read.finish()
    folder = choose_folder() if write else None
    with tempfile.TemporaryDirectory(prefix="renderq-bench-") as scratch:
        bench = Bench(spec, Path(scratch), later, texts)
        measured = bench.run(variants, again)
        row = make_row(measured, command_of(model, matrix, again, later, prompts))
    if folder is not None:
        say(f"kept in {write_row(row, folder)}")
    if as_json:
        more = {"does_not_count": why_not(row, spec), "processes": measured.processes}
        print_json({**row.model_dump(mode="json"), **more})
    else:
        show(row, why_not(row, spec))


def command_of(model: str, matrix: str, rounds: int, requests: int, prompts: Path | None) -> str:
    """What to type to repeat it."""
    words = ["renderq", "bench", "model", model, "--matrix", matrix]
    words += ["--rounds", str(rounds), "--requests", str(requests)]
    return shlex.join([*words, *(["--prompts", prompts.name] if prompts else [])])


def make_row(measured: "Measured", command: str) -> "Evidence":
    """The row that is kept."""
    from policy.evidence import Evidence

    facts: dict[str, Any] = {**measured.facts, "command": command, "date": dt.datetime.now(dt.UTC).date()}
    return Evidence.model_validate({**facts, "figures": measured.figures, "failed": measured.failed})


def why_not(row: "Evidence", spec: "ModelSpec") -> str | None:
    """Why this row would back no opt-in even today, with what it was measured with; None: it counts."""
    from policy.evidence import why_not_counted

    return why_not_counted(row, spec, row.versions, {})


def show(row: "Evidence", doubt: str | None) -> None:
    """The row as a table, whether compiling wins, and whether that may back an opt-in."""
    print_table(COLUMNS, [_cells(figures) for figures in row.figures])
    for failed in row.failed:
        print(f"not measured: {failed}")
    for pair in row.comparisons():
        verdict = "wins" if pair.wins else "does not win"
        print(
            f"compiling {verdict} ({pair.compiled.scope}, cache {pair.compiled.cache}): "
            f"first request {pair.first_percent:+.1f} %, steady state {pair.steady_percent:+.1f} %"
        )
    print(f"{row.device_name} ({row.device}); load average up to {row.load}; rounds: {row.rounds}")
    print("this row may back an opt-in to compile" if doubt is None else f"this row backs no opt-in: {doubt}")


def _cells(figures: Any) -> tuple[object, ...]:  # noqa: ANN401 - policy is not imported before it is needed
    return (
        f"{figures.scope or 'eager'}/{figures.cache}",
        f"{figures.ready_s:.1f}",
        f"{figures.first_s:.3f}",
        f"{figures.steady_s:.3f}",
        f"{figures.first_s / figures.steady_s:.2f}",
        f"{figures.compiles_warmup}+{figures.compiles_requests}",
        f"{figures.memory_mb:.0f}",
        "same" if figures.psnr_db is None else f"{figures.psnr_db:.1f}",
        "same" if figures.psnr_worst_db is None else f"{figures.psnr_worst_db:.1f}",
        None if figures.adherence is None else f"{figures.adherence:.1%}",
    )
