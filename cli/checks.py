"""The checks of `renderq doctor`, each a function that returns one finding."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from cli.exits import CliError

if TYPE_CHECKING:
    from core.settings import Settings

WORKER_PACKAGES = ("torch", "diffusers", "transformers", "cache-dit", "accelerate", "safetensors", "av")
TORCH_TIMEOUT_S = 120
TORCH_QUESTION = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda,
    "device": torch.cuda.get_device_name(0) if cuda else "cpu", "count": torch.cuda.device_count()}))
"""
REDIS_TIMEOUT_S = 2
ENDED = ("gone", "failed")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw, and what to do when it is not in order; `missing`: nothing is there to look at."""

    name: str
    level: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""
    missing: bool = False

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "level": self.level, "text": self.text, "advice": self.advice}


def run_checks() -> Iterator[Finding]:
    """Every check in turn; what a check trips over becomes its finding."""
    yield from check_machine()
    yield from check_deployment()


def check_machine() -> Iterator[Finding]:
    """What this machine has."""
    yield check_python()
    yield check_packages()
    yield check_torch()
    yield check_compiler()
    yield check_valkey()


def check_deployment() -> Iterator[Finding]:
    """What the settings point to."""
    settings = _settings()
    if isinstance(settings, Finding):
        yield settings
    else:
        reached = reached_by_api()
        database = guarded("database", check_database, settings)
        yield beside_api(database, reached, settings)
        yield beside_api(guarded("redis", check_redis, settings), reached, settings)
        yield guarded("artifacts", check_artifacts, settings)
        if database.level == "ok":
            yield guarded("workers", check_workers, settings)
        else:
            yield Finding("workers", "warn", "not known without the database")
    yield check_api()


def guarded(name: str, check: "Callable[[Settings], Finding]", settings: "Settings") -> Finding:
    try:
        return check(settings)
    except Exception as error:  # noqa: BLE001 - the point of the command is to say what goes wrong, whatever it is
        lines = str(error).splitlines() or [""]
        return Finding(name, "fail", f"{type(error).__name__}: {lines[0]}")


def check_python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - somebody may have forced the installation
        return Finding("python", "fail", found, "renderq needs Python 3.11 or newer")
    return Finding("python", "ok", found)


def check_packages() -> Finding:
    missing = [name for name in WORKER_PACKAGES if _version(name) is None]
    if missing:
        advice = "a machine that renders needs: pip install 'renderq[worker]'"
        return Finding("packages", "warn", f"missing: {', '.join(missing)}", advice)
    names = ("torch", "diffusers", "cache-dit")
    return Finding("packages", "ok", ", ".join(f"{name} {_version(name)}" for name in names))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_torch() -> Finding:
    """Ask torch in a process of its own: it costs seconds, memory and a context on the GPU."""
    if _version("torch") is None:
        return Finding("device", "warn", "not known without torch")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TORCH_QUESTION],
            capture_output=True,
            text=True,
            timeout=TORCH_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        return Finding("device", "fail", f"torch cannot be imported: {' '.join(last)}", "install torch again")
    if answer["device"] == "cpu":
        return Finding(
            "device",
            "warn",
            f"torch {answer['torch']} sees no GPU",
            "enough for the model tiny; larger models need a GPU",
        )
    return Finding(
        "device",
        "ok",
        f"torch {answer['torch']}, CUDA {answer['cuda']}: {answer['count']} x {answer['device']}",
    )


def check_compiler() -> Finding:
    found = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if found is None:
        return Finding("compiler", "warn", "no C++ compiler", "--compile on a CPU needs g++: apt install g++")
    return Finding("compiler", "ok", found)


def check_valkey() -> Finding:
    from cli.valkey import find_server

    try:
        return Finding("valkey", "ok", str(find_server()))
    except CliError as error:
        return Finding("valkey", "warn", "no server for `renderq up`", error.message)


def _settings() -> "Settings | Finding":
    from core.errors import InvalidSettings
    from core.settings import get_settings

    try:
        return get_settings()
    except InvalidSettings as error:
        return Finding("settings", "fail", str(error), "correct the environment")


def check_database(settings: "Settings") -> Finding:
    """Whether the database answers and has the tables of this installation."""
    from alembic.script import ScriptDirectory
    from sqlalchemy import make_url

    from core.db import migrations_config

    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not os.path.exists(url.database or ""):  # noqa: PTH110 - may be empty
        advice = "`renderq up` or `renderq db upgrade` makes it"
        return Finding("database", "warn", f"{shown}: not made yet", advice, missing=True)
    newest = ScriptDirectory.from_config(migrations_config()).get_current_head()
    present = _revision(settings.database_url)
    if present != newest:
        text = f"{shown}: tables are at {present or 'nothing'}, this installation wants {newest}"
        return Finding("database", "fail", text, "run `renderq db upgrade`")
    return Finding("database", "ok", f"{shown}: revision {present}")


def _revision(url: str) -> str | None:
    from alembic.runtime.migration import MigrationContext

    from core.db import Database

    database = Database(url)
    try:
        with database.db_engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        database.dispose()


def check_redis(settings: "Settings") -> Finding:
    """Whether the queue takes messages, and whether it would lose them by its own settings."""
    import redis

    from tasks.probe import try_write

    url = settings.redis_url.replace("redis+socket://", "unix://", 1)
    try:
        with redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S, decode_responses=True) as server:
            try_write(server)
            try:
                kept = server.config_get("maxmemory-policy", "appendonly")
            except redis.ResponseError as error:  # managed servers refuse CONFIG
                return judge_refusal(hidden(settings.redis_url), str(error))
    except redis.ResponseError as error:
        advice = "give its memory and its disk room, or name the server of which it is a replica"
        return Finding("redis", "fail", f"{hidden(settings.redis_url)} takes no messages: {error}", advice)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        advice = "start it, or `renderq up`; accepted jobs wait in the database meanwhile"
        text = f"{hidden(settings.redis_url)} does not answer: {error}"
        return Finding("redis", "fail", text, advice, missing=True)
    return judge_redis(hidden(settings.redis_url), kept)


def judge_refusal(url: str, words: str) -> Finding:
    """A server that answers without saying how it is set up."""
    advice = "ask its provider for maxmemory-policy noeviction and appendonly yes"
    return Finding("redis", "warn", f"{url} answers, but does not tell its settings: {words}", advice)


def judge_redis(url: str, kept: dict[str, str]) -> Finding:
    wrong = []
    evicts = str(kept.get("maxmemory-policy")).startswith("allkeys-")
    if evicts:
        wrong.append("set maxmemory-policy noeviction: a full memory drops whole queues without an error")
    elif kept.get("maxmemory-policy") != "noeviction":
        wrong.append("set maxmemory-policy noeviction, else a full memory drops messages")
    if kept.get("appendonly") != "yes":
        wrong.append("set appendonly yes, else a restart forgets messages until upkeep sends them again")
    text = f"{url}: maxmemory-policy {kept.get('maxmemory-policy')}, appendonly {kept.get('appendonly')}"
    level: Literal["ok", "warn", "fail"] = "fail" if evicts else "warn" if wrong else "ok"
    return Finding("redis", level, text, "; ".join(wrong))


def hidden(url: str) -> str:
    """A URL without its user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def check_artifacts(settings: "Settings") -> Finding:
    """Whether pictures can be written: a small file is put, read and deleted."""
    from core.artifacts import ArtifactStore, folder_of

    folder = folder_of(settings.artifacts_url)
    if folder is not None and not folder.exists():
        return Finding("artifacts", "warn", f"{folder}: not made yet", "whatever starts first makes it")
    store = ArtifactStore(settings.artifacts_url)
    key = f"doctor/{os.getpid()}.txt"
    store.put(key, b"renderq")
    try:
        written = store.get(key) == b"renderq"
    finally:
        store.delete(key)
    if not written:
        return Finding("artifacts", "fail", f"{settings.artifacts_url}: read other bytes than were written")
    return Finding("artifacts", "ok", f"{settings.artifacts_url} is writable")


def check_workers(settings: "Settings") -> Finding:
    """Which workers say that they are alive."""
    from core.db import Database
    from core.workers import list_workers

    database = Database(settings.database_url)
    try:
        with database.reading() as session:
            alive = [(row.model, row.state) for row in list_workers(session) if row.state not in ENDED]
    finally:
        database.dispose()
    if not alive:
        return Finding(
            "workers", "warn", "none is alive", "start one: `renderq worker --model MODEL`, or `renderq up`"
        )
    return Finding("workers", "ok", ", ".join(f"{model} {state}" for model, state in alive))


def reached_by_api() -> frozenset[str]:
    """What the API at RENDERQ_URL says it reaches; nothing where none answers."""
    from cli.probes import Unhealthy, ask_readiness

    try:
        return frozenset(check["name"] for check in ask_readiness(api_url()) if check["ok"])
    except (Unhealthy, KeyError, TypeError):
        return frozenset()


def beside_api(finding: Finding, reached: Collection[str], settings: "Settings") -> Finding:
    """The finding; what is missing here and reached by the API is another one, which a setting would name."""
    if finding.name not in reached or not finding.missing:
        return finding
    own = f"RENDERQ_{finding.name.upper()}_URL"
    folder = "" if os.environ.get(own) else "RENDERQ_DATA_DIR to the folder of its `renderq up --data`, or "
    advice = (
        f"the API at {api_url()} reaches another {finding.name}: set {folder}{own} to that one; or set "
        f"RENDERQ_URL to the API of {settings.data_dir}"
    )
    return replace(finding, advice=advice)


def api_url() -> str:
    """Where the commands look for the API."""
    from cli.client import DEFAULT_URL

    return os.environ.get("RENDERQ_URL") or DEFAULT_URL


def check_api() -> Finding:
    from cli.client import Client

    url = api_url()
    try:
        answer = Client(url, patience_s=0.5).call("GET", "/healthz").json()
    except (CliError, ValueError) as error:
        return Finding("api", "warn", str(error).splitlines()[0])
    return Finding("api", "ok", f"{url} answers, version {answer.get('version')}")
