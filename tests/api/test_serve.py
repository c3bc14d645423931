"""The API as a process: where it listens, how it ends, and how light it is."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select

from api.serve import CannotServe, serve
from core.artifacts import ArtifactStore
from core.db import Database
from core.errors import DatabaseNotUpgraded
from core.settings import Settings
from core.tables import Job
from policy.bulk import MAX_ROWS
from tests.api.parts import ORDER, Worker, url_of
from tests.fixtures.redis import Valkey
from tests.fixtures.stack import RENDERQ
from tests.fixtures.waiting import wait_until

ROOT = Path(__file__).parents[2]
MOST_RESIDENT_MB = 150
MOST_RESIDENT_MB_FOR_ROWS = 250
PROGRAM = """
import json, re, sys
from core.log import configure_logging
from core.settings import get_settings
configure_logging("api")
from api.serve import serve
serve(get_settings(), port=0, trust_network=len(sys.argv) > 1)
peak_kb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps({"peak_mb": peak_kb / 1024, "modules": sorted(sys.modules)}))
"""

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("database_kind"),
]


def test_the_api_does_not_start_on_a_database_that_was_not_upgraded(tmp_path: Path) -> None:
    with pytest.raises(DatabaseNotUpgraded, match="renderq db upgrade"):
        serve(Settings.for_data_dir(tmp_path), port=0)


class Served:
    """An API process, and a client of it."""

    def __init__(self, folder: Path, env: dict[str, str], *arguments: str) -> None:
        self.log = folder / "api.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                cwd=ROOT,
                env=os.environ | {"RENDERQ_LOG_FORMAT": "json"} | env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        url = wait_until(self._find_url, 60, f"the API listens; see {self.log}")
        self.client = httpx2.Client(base_url=url, timeout=30)

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def end(self, name: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
        self.process.send_signal(name)
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, self.log.read_text()
        facts: dict[str, Any] = json.loads(output)
        return facts

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()

    def _find_url(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        urls = [line["url"] for line in self.lines() if line["event"] == "api.listening"]
        return urls[0] if urls else None


@pytest.fixture(scope="module")
def served(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the tests that only call it."""
    folder = tmp_path_factory.mktemp("served")
    env = {"RENDERQ_DATA_DIR": str(folder), "RENDERQ_DATABASE_URL": database_url}
    served = Served(folder, env, "--trust-network")
    yield served
    served.close()


@pytest.fixture
def start(committed_database: Database, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: str, **env: str) -> Served:
        base = {
            "RENDERQ_DATA_DIR": str(tmp_path),
            "RENDERQ_DATABASE_URL": url_of(committed_database),
        }
        started.append(Served(tmp_path, base | env, *arguments))
        return started[-1]

    yield start
    for served in started:
        served.close()


def test_it_stays_light_and_never_loads_the_gpu_stack(
    start: Callable[..., Served], redis_url: str, committed_database: Database, tmp_path: Path
) -> None:
    served = start(RENDERQ_REDIS_URL=redis_url)
    client = served.client
    worker = Worker(committed_database, ArtifactStore((tmp_path / "artifacts").as_uri()))
    worker.register()
    for _ in range(20):
        job = client.post("/v1/jobs", json=ORDER).json()
        worker.complete(job["id"], os.urandom(200_000))
        assert len(client.get(job["urls"]["content"]).content) == 200_000
    for path in ("/", "/docs", "/openapi.json", "/readyz", "/v1/jobs", "/v1/models", "/v1/workers"):
        assert client.get(path).status_code == 200, path
    assert client.post("/v1/jobs", json=ORDER | {"n": 0}).status_code == 422
    assert client.post("/v1/jobs", content=b"x" * 300_000).status_code == 415
    facts = served.end(signal.SIGINT)
    assert served.lines()[-1]["event"] == "api.stopped"
    loaded = {name.partition(".")[0] for name in facts["modules"]}
    heavy = {
        "torch",
        "diffusers",
        "transformers",
        "cache_dit",
        "accelerate",
        "numpy",
        "av",
        "PIL",
        "pipeline",
    }
    assert not loaded & heavy
    sys.stdout.write(f"peak resident size of the API: {facts['peak_mb']:.0f} MB\n")
    assert facts["peak_mb"] < MOST_RESIDENT_MB


def test_the_largest_table_is_taken_while_others_are_answered(
    start: Callable[..., Served], committed_database: Database
) -> None:
    served = start()
    rows = "".join(f"A-{number},{number}\n" for number in range(MAX_ROWS))
    form = {"template": json.dumps({"model": "tiny", "prompt": "a house {sku}"})}
    answers: list[httpx2.Response] = []

    def post() -> None:
        files = {"file": ("a.csv", f"sku,seed\n{rows}".encode())}
        answers.append(
            httpx2.post(f"{served.client.base_url}/v1/batches", data=form, files=files, timeout=120)
        )

    posting = threading.Thread(target=post)
    posting.start()
    answered_meanwhile = 0
    while posting.is_alive():
        assert served.client.get("/healthz").status_code == 200
        answered_meanwhile += posting.is_alive()
    assert [answer.status_code for answer in answers] == [202]
    assert answers[0].json()["counts"]["queued"] == MAX_ROWS
    assert answered_meanwhile > 2
    assert len(served.client.get(answers[0].json()["urls"]["results"]).text.splitlines()) == MAX_ROWS + 1
    facts = served.end()
    sys.stdout.write(f"peak resident size of the API with {MAX_ROWS} rows: {facts['peak_mb']:.0f} MB\n")
    assert facts["peak_mb"] < MOST_RESIDENT_MB_FOR_ROWS


def test_a_zip_whose_file_cannot_be_read_to_its_end_breaks_the_connection(
    start: Callable[..., Served], committed_database: Database, tmp_path: Path
) -> None:
    served = start()
    worker = Worker(committed_database, ArtifactStore((tmp_path / "artifacts").as_uri()))
    body = {"template": ORDER, "grid": {"n": [1, 1, 1]}}
    batch = served.client.post("/v1/batches", json=body).json()
    worker.end(batch["id"], os.urandom(50_000))
    assert served.client.get(batch["urls"]["content"]).content.endswith(b"\0\0")
    second = sorted((tmp_path / "artifacts").rglob("*.png"))[1]
    second.write_bytes(b"short")
    assert served.client.head(batch["urls"]["content"]).status_code == 200
    assert "http.failed" not in [line["event"] for line in served.lines()], "HEAD reads no file"
    with pytest.raises(httpx2.RemoteProtocolError, match="incomplete"):
        served.client.get(batch["urls"]["content"])
    assert served.client.get("/healthz").status_code == 200


def test_a_call_in_hand_is_finished_before_the_end(
    start: Callable[..., Served], own_valkey: Valkey, committed_database: Database
) -> None:
    served = start(RENDERQ_REDIS_URL=own_valkey.url)
    own_valkey.freeze()  # publishing now takes a second or more
    answers: list[httpx2.Response] = []
    posting = threading.Thread(target=lambda: answers.append(served.client.post("/v1/jobs", json=ORDER)))
    posting.start()

    def count() -> int:
        with committed_database.reading() as session:
            return session.scalars(select(func.count()).select_from(Job)).one()

    wait_until(count, 20, "the order is stored")
    served.end()
    posting.join()
    assert [answer.status_code for answer in answers] == [202]


def test_waiting_callers_are_let_go_at_the_end(start: Callable[..., Served]) -> None:
    served = start()
    answers: list[httpx2.Response] = []
    headers = {"Prefer": "wait=60"}
    waiting = threading.Thread(
        target=lambda: answers.append(served.client.post("/v1/jobs", json=ORDER, headers=headers, timeout=90))
    )
    waiting.start()
    wait_until(
        lambda: httpx2.get(f"{served.client.base_url}/v1/jobs").json()["data"], 20, "the order is stored"
    )
    begun = time.monotonic()
    served.end()
    waiting.join()
    assert time.monotonic() - begun < 8
    assert [answer.status_code for answer in answers] == [202]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("moment", ["its first", "listening"])
def test_it_ends_with_success_however_often_and_early_it_is_told_to(
    tmp_path: Path, committed_database: Database, moment: str
) -> None:
    """The command, since it hears signals before it has loaded the API."""
    log = tmp_path / "api.log"
    env = {"RENDERQ_DATA_DIR": str(tmp_path), "RENDERQ_DATABASE_URL": url_of(committed_database)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, RENDERQ, "api", "--port", "0"], env=os.environ | env, stderr=output
        ) as api,
    ):
        wait_until(lambda: catches(api.pid, signal.SIGTERM), what="a handler")
        begun = {"its first": "", "listening": "api.listening"}[moment]
        wait_until(lambda: begun in log.read_text(), what=begun)

        def tell() -> bool:
            api.send_signal(signal.SIGTERM)
            return api.poll() is not None

        wait_until(tell, what="the end")
        assert api.returncode == 0, log.read_text()


def test_head_sends_no_body(served: Served) -> None:
    answer = served.client.head("/v1/models")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 100
    assert answer.content == b""
    assert served.client.get("/healthz").status_code == 200


def test_a_body_announced_too_large_is_refused_unread(served: Served) -> None:
    url = served.client.base_url
    request = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999999\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(request)
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_behind_a_trusted_proxy_it_answers_under_any_name(served: Served) -> None:
    assert served.client.get("/healthz", headers={"Host": "api.internal"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", "", "127.0.0.1.example.com"])
def test_it_refuses_to_be_reached_from_elsewhere(tmp_path: Path, host: str) -> None:
    with pytest.raises(CannotServe, match="authenticating proxy in front and pass --trust-network"):
        serve(Settings.for_data_dir(tmp_path), host)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    settings = Settings.for_data_dir(tmp_path)
    Database(settings.database_url).upgrade()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CannotServe, match=f"127.0.0.1:{port}"):
            serve(settings, port=port)
