"""Everything on one machine: Valkey, database, API, upkeep and one worker under one supervisor."""

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import programs, valkey
from cli.datafolder import DataFolder, hold_folder, socket_in
from cli.exits import CliError, ExitCode
from cli.supervisor import Say, Signals, Supervisor, closing_words

if TYPE_CHECKING:
    from cli.client import Client

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
"""For everything but the worker, whose model may take as long as it takes."""
LOOK_S = 0.5
SILENT_LOOK_S = 10.0
SILENT_LOOKS = 3
"""A worker is killed that counts as gone, so has missed its beats already, on so many looks in a row."""
PORT_PATIENCE_S = 2.0
"""The processes of a killed `up` need a moment to end."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What to run and where. ``flags`` are the worker's policy flags as given; port 0 takes a free one."""

    data: Path
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8700
    trust_network: bool = False
    flags: Sequence[str] = ()
    flower_port: int | None = None
    """None: without Flower."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Stack:
    """The running processes. `wait_ready` returns when the worker is warm; call `watch` from then on."""

    def __init__(
        self, plan: StackPlan, folder: DataFolder, supervisor: Supervisor, redis_url: str | None
    ) -> None:
        self.plan = plan
        self.redis_url = redis_url
        """The embedded server's; None when the environment names another."""
        self.folder = folder
        self.supervisor = supervisor
        self.url = f"http://{bracketed(plan.host)}:{plan.port}"
        self._looked_at = 0.0
        self._silent = 0
        self.flower_url = None if plan.flower_port is None else f"http://{LOOPBACK}:{plan.flower_port}"

    def describe(self) -> dict[str, str | None]:
        """Where it is, for another process that wants to use it; no address of a server that is not ours."""
        return {
            "url": self.url,
            "model": self.plan.model,
            "data": str(self.folder.root),
            "redis_url": self.redis_url,
            "flower_url": self.flower_url,
        }

    def preparation(self) -> Iterator[str]:
        """Each new state of the worker, until it is ready: then a job sent now would be rendered."""
        last = "starting"
        yield last
        while last != "ready":
            self.rest(LOOK_S)
            state = self.worker_state() or last
            if state != last:
                last = state
                yield last
        for child in self.supervisor.children.values():
            child.is_proven = True

    def rest(self, seconds: float) -> None:
        """Look after the processes for a while."""
        end = time.monotonic() + seconds
        self.supervisor.wait(lambda: time.monotonic() >= end, "the end of the rest")

    def client(self) -> "Client":
        """A client of this stack's API."""
        from cli.client import Client

        return Client(self.url)

    def watch(self) -> None:
        """Look after the processes until asked to stop."""
        while True:
            self.look_after()

    def look_after(self) -> None:
        """Look after the processes once, also after a worker that is there and hangs as a whole."""
        self.supervisor.tick()
        now = time.monotonic()
        if now < self._looked_at + SILENT_LOOK_S:
            return
        self._looked_at = now
        self._silent = self._silent + 1 if self.worker_state() == "gone" else 0
        if self._silent >= SILENT_LOOKS:
            self._silent = 0
            self.supervisor.kill("worker", "gives no sign of life")

    def worker_state(self) -> str:
        """The state of the worker that this stack runs now; empty while it has none."""
        process = self.supervisor.children["worker"].process
        answer = get_json(self.url, "/v1/workers") or {}
        own = (socket.gethostname(), process.pid) if process else None
        rows = [row for row in answer.get("data", []) if (row.get("host"), row.get("pid")) == own]
        return str(rows[0]["state"]) if rows else ""


@contextmanager
def run_stack(plan: StackPlan, say: Say, show_line: Say, signals: Signals) -> Iterator[Stack]:
    """Start everything but do not wait for the worker; end everything when the block is left."""
    programs.require_worker_packages()
    with hold_folder(plan.data) as folder, socket_in(folder) as socket_path:
        plan = replace(plan, port=choose_port(plan.host, plan.port))
        if plan.flower_port is not None:
            plan = replace(plan, flower_port=choose_port(LOOPBACK, plan.flower_port, "--flower-port"))
        supervisor = Supervisor(say, show_line, signals)
        embedded = not plan.environment.get("RENDERQ_REDIS_URL")
        redis_url = f"redis+socket://{socket_path}" if embedded else None
        stack = Stack(plan, folder, supervisor, redis_url)
        try:
            start(stack, socket_path)
            yield stack
        finally:
            supervisor.stop()


def start(stack: Stack, socket_path: Path) -> None:
    """Valkey and the database first, then the processes that need them."""
    plan, folder, supervisor = stack.plan, stack.folder, stack.supervisor
    environment = programs.child_environment(folder, stack.redis_url, plan.environment)
    if stack.redis_url:
        end_leftover(socket_path)
        supervisor.add(programs.valkey_program(folder, socket_path))
    migrate(supervisor, folder, environment)
    if stack.redis_url:
        supervisor.wait(lambda: valkey.answers(socket_path), "Valkey", START_TIMEOUT_S)
    supervisor.add(programs.worker_program(folder, environment, plan.model, plan.flags))
    supervisor.add(
        programs.api_program(folder, environment, plan.host, plan.port, trusted=plan.trust_network)
    )
    supervisor.add(programs.upkeep_program(folder, environment))
    if plan.flower_port is not None:
        supervisor.add(programs.flower_program(folder, environment, plan.flower_port))
    supervisor.wait(lambda: get_json(stack.url, "/healthz") is not None, "the API", START_TIMEOUT_S)


def migrate(supervisor: Supervisor, folder: DataFolder, environment: Mapping[str, str]) -> None:
    """Run the migration to its end."""
    program = programs.migration_program(folder, environment)
    if supervisor.run_once(program) != ExitCode.OK:
        raise CliError(f"the database could not be upgraded. {closing_words(program)}", ExitCode.UNAVAILABLE)


def end_leftover(socket_path: Path) -> None:
    """End the Valkey of an earlier `up` that is still on its way out; the lock says that nobody uses it."""
    asked = False
    deadline = time.monotonic() + PORT_PATIENCE_S
    while valkey.answers(socket_path):
        if time.monotonic() > deadline:
            if asked:
                raise CliError(f"another server holds {socket_path}", ExitCode.UNAVAILABLE)
            valkey.send(socket_path, b"SHUTDOWN")
            asked, deadline = True, deadline + PORT_PATIENCE_S
        time.sleep(0.1)


def choose_port(host: str, port: int, option: str = "--port") -> int:
    """The port to listen on; raise `CliError` when it is taken or not allowed."""
    deadline = time.monotonic() + PORT_PATIENCE_S
    while True:
        try:
            return try_port(host, port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise CliError(
                    f"cannot listen on {host} port {port}: {error.strerror or error}; "
                    f"choose another with {option}",
                    ExitCode.UNAVAILABLE,
                ) from error
        time.sleep(0.1)


def try_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def bracketed(host: str) -> str:
    """The host as it stands in a URL; a wildcard address is reached through loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def get_json(url: str, path: str) -> dict[str, Any] | None:
    """The JSON object at ``path``; None unless the server answers 200 with one."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = json.loads(answer.read()) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return body if isinstance(body, dict) else None
