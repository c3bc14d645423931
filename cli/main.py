"""The `renderq` command: its subcommands in groups, and what an error looks like.

Nothing heavy is imported before a subcommand needs it, so that ``renderq --help`` answers at once.
"""

import gc
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import (
    batch,
    bench,
    catalogue,
    demo,
    doctor,
    evidence,
    explain,
    flower,
    health,
    jobs,
    models,
    processes,
    provenance,
    schedule,
    submit,
    up,
    workers,
)
from cli.errors import describe_unexpected, translate
from cli.exits import MEANINGS, CliError, ExitCode
from cli.flags import ACCEPT_UNKNOWN
from cli.policyhelp import PolicyCommand
from cli.terminal import close_output, prepare_streams, say, writing

DEBUG = "RENDERQ_DEBUG"
HERE, CLIENT, SERVERS, TOOLS = (
    "Start here",
    "Jobs (RENDERQ_URL, default http://127.0.0.1:8700)",
    "Processes of a deployment",
    "Tools",
)
EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in MEANINGS.items()) + "."


class Commands(TyperGroup):
    """Shows errors as words and ends with their exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own context type is private
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            shown = translate(error) or describe_unexpected(error)
            say(f"renderq: {shown.message}")
            raise typer.Exit(shown.code) from error


app = typer.Typer(
    name="renderq",
    cls=Commands,
    help="Job queue for diffusion rendering. Workers are warm before they take a job, and no job is lost.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(asked: bool) -> None:
    """Print the installed version and end."""
    if asked:
        from importlib.metadata import version

        print(f"renderq {version('renderq')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Parse what stands before the subcommand."""


app.command(rich_help_panel=HERE)(demo.demo)
app.command(cls=PolicyCommand, rich_help_panel=HERE, context_settings=ACCEPT_UNKNOWN)(up.up)
app.command(rich_help_panel=HERE)(doctor.doctor)

app.command(rich_help_panel=CLIENT)(submit.submit)
app.command(rich_help_panel=CLIENT)(jobs.get)
app.command("list", rich_help_panel=CLIENT)(jobs.list_jobs)
app.command(rich_help_panel=CLIENT)(jobs.cancel)
app.command(rich_help_panel=CLIENT)(jobs.requeue)
app.command(rich_help_panel=CLIENT)(jobs.attempts)
app.command("models", rich_help_panel=CLIENT)(models.models)
app.command("workers", rich_help_panel=CLIENT)(workers.workers)
app.add_typer(batch.app, name="batch", rich_help_panel=CLIENT)
app.add_typer(schedule.app, name="schedule", rich_help_panel=CLIENT)

app.command(rich_help_panel=SERVERS)(processes.api)
app.command(cls=PolicyCommand, rich_help_panel=SERVERS, context_settings=ACCEPT_UNKNOWN)(processes.worker)
app.command(rich_help_panel=SERVERS)(processes.upkeep)
app.command(rich_help_panel=SERVERS)(flower.flower)
app.add_typer(processes.database, name="db", rich_help_panel=SERVERS)
app.add_typer(health.app, name="health", rich_help_panel=SERVERS)

explain.app.command("evidence")(evidence.show_evidence)
explain.app.command("catalogue")(catalogue.show_file)
app.add_typer(explain.app, name="policy", rich_help_panel=TOOLS)
app.add_typer(bench.app, name="bench", rich_help_panel=TOOLS)
app.command("inspect", rich_help_panel=TOOLS)(provenance.inspect)


def main() -> None:
    """Entry point of the ``renderq`` script."""
    # A start makes objects that stay; looking for garbage after each 700 of them took a seventh of its time.
    gc.set_threshold(10_000)
    prepare_streams()
    sys.exit(close_output(_run()))


def _run() -> int:
    try:
        with writing():  # help and version are written before a subcommand runs
            app(prog_name="renderq")
    except CliError as error:
        say(f"renderq: {error.message}")
        return error.code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.OK
    return ExitCode.OK


if __name__ == "__main__":
    main()
