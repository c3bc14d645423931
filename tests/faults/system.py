"""A whole renderq to break: API, two workers, upkeep, Valkey and a database, all real processes of one owner.

Every process reaches Valkey and PostgreSQL through a proxy of its own, so that any of them can be cut off
alone. The harness itself looks at the database and at Valkey past the proxies.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis
from sqlalchemy import make_url, select

from cli.programs import renderq_command
from cli.stack import get_json, try_port
from cli.valkey import find_server, server_command
from core.artifacts import ArtifactStore
from core.db import Database
from core.lifecycle import WorkerState
from core.settings import Settings
from core.tables import Worker
from tasks.broker import Broker
from tests.faults.owned import Owned, OwnedDatabase, OwnedServer
from tests.faults.phases import Moment, look
from tests.faults.proxy import HOST, Proxies, Proxy, Target
from tests.fixtures.postgres import PostgresServer, own_postgres
from tests.fixtures.processes import descendants
from tests.fixtures.waiting import wait_until

WORKERS = ("worker-1", "worker-2")
DATABASE_SERVER = "database server"
"""Name of the PostgreSQL that the system owns; one that was named by its URL is nobody's to kill."""
START_S = 120.0
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Layout:
    """What to run.

    Attributes:
        database: ``sqlite``, ``postgresql`` for a server of its own, or the URL of one.
        persistent: Whether Valkey keeps what it was sent in a file.
        paced: Whether the workers have the stand-in engine; else the bundled tiny model.
        microbatch: The option of the workers.
    """

    folder: Path
    database: str = "sqlite"
    persistent: bool = True
    lease_s: float = 5.0
    heartbeat_s: float = 1.0
    upkeep_interval_s: float = 1.0
    workers: tuple[str, ...] = WORKERS
    paced: bool = True
    microbatch: int = 1


@dataclass(slots=True)
class System:
    """The running processes, the proxies between them, and what the harness looks at them with."""

    layout: Layout
    settings: Settings
    database: Database
    owned: dict[str, Owned]
    redis_proxies: dict[str, Proxy]
    database_proxies: dict[str, Proxy]
    """Empty on SQLite."""
    url: str
    artifacts: ArtifactStore = field(init=False)

    def __post_init__(self) -> None:
        self.artifacts = ArtifactStore(self.settings.artifacts_url)

    @property
    def folder(self) -> Path:
        return self.layout.folder

    @property
    def phases(self) -> Path:
        return self.folder / "phases"

    def see(self, worker: str) -> Moment | None:
        """What the stand-in engine of a worker told last."""
        return look(self.phases, self.owned[worker].pid)

    def child_pid(self, worker: str) -> int | None:
        """The worker's child that was seen last, as its row tells."""
        with self.database.reading() as session:
            mine = select(Worker.child_pid).where(Worker.pid == self.owned[worker].pid)
            return session.scalars(mine.order_by(Worker.started_at.desc()).limit(1)).one_or_none()

    def can_suffer(self, component: str) -> bool:
        """Whether there is such a part that is ours to break."""
        return component != DATABASE_SERVER or DATABASE_SERVER in self.owned

    def answers(self) -> bool:
        """Whether the API is there."""
        return get_json(self.url, "/healthz") is not None

    def ready_workers(self) -> int:
        """Workers of ours whose row says that they can take a job."""
        pids = [self.owned[name].pid for name in self.layout.workers if self.owned[name].runs]
        with self.database.reading() as session:
            ready = select(Worker.id).where(Worker.pid.in_(pids), Worker.state == WorkerState.READY)
            return len(session.scalars(ready).all())

    def wait_ready(self) -> None:
        """Return when the API answers and every worker is warm."""
        self._wait(self.answers, "api")
        self._wait(lambda: self.ready_workers() == len(self.layout.workers), *self.layout.workers)

    def _wait(self, seen: Callable[[], bool], *names: str) -> None:
        """Wait for what these processes bring about, as long as they run."""

        def look() -> bool:
            ended = [
                f"{name} ended: {self.owned[name].said()}" for name in names if not self.owned[name].runs
            ]
            assert not ended, ended
            return seen()

        wait_until(look, START_S, f"{names}")

    def messages(self) -> int | None:
        """Messages in the queue; None while Valkey is away."""
        seen = Broker(self.settings).look(["tiny"])
        return None if seen is None else seen[1]["tiny"]

    def valkey_answers(self) -> bool:
        with (
            suppress(redis.RedisError),
            redis.Redis.from_url(self.settings.redis_url, socket_timeout=1) as client,
        ):
            return bool(client.ping())
        return False

    def forget(self) -> None:
        """Remove what Valkey keeps on disk; for a server that does not run."""
        shutil.rmtree(self.folder / "valkey", ignore_errors=True)
        (self.folder / "valkey").mkdir()

    def left(self) -> dict[int, str]:
        """Every living process that was given this system's folder, with its command line."""
        return left_behind(self.folder)

    def meant_to_live(self) -> set[int]:
        """The processes that were started and those below them."""
        pids = {owned.pid for owned in self.owned.values()}
        return pids.union(*(descendants(pid) for pid in pids))

    def stop(self) -> dict[str, int | None]:
        """End everything in order, as an operator does; the exit codes."""
        codes = {}
        for name in ("api", *self.layout.workers, "upkeep", "redis"):
            owned = self.owned[name]
            owned.send_all(signal.SIGCONT)
            owned.send(signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while owned.runs and time.monotonic() < deadline:
                time.sleep(0.05)
            codes[name] = owned.code
        return codes


@contextmanager
def run_system(layout: Layout) -> Iterator[System]:
    """Start everything and yield it as soon as it is ready; nothing of it is left at the end."""
    with ExitStack() as stack:
        proxies = stack.enter_context(Proxies())
        server = _database_server(layout, stack)
        url = _database_url(layout, server)
        valkey_port = free_port()
        redis_proxies = {
            name: proxies.add((HOST, valkey_port)) for name in ("api", "upkeep", *layout.workers)
        }
        database_proxies = _database_proxies(proxies, url, tuple(redis_proxies))
        settings = Settings.for_data_dir(
            layout.folder,
            database_url=url,
            redis_url=f"redis://{HOST}:{valkey_port}/0",
            lease_s=layout.lease_s,
            heartbeat_s=layout.heartbeat_s,
            upkeep_interval_s=layout.upkeep_interval_s,
        )
        database = Database(url)
        stack.callback(database.dispose)
        database.upgrade()
        api_port = free_port()
        system = System(
            layout, settings, database, {}, redis_proxies, database_proxies, f"http://{HOST}:{api_port}"
        )
        if server is not None:
            system.owned[DATABASE_SERVER] = OwnedDatabase(DATABASE_SERVER, server[0])
        _own_all(system, stack, valkey_port, api_port)
        system.wait_ready()
        yield system


def _own_all(system: System, stack: ExitStack, valkey_port: int, api_port: int) -> None:
    for name in ("logs", "valkey", "phases"):
        (system.folder / name).mkdir(exist_ok=True)
    leash, leash_end = os.pipe()
    stack.callback(os.close, leash)
    stack.callback(os.close, leash_end)
    os.set_inheritable(leash_end, False)
    system.owned["redis"] = _valkey(system, valkey_port, leash)
    commands: dict[str, tuple[str, ...]] = {
        "api": renderq_command("api", "--host", HOST, "--port", str(api_port), "--leashed"),
        "upkeep": renderq_command("upkeep", "--leashed"),
    } | dict.fromkeys(system.layout.workers, _worker_command(system))
    for name, command in commands.items():
        log = system.folder / "logs" / f"{name}.log"
        system.owned[name] = Owned(name, command, _environment(system, name), log, leash)
    for owned in system.owned.values():
        if isinstance(owned, OwnedDatabase):
            continue
        stack.callback(owned.end)
        owned.start()
        if owned.name == "redis":
            wait_until(system.valkey_answers, START_S, f"Valkey; {owned.said()}")


def _valkey(system: System, port: int, leash: int) -> Owned:
    options = {
        "--port": str(port),
        "--bind": HOST,
        "--appendonly": "yes" if system.layout.persistent else "no",
    }
    server = server_command(find_server(), system.folder / "valkey", system.folder / "valkey.sock")
    command = [*server, *(part for option in options.items() for part in option)]
    log = system.folder / "logs" / "valkey.log"
    return OwnedServer("redis", command, _environment(system, None), log, leash)


def _worker_command(system: System) -> tuple[str, ...]:
    if not system.layout.paced:
        return renderq_command("worker", "--model", "tiny", "--leashed")
    return (sys.executable, "-P", "-m", "tests.faults.paced_worker", str(system.phases))


def _environment(system: System, client: str | None) -> dict[str, str]:
    """What a process of the system gets; ``client`` reaches its servers through its own proxies."""
    settings = system.settings
    urls = {"redis_url": settings.redis_url, "database_url": settings.database_url}
    if client is not None:
        urls["redis_url"] = f"redis://{HOST}:{system.redis_proxies[client].port}/0"
    if client in system.database_proxies:
        urls["database_url"] = _through(settings.database_url, system.database_proxies[client])
    mine: Mapping[str, object] = urls | {
        "data_dir": settings.data_dir,
        "lease_s": settings.lease_s,
        "heartbeat_s": settings.heartbeat_s,
        "upkeep_interval_s": settings.upkeep_interval_s,
        "log_format": "json",
        "microbatch": system.layout.microbatch,
    }
    outer = {name: value for name, value in os.environ.items() if not name.startswith("RENDERQ_")}
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (outer.get("PYTHONPATH"), root) if part)
    ours = {f"RENDERQ_{name.upper()}": str(value) for name, value in mine.items()}
    return outer | ours | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _database_server(layout: Layout, stack: ExitStack) -> tuple[PostgresServer, int] | None:
    """A PostgreSQL of the system's own and its port, if the layout wants one."""
    if layout.database != "postgresql":
        return None
    port = free_port()
    return stack.enter_context(own_postgres(port)), port


def _database_url(layout: Layout, server: tuple[PostgresServer, int] | None) -> str:
    """The URL of the database as it is reached without a proxy."""
    if layout.database == "sqlite":
        return f"sqlite:///{layout.folder}/renderq.db"
    return layout.database if server is None else f"postgresql://postgres@{HOST}:{server[1]}/postgres"


def _database_proxies(proxies: Proxies, url: str, clients: tuple[str, ...]) -> dict[str, Proxy]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return {}
    port = parsed.port or 5432
    folder = parsed.query.get("host")
    target: Target = Path(f"{folder}/.s.PGSQL.{port}") if folder else (parsed.host or HOST, port)
    return {name: proxies.add(target) for name in clients}


def _through(url: str, proxy: Proxy) -> str:
    past = make_url(url).difference_update_query(["host"])
    return past.set(host=HOST, port=proxy.port).render_as_string(hide_password=False)


def free_port() -> int:
    """A port that no outgoing connection takes while its server is down: those come from above."""
    for port in random.sample(range(15_000, 32_000), 100):
        with suppress(OSError):
            return try_port(HOST, port)
    raise RuntimeError("no free port")


def left_behind(folder: Path) -> dict[int, str]:
    """Living processes, other than this one, whose environment or command line names the folder."""
    needle, mine = os.fsencode(folder), os.getpid()
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        if int(place.name) == mine:
            continue
        with suppress(OSError):
            command = (place / "cmdline").read_bytes()
            if needle in command or needle in (place / "environ").read_bytes():
                found[int(place.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return {pid: command for pid, command in found.items() if command}
