"""`renderq health`: whether a process of this machine can do its work now, for health checks of containers.

A process that exists proves little: a worker loads for minutes before it takes a job, and an API without its
database takes none. Each command ends with 0 and one line when the work can be done, else with 1 and why.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.probes import Unhealthy, ask, ask_readiness
from cli.terminal import print_line

if TYPE_CHECKING:
    from core.settings import Settings

UPKEEP_ANSWER_S = 3.0
FLOWER_URL = "http://127.0.0.1:5555"

app = typer.Typer(help="Whether a process here can do its work now, for health checks.", no_args_is_help=True)


@app.command()
def api() -> None:
    """Healthy when the API at RENDERQ_URL can keep a job: it answers and so does its database.

    Redis or a ready worker may be missing: jobs are accepted all the same and wait.
    """
    import os

    from cli.client import DEFAULT_URL

    url = os.environ.get("RENDERQ_URL") or DEFAULT_URL
    checks = {check["name"]: check for check in ask_readiness(url)}
    if not checks["database"]["ok"]:
        raise Unhealthy(f"the database of the API at {url}: {checks['database']['reason']}")
    missing = [f"{name}: {check['reason']}" for name, check in checks.items() if not check["ok"]]
    print_line("; ".join(["takes jobs", *missing]))


@app.command()
def worker() -> None:
    """Healthy when a worker of this host is warm, was heard of within its last beats, and Redis answers."""
    here = socket.gethostname()
    with _words():
        settings = _settings()
        states = _states(settings, here)
    ready = [name for name, state in states.items() if state == "ready"]
    if not ready:
        heard = ", ".join(f"{name} is {state}" for name, state in states.items())
        raise Unhealthy(f"no worker on {here} can take a job: {heard or 'none was heard of'}")
    _require_redis(settings)
    print_line(f"ready: {', '.join(ready)}")


@app.command()
def upkeep() -> None:
    """Healthy when an upkeep process of this host can be sent its duties: it answers through Redis."""
    here = socket.gethostname()
    with _words():
        settings = _settings()
        answers = _ask_upkeep(settings, here)
    if not answers:
        raise Unhealthy(f"no upkeep process on {here} answers within {UPKEEP_ANSWER_S:g} s")
    print_line(f"answers: {', '.join(answers)}")


@app.command()
def flower(*, url: Annotated[str, typer.Option("--url", help="Where Flower answers.")] = FLOWER_URL) -> None:
    """Healthy when Flower answers."""
    try:
        answer = ask(f"{url.rstrip('/')}/healthcheck")
    except Unhealthy as error:
        raise Unhealthy(f"{error.message} (--url says where Flower is)") from error
    if not answer.is_success:
        raise Unhealthy(f"Flower at {url} answers {answer.status_code}")
    print_line("answers")


def _ask_upkeep(settings: "Settings", host: str) -> list[str]:
    """The names of the upkeep processes on ``host`` that answer Celery's ping."""
    from kombu.exceptions import KombuError
    from redis import RedisError, ResponseError

    from tasks.app import make_app

    celery = make_app(settings)
    try:
        with celery.connection_for_write() as connection:
            replies = celery.control.broadcast(
                "ping",
                pattern=f"upkeep-*@{host}",
                matcher="glob",  # type: ignore[arg-type]  # sent along, so it is a word
                reply=True,
                limit=1,
                timeout=UPKEEP_ANSWER_S,
                connection=connection,
            )
    except ResponseError as error:
        raise Unhealthy(f"Redis takes no messages: {error}") from error
    except (KombuError, RedisError, OSError) as error:
        raise Unhealthy(f"Redis does not answer: {error}") from error
    return [name for reply in replies or [] for name in reply]


@contextmanager
def _words() -> Iterator[None]:
    """Give what cannot be asked the exit code that health checks know."""
    from core.errors import AppError

    try:
        yield
    except AppError as error:
        raise Unhealthy(str(error)) from error


def _settings() -> "Settings":
    from core.settings import get_settings

    return get_settings()


def _states(settings: "Settings", host: str) -> dict[str, str]:
    """The states of the workers on ``host`` that have not ended and were heard of, by name."""
    from sqlalchemy import select

    from core.clock import now
    from core.db import Database
    from core.lifecycle import ENDED_WORKER
    from core.tables import Worker
    from core.workers import taking_within_s

    statement = select(Worker.name, Worker.state).where(
        Worker.host == host,
        Worker.state.not_in(ENDED_WORKER),
        Worker.heartbeat_at > now(-taking_within_s(settings.heartbeat_s)),
    )
    database = Database(settings.database_url)
    try:
        with database.reading() as session:
            return {name: str(state) for name, state in session.execute(statement)}
    finally:
        database.dispose()


def _require_redis(settings: "Settings") -> None:
    from cli.checks import check_redis

    finding = check_redis(settings)
    if finding.level == "fail":
        raise Unhealthy(finding.text)
