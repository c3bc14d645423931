"""`renderq up`: everything on this machine, until Ctrl-C."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.exits import CliError
from cli.flags import Flags, as_arguments, with_policy_flags
from cli.flower import PORT as FLOWER_PORT
from cli.flower import require_flower
from cli.terminal import print_json_line, say
from core.addresses import is_loopback

if TYPE_CHECKING:
    from cli.stack import Stack, StackPlan
    from cli.supervisor import Signals

NAME_WIDTH = 9
LOOPBACK = "127.0.0.1"
EXAMPLE = "a boat with a yellow sail on the sea with hills, the sun on the left"


@with_policy_flags
def up(
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for database, pictures, queue and logs. Default: RENDERQ_DATA_DIR, else yours."
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Model that the worker serves.")] = "tiny",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8700,
    host: Annotated[str, typer.Option(help="Address of the API.")] = LOOPBACK,
    trust_network: Annotated[
        bool,
        typer.Option(
            "--trust-network", help="Allow other addresses: a proxy that checks callers stands in front."
        ),
    ] = False,
    flower: Annotated[
        bool, typer.Option("--flower", help="Run Flower, the monitor for workers and queues, as well.")
    ] = False,
    flower_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of Flower, if not 5555; 0 takes a free one. Starts it, too."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not show the processes' own lines.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON line when ready, nothing else.")
    ] = False,
    flags: Flags,
) -> None:
    """Run Valkey, database, API, upkeep and one worker on this machine until Ctrl-C.

    What dies is started again. RENDERQ_DATABASE_URL, RENDERQ_REDIS_URL and RENDERQ_ARTIFACTS_URL replace the
    embedded part of the same name. Logs are in the folder `logs` of the data folder.
    """
    from cli.explain import load_catalogue, resolve_policy
    from cli.stack import StackPlan
    from core.settings import get_settings

    resolve_policy(load_catalogue(), model, flags)
    require_loopback(host, trusted=trust_network)
    if flower and flower_port is None:
        flower_port = FLOWER_PORT
    if flower_port is not None:
        require_flower()
    plan = StackPlan(
        data=data or get_settings().data_dir,
        model=model,
        host=host,
        port=port,
        trust_network=trust_network,
        flags=as_arguments(flags),
        flower_port=flower_port,
    )
    run(plan, quiet=quiet or as_json, as_json=as_json)


def require_loopback(host: str, *, trusted: bool) -> None:
    """Refuse an address that the API will refuse, before anything starts."""
    if not (trusted or is_loopback(host)):
        raise CliError(
            f"--host {host}: this version has no keys, so everyone who reaches the port could render. "
            "Put an authenticating proxy in front and pass --trust-network, or leave --host out"
        )


def run(plan: "StackPlan", *, quiet: bool, as_json: bool) -> None:
    """Run the stack until a signal; return after everything has ended."""
    from cli.stack import run_stack
    from cli.supervisor import Signals, StopRequested

    with Signals() as signals:
        show_line = ignore if quiet else partial(show_concise, signals)
        try:
            show("renderq", f"starting in {plan.data}")
            with run_stack(plan, show, show_line, signals) as stack:
                try:
                    for state in stack.preparation():
                        show("worker", state)
                    announce(stack, as_json=as_json)
                    stack.watch()
                except StopRequested:
                    say("stopping; Ctrl-C again to hurry")
        except StopRequested:
            pass  # while starting
    say("stopped")


def announce(stack: "Stack", *, as_json: bool) -> None:
    """Say that it is ready and what to do now."""
    if as_json:
        print_json_line(stack.describe())
    say(f"\nrenderq is ready: {stack.url}, model {stack.plan.model}")
    prefix = "" if stack.url.endswith(":8700") else f"RENDERQ_URL={stack.url} "
    say(f'  {prefix}renderq submit "{EXAMPLE}"')
    if stack.flower_url:
        say(f"  Flower: {stack.flower_url}")
    say(f"  data and logs: {stack.folder.root}    stop: Ctrl-C\n")


def show(name: str, line: str) -> None:
    say(f"{name:<{NAME_WIDTH}}| {line}")


def show_concise(signals: "Signals", name: str, line: str) -> None:
    from cli.loglines import concise

    words = concise(name, line, stopping=signals.count > 0)
    if words:
        show(name, words)


def ignore(_name: str, _line: str) -> None:
    """Leave the line to the log file."""
