"""Answers that do not come: an order is sent again under its key, and nothing else is done twice."""

import pytest

from cli import lost
from cli.client import Client
from cli.exits import ExitCode
from tests.cli.conftest import Run
from tests.cli.job_answers import ID, job
from tests.fixtures.scripted_server import ScriptedServer


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "PATIENCE_S", 0.01)


def test_an_order_whose_answer_is_lost_is_sent_again_though_the_patience_for_a_server_is_over(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.hang_up("/v1/jobs")
    server.hang_up("/v1/jobs")
    server.add("/v1/jobs", job("queued"), status=202)
    client = Client(server.url, patience_s=0.0)
    assert client.submit({"prompt": "a boat"}, "key-1")["id"] == ID
    assert [call.headers["Idempotency-Key"] for call in server.calls] == ["key-1"] * 3
    assert capsys.readouterr().err.count("sent again, as the same one (key key-1)") == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/v1/jobs", ("submit", "a boat", "--model", "tiny", "--no-wait")),
        (
            "/v1/batches",
            ("batch", "submit", "--model", "tiny", "--template", "a boat", "--grid", '{"seed":[1]}'),
        ),
    ],
)
def test_an_order_that_is_never_answered_tells_the_key_that_was_drawn_for_it(
    renderq: Run, server: ScriptedServer, path: str, command: tuple[str, ...]
) -> None:
    server.hang_up(path)
    result = renderq(*command)
    keys = {call.headers["Idempotency-Key"] for call in server.calls}
    assert len(server.calls) == lost.LEAST_SENDS
    assert len(keys) == 1
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "may have been taken" in result.stderr
    assert f"--idempotency-key {keys.pop()}" in result.stderr
    assert "renderq up" not in result.stderr


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/v1/jobs", ("submit", "a boat", "--model", "tiny", "--no-wait")),
        (
            "/v1/batches",
            ("batch", "submit", "--model", "tiny", "--template", "a boat", "--grid", '{"seed":[1]}'),
        ),
    ],
)
def test_an_order_whose_answer_was_lost_and_that_is_refused_when_sent_again_tells_its_key(
    renderq: Run, server: ScriptedServer, path: str, command: tuple[str, ...]
) -> None:
    errors = [{"field": "image", "row": 1, "message": "image names no file"}]
    server.hang_up(path)
    server.add(path, {"code": "invalid_request", "detail": "no", "errors": errors}, status=422)
    result = renderq(*command)
    (key,) = {call.headers["Idempotency-Key"] for call in server.calls}
    assert result.exit_code == ExitCode.USAGE
    assert "names no file" in result.stderr
    assert f"--idempotency-key {key}" in result.stderr


def test_an_order_that_reached_nobody_is_not_said_to_be_taken(
    renderq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RENDERQ_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("cli.client.TRY_S", 0.01)
    result = renderq("submit", "a boat", "--model", "tiny")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "renderq up" in result.stderr
    assert "may have been taken" not in result.stderr


def test_an_order_that_a_fault_of_the_server_answers_tells_its_key(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/v1/jobs", {"detail": "a fault", "code": "internal_error"}, status=500)
    result = renderq("submit", "a boat", "--model", "tiny", "--idempotency-key", "mine")
    assert len(server.calls) == 1
    assert "--idempotency-key mine" in result.stderr


@pytest.mark.parametrize(
    ("path", "command", "look"),
    [
        ("/v1/batches/b/retry", ("batch", "retry", "b"), "renderq batch get b"),
        ("/v1/schedules/s/fire", ("schedule", "fire", "s"), "renderq schedule firings s"),
        (
            "/v1/schedules",
            ("schedule", "add", "--name", "x", "--disabled", "--at", "2030-01-01T00:00:00Z",
             "--model", "tiny", "--template", "a boat", "--grid", '{"seed":[1]}'),
            "renderq schedule list",
        ),
    ],
)  # fmt: skip
def test_what_must_not_happen_twice_is_not_repeated_and_names_where_to_look(
    renderq: Run, server: ScriptedServer, path: str, command: tuple[str, ...], look: str
) -> None:
    server.hang_up(path)
    result = renderq(*command)
    assert len(server.calls) == 1
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert f"`{look}`" in result.stderr
