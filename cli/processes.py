"""The long-running commands, one process each: `renderq api`, `worker`, `upkeep`; and `renderq db`."""

import os
import signal
import sys
from typing import Annotated

import typer

from cli.exits import CliError, ExitCode
from cli.flags import Flags, with_policy_flags
from cli.leash import hold_leash
from cli.programs import require_worker_packages
from cli.terminal import say

Leashed = Annotated[
    bool,
    typer.Option(
        "--leashed", hidden=True, help="End at once when standard input is closed: `renderq up` is gone."
    ),
]

database = typer.Typer(help="The database.", no_args_is_help=True)


def api(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8700,
    trust_network: Annotated[
        bool,
        typer.Option(
            "--trust-network", help="Allow other addresses: a proxy that checks callers stands in front."
        ),
    ] = False,
    leashed: Leashed = False,
) -> None:
    """Answer HTTP calls."""
    prepare("api", leashed=leashed)
    from api.serve import CannotServe, serve
    from core.settings import get_settings

    try:
        serve(get_settings(), host, port, trust_network=trust_network)
    except CannotServe as error:
        raise CliError(str(error), ExitCode.UNAVAILABLE) from error


@with_policy_flags
def worker(
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="Model to serve.")],
    leashed: Leashed = False,
    flags: Flags,
) -> None:
    """Load one model, mount the cache, compile by policy, warm up, then render the jobs of that model.

    Ends with 70 when the model cannot be made ready.
    """
    from cli.explain import load_catalogue, resolve_policy

    catalogue = load_catalogue()
    spec, policy = resolve_policy(catalogue, model, flags)
    require_worker_packages()
    prepare("worker", leashed=leashed)
    warn_of(catalogue.notes(model))
    from core.settings import get_settings
    from tasks.worker import run_worker

    sys.exit(run_worker(get_settings(), spec, policy))


def warn_of(notes: list[str]) -> None:
    """Log what the model's file left behind of the one that it replaces."""
    from core.log import get_logger

    for note in notes:
        get_logger().warning("catalogue.replaced", note=note)


def upkeep(*, leashed: Leashed = False) -> None:
    """Rescue jobs of lost workers, send what was not sent, expire what is overdue, fire schedules.

    Celery Beat and the worker of the queue `control` in one process. Several may run.
    """
    prepare("upkeep", leashed=leashed)
    from core.settings import get_settings
    from tasks.control import run_control

    sys.exit(run_control(get_settings()))


@database.command()
def upgrade(*, leashed: Leashed = False) -> None:
    """Bring the tables of RENDERQ_DATABASE_URL to the version of this installation."""
    if leashed:
        hold_leash()
    from core.db import Database
    from core.settings import get_settings

    settings = get_settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    store = Database(settings.database_url)
    store.upgrade()
    store.dispose()
    say("the database is up to date")


def prepare(process: str, *, leashed: bool) -> None:
    """What every process does first: hold on to its starter's life, hear a stop, and set up its log.

    Until the process has a way of its own to end, SIGTERM ends it at once: nothing was begun.
    """
    if leashed:
        hold_leash()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.OK))
    from core.log import configure_logging

    configure_logging(process)
