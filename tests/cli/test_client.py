"""Retries, waiting, and refusals in words."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import httpx2
import pytest

from cli.client import Client
from cli.exits import CliError, ExitCode
from cli.lost import rest_s, should_retry
from tests.cli.job_answers import ID, job
from tests.fixtures.scripted_server import ScriptedServer


@pytest.fixture
def client(server: ScriptedServer) -> Client:
    return Client(server.url)


def test_an_order_sent_again_carries_the_same_idempotency_key(client: Client, server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"detail": "database away"}, status=503, Retry_After="0")
    server.add("/v1/jobs", job("queued"), status=202)
    assert client.submit({"prompt": "a boat"}, "key-1")["id"] == ID
    assert [call.headers["Idempotency-Key"] for call in server.calls] == ["key-1", "key-1"]


def test_a_refused_order_is_sent_once_and_every_wrong_field_is_named(
    client: Client, server: ScriptedServer
) -> None:
    problems = [
        {"field": "width", "message": "width 65 is wrong"},
        {"field": "n", "message": "n 99 is wrong"},
    ]
    server.add("/v1/jobs", {"detail": "both", "errors": problems}, status=422)
    with pytest.raises(CliError, match="width 65 is wrong\nn 99 is wrong") as raised:
        client.submit({}, "key")
    assert raised.value.code == ExitCode.USAGE
    assert len(server.calls) == 1


def test_an_order_refused_for_the_moment_is_sent_again_after_the_time_the_server_names(
    client: Client, server: ScriptedServer
) -> None:
    server.add("/v1/jobs", {"detail": "too many"}, status=429, Retry_After="1")
    server.add("/v1/jobs", job("queued"), status=202)
    before = time.monotonic()
    client.submit({}, "key")
    assert time.monotonic() - before >= 1


def test_a_server_that_is_away_is_named_with_what_to_do() -> None:
    client = Client("http://127.0.0.1:9", patience_s=0.2)
    with pytest.raises(CliError, match=r"no answer from http://127.0.0.1:9 .*renderq up") as raised:
        client.models()
    assert raised.value.code == ExitCode.UNAVAILABLE


def test_a_server_error_is_not_the_fault_of_the_caller(client: Client, server: ScriptedServer) -> None:
    server.add("/v1/models", b"<html>", status=500)
    with pytest.raises(CliError, match="answered 500") as raised:
        client.models()
    assert raised.value.code == ExitCode.UNAVAILABLE


def test_a_fault_of_the_server_names_the_request_by_which_its_log_has_it(
    client: Client, server: ScriptedServer
) -> None:
    fault = {"detail": "see the log under this id", "code": "internal_error", "request_id": "r-1"}
    server.add("/v1/models", fault, status=500)
    with pytest.raises(CliError, match="see the log under this id: r-1"):
        client.models()


def test_a_server_with_tls_must_show_a_certificate(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with (
        socket.create_server(("127.0.0.1", 0)) as plain,
        context.wrap_socket(plain, server_side=True) as tls,
        listening(tls),
    ):
        client = Client(f"https://127.0.0.1:{tls.getsockname()[1]}", patience_s=0.01)
        with pytest.raises(CliError, match="certificate"):
            client.models()


@contextlib.contextmanager
def listening(tls: ssl.SSLSocket) -> Iterator[None]:
    """Shake hands with whoever comes and hang up."""
    done = threading.Event()

    def answer() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                tls.accept()[0].close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        done.set()
        tls.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_another_kind_of_server_is_told_apart(client: Client, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", b"<html>hello</html>")
    with pytest.raises(CliError, match="does not answer like renderq"):
        client.get(ID)


@pytest.mark.parametrize(
    "url", ["ftp://somewhere", "not a url", "http://", "http://[::1", "http://h:99999", "http://h\x07"]
)
def test_a_url_that_cannot_be_called_is_a_mistake_of_the_user(url: str) -> None:
    with pytest.raises(CliError) as raised:
        Client(url).models()
    assert raised.value.code == ExitCode.USAGE


def test_a_job_is_followed_to_its_end_at_the_pace_the_server_asks_for(
    client: Client, server: ScriptedServer
) -> None:
    path = f"/v1/jobs/{ID}"
    server.add(path, job("queued"), Retry_After="4")
    server.add(path, job("unheard_of"))
    server.add(path, job("completed"))
    rests: list[float] = []
    states = [state["status"] for state in client.follow(ID, rests.append)]
    assert states == ["queued", "unheard_of", "completed"]
    assert rests == [4.0, 0.5]


def test_a_followed_job_is_waited_for_while_the_server_is_away(server: ScriptedServer) -> None:
    path = f"/v1/jobs/{ID}"
    server.add(path, {"detail": "away"}, status=503, Retry_After="0")
    client = Client(server.url, patience_s=0.01)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            server.add(path, job("completed"))

    assert [state["status"] for state in client.follow(ID, rest)] == ["completed"]
    assert len(rests) >= 3


def test_a_followed_job_that_is_refused_is_not_waited_for(client: Client, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", {"detail": "unknown"}, status=404)
    with pytest.raises(CliError, match="unknown"):
        next(client.follow(ID, lambda _: pytest.fail("it rested")))


def test_an_id_cannot_leave_its_place_in_the_path(client: Client, server: ScriptedServer) -> None:
    with pytest.raises(CliError):
        client.get("../models?x=1")
    assert server.calls[0].path == "/v1/jobs/..%2Fmodels%3Fx%3D1"


@pytest.mark.parametrize(
    ("header", "expected"), [("3", 3.0), ("0", 0.0), ("-5", 0.0), ("600", 30.0), ("soon", 0.0)]
)
def test_the_asked_rest_is_read_within_reason(header: str, expected: float) -> None:
    assert rest_s(httpx2.Response(503, headers={"Retry-After": header})) == expected


def test_the_asked_rest_may_be_a_date() -> None:
    date = formatdate(time.time() + 10, usegmt=True)
    assert rest_s(httpx2.Response(503, headers={"Retry-After": date})) == pytest.approx(10, abs=1.5)


def test_only_what_may_go_away_is_tried_again() -> None:
    request = httpx2.Request("GET", "http://x")
    assert should_retry(httpx2.ConnectError("refused"))
    assert not should_retry(ValueError())
    for status, again in {
        400: False,
        404: False,
        409: False,
        422: False,
        429: True,
        500: False,
        503: True,
    }.items():
        answer = httpx2.Response(status, request=request)
        assert bool(should_retry(httpx2.HTTPStatusError("x", request=request, response=answer))) is again
