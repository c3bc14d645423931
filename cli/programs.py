"""The command lines of the processes of one machine, and the environment they share."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.datafolder import DataFolder
from cli.exits import CliError, ExitCode
from cli.supervisor import Program
from cli.valkey import find_server, server_command

WORKER_GRACE_S = 80.0
"""Above a worker's longest stop: 60 s to drain (`tasks.app`) and 10 s to quit (`tasks.watch`).

A number, since reading those would load Celery.
"""
API_GRACE_S = 12.0
"""A little above the time that `api.serve` gives the calls in hand."""


HOPELESS: Mapping[int, str] = {
    ExitCode.OTHER_DATABASE: "the database has the tables of another renderq; stop this one and start the "
    "version that upgraded it"
}
"""Ends of a program after which none of them could go on."""


def require_worker_packages() -> None:
    """Say what is missing before anything starts; looks without importing."""
    if importlib.util.find_spec("torch") is None:
        raise CliError(
            "this installation cannot render: pip install 'renderq[worker]' adds torch and diffusers",
            ExitCode.LOAD_FAILED,
        )


def renderq_command(*arguments: str) -> tuple[str, ...]:
    """A command line that runs our own program, so that ``ps`` shows ``renderq`` and the subcommand."""
    script = find_script()
    start = [str(script)] if script else ["-P", "-m", "cli.main"]
    return (sys.executable, *start, *arguments)


def find_script() -> Path | None:
    """The ``renderq`` script of this installation."""
    for candidate in (Path(sys.argv[0]), Path(sys.executable).with_name("renderq")):
        if candidate.name == "renderq" and candidate.is_file():
            return candidate.absolute()
    found = shutil.which("renderq")
    return Path(found) if found else None


def child_environment(folder: DataFolder, redis_url: str | None, outer: Mapping[str, str]) -> dict[str, str]:
    """What every process of ours gets: the caller's environment, the data folder, and the embedded server."""
    environment = dict(outer)
    environment["RENDERQ_DATA_DIR"] = str(folder.root)
    environment["PYTHONUNBUFFERED"] = "1"
    if redis_url:
        environment["RENDERQ_REDIS_URL"] = redis_url
    return environment


def valkey_program(folder: DataFolder, socket_path: Path) -> Program:
    """Valkey behind a leash: it is not ours and would outlive a killed starter."""
    server = server_command(find_server(), folder.valkey, socket_path)
    return Program(
        name="valkey",
        command=(sys.executable, "-P", "-m", "cli.leash", *server),
        environment=dict(os.environ),
        log=folder.logs / "valkey.log",
        stops=4,
    )


def migration_program(folder: DataFolder, environment: Mapping[str, str]) -> Program:
    """Brings the database to the newest version, then ends."""
    command = renderq_command("db", "upgrade", "--leashed")
    return Program("migration", command, environment, folder.logs / "migration.log", stops=3)


def api_program(
    folder: DataFolder, environment: Mapping[str, str], host: str, port: int, *, trusted: bool
) -> Program:
    trust = ["--trust-network"] if trusted else []
    command = renderq_command("api", "--host", host, "--port", str(port), *trust, "--leashed")
    log = folder.logs / "api.log"
    return Program("api", command, environment, log, stops=1, grace_s=API_GRACE_S, final=HOPELESS)


def worker_program(
    folder: DataFolder, environment: Mapping[str, str], model: str, flags: Sequence[str]
) -> Program:
    """The worker; its exit code for a failed load ends everything, since nothing could render."""
    return Program(
        name="worker",
        command=renderq_command("worker", "--model", model, *flags, "--leashed"),
        environment=environment,
        log=folder.logs / "worker.log",
        stops=2,
        grace_s=WORKER_GRACE_S,
        final={ExitCode.LOAD_FAILED: f"the model {model} could not be made ready", **HOPELESS},
    )


def upkeep_program(folder: DataFolder, environment: Mapping[str, str]) -> Program:
    command = renderq_command("upkeep", "--leashed")
    return Program("upkeep", command, environment, folder.logs / "upkeep.log", stops=3, final=HOPELESS)


def flower_program(folder: DataFolder, environment: Mapping[str, str], port: int) -> Program:
    """Flower, on loopback."""
    command = renderq_command("flower", "--port", str(port), "--leashed")
    return Program("flower", command, environment, folder.logs / "flower.log", stops=1)
