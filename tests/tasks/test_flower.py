"""Who may see Flower, what it may do, and how it fares with Redis."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.settings import Settings
from tasks.app import publish
from tasks.flower import NotAllowed, run_flower
from tests.fixtures.flower_process import PASSWORD, FlowerProcess, start_flower
from tests.fixtures.plain import http
from tests.fixtures.redis import Valkey
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.xdist_group("flower")

PAGES = ("/", "/workers", "/worker/any", "/tasks", "/task/any", "/tasks/datatable", "/broker")
MORE = ("/metrics", "/static/css/flower.css", "/login", "/logout", "/none", "/api/workers", "/api/tasks")


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory, session_valkey: Valkey) -> Iterator[FlowerProcess]:
    with start_flower(tmp_path_factory.mktemp("flower"), session_valkey.url) as flower:
        yield flower


@pytest.fixture(scope="module")
def on_loopback(tmp_path_factory: pytest.TempPathFactory, session_valkey: Valkey) -> Iterator[FlowerProcess]:
    with start_flower(tmp_path_factory.mktemp("flower"), session_valkey.url, protected=False) as flower:
        yield flower


@pytest.mark.parametrize("path", [*PAGES, *MORE])
def test_nothing_answers_without_the_right_credentials(protected: FlowerProcess, path: str) -> None:
    for auth in (None, ("operator", "wrong"), ("wrong", PASSWORD), ("", "")):
        for method in ("GET", "POST", "OPTIONS"):
            answer = http.request(method, protected.url + path, auth=auth)
            assert (answer.status_code, answer.text) == (401, "Unauthorized\n")
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize("header", ["Basic", "Basic %%%", "Bearer b3BlcmF0b3I6eA==", "Basic \N{CEDILLA}"])
def test_a_header_that_is_no_credentials_is_refused_like_none(protected: FlowerProcess, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")}
    assert http.get(protected.url + "/tasks", headers=headers).status_code == 401


def test_the_right_credentials_open_pages_api_and_metrics(protected: FlowerProcess) -> None:
    for path in ("/", "/tasks", "/broker", "/api/workers", "/api/tasks", "/metrics"):
        assert protected.get(path).status_code == 200, path


def test_a_health_check_of_this_machine_needs_no_credentials(protected: FlowerProcess) -> None:
    assert protected.get("/healthcheck", auth=None).text == "OK"


def test_credentials_stand_neither_in_the_process_list_nor_in_the_log(protected: FlowerProcess) -> None:
    protected.get("/tasks", auth=("operator", PASSWORD + "x"))
    assert PASSWORD not in protected.command()
    assert PASSWORD not in protected.text()


def test_its_buttons_do_nothing_unless_allowed(protected: FlowerProcess) -> None:
    answer = http.post(f"{protected.url}/api/task/revoke/any", auth=protected.auth)
    assert (answer.status_code, answer.text) == (403, "Read only mode is enabled")


def test_allowed_buttons_work_with_credentials(tmp_path: Path, redis_url: str) -> None:
    with start_flower(tmp_path, redis_url, "--allow-control") as flower:
        answer = http.post(f"{flower.url}/api/task/revoke/any", auth=flower.auth)
        assert answer.status_code == 200


def test_on_loopback_without_credentials_a_request_must_name_this_machine(on_loopback: FlowerProcess) -> None:
    assert on_loopback.get("/tasks").status_code == 200
    for host in ("localhost:5555", "[::1]:5555"):
        assert on_loopback.get("/tasks", headers={"Host": host}).status_code == 200
    assert on_loopback.get("/tasks", headers={"Host": "rebound.example:5555"}).status_code == 403


@pytest.mark.parametrize("path", ["/api/tasks", "/api/workers"])
def test_its_api_is_closed_without_credentials(on_loopback: FlowerProcess, path: str) -> None:
    answer = on_loopback.get(path, headers={"Origin": "https://other.example"})
    assert (answer.status_code, answer.text) == (403, "closed: set RENDERQ_FLOWER_BASIC_AUTH\n")
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "flower.example"])
def test_beyond_loopback_it_does_not_start_without_credentials(address: str) -> None:
    with pytest.raises(NotAllowed, match="RENDERQ_FLOWER_BASIC_AUTH"):
        run_flower(Settings.load(), address, 0, allow_control=False)


def test_its_buttons_are_not_offered_to_everybody() -> None:
    with pytest.raises(NotAllowed, match="--allow-control"):
        run_flower(Settings.load(), "127.0.0.1", 0, allow_control=True)


def test_it_hears_of_tasks_again_after_redis_was_away_and_ends_though_redis_hangs(
    tmp_path: Path, own_valkey: Valkey
) -> None:
    with start_flower(tmp_path, own_valkey.url) as flower:
        wait_until(lambda: heard(flower, own_valkey, "before"), what="a task")
        own_valkey.kill()
        wait_until(lambda: "flower.hears_nothing" in flower.text(), what="the loss of Redis")
        own_valkey.start()
        wait_until(lambda: heard(flower, own_valkey, "after"), what="a task after the restart")
        assert flower.below() == {}
        own_valkey.freeze()
        flower.process.send_signal(signal.SIGTERM)
        assert flower.process.wait(30) == 0


def heard(flower: FlowerProcess, valkey: Valkey, job_id: str) -> bool:
    assert publish(job_id, "tiny", 3, settings=Settings.load(redis_url=valkey.url))
    return bool(flower.tasks_of(job_id))
