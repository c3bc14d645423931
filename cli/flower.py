"""`renderq flower`: Celery's monitor over this system's queues and workers."""

import importlib.util
import os
from typing import Annotated

import typer

from cli.exits import CliError, ExitCode
from cli.processes import Leashed, prepare

PORT = 5555


def flower(
    *,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    allow_control: Annotated[
        bool,
        typer.Option("--allow-control", help="Let Flower's buttons work. Needs RENDERQ_FLOWER_BASIC_AUTH."),
    ] = False,
    leashed: Leashed = False,
) -> None:
    """Show workers, queues and tasks in the browser, with Flower.

    Beyond this machine it wants the user and password of RENDERQ_FLOWER_BASIC_AUTH (user:password).
    """
    require_flower()
    # Flower's own switch, which would let every web page that this machine's browser opens read its API.
    os.environ.pop("FLOWER_UNAUTHENTICATED_API", None)
    prepare("flower", leashed=leashed)
    from core.settings import get_settings
    from tasks.flower import NotAllowed, run_flower

    try:
        run_flower(get_settings(), address, port, allow_control=allow_control)
    except NotAllowed as error:
        raise CliError(error.message) from error
    except OSError as error:
        reason = error.strerror or error
        raise CliError(f"cannot listen on {address} port {port}: {reason}", ExitCode.UNAVAILABLE) from error


def require_flower() -> None:
    """Say what is missing before anything starts; looks without importing."""
    if importlib.util.find_spec("flower") is None:
        raise CliError(
            "this installation has no Flower: pip install 'renderq[flower]' adds it", ExitCode.UNAVAILABLE
        )
