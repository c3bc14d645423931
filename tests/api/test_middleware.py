"""Request ids, the log line, safe headers, and the guard against other sites' pages."""

import asyncio

import pytest
import structlog
from fastapi.testclient import TestClient
from starlette.types import Message

from api.app import create_app
from core.ids import is_id
from core.settings import Settings
from tests.api.parts import BASE, ORDER, assert_problem

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("database_kind"),
]


def test_a_request_id_is_taken_over(shared_client: TestClient) -> None:
    answer = shared_client.get("/healthz", headers={"X-Request-Id": "my-id_1.2"})
    assert answer.headers["x-request-id"] == "my-id_1.2"


@pytest.mark.parametrize("given", ["", "a b", "a\tb", "x" * 129, "<script>", "ä"])
def test_a_request_id_that_could_forge_a_log_line_is_replaced(shared_client: TestClient, given: str) -> None:
    answer = shared_client.get("/healthz", headers={"X-Request-Id": given.encode()})
    assert is_id(answer.headers["x-request-id"])


def test_each_call_is_one_line_of_the_log(shared_client: TestClient) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        shared_client.get("/v1/jobs/%0A%1B[31mforged?x=secret", headers={"X-Request-Id": "r7"})
    (line,) = lines
    assert line["event"] == "http.answered"
    assert line["method"] == "GET"
    assert line["path"] == "/v1/jobs/%0A%1B[31mforged"
    assert line["status"] == 422
    assert line["duration_ms"] >= 0
    assert line["request_id"] == "r7"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches", "/v1/schedules"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_a_caller_who_hangs_up_is_no_fault_of_ours(shared_client: TestClient, path: str, kind: str) -> None:
    if (path, kind[0]) == ("/v1/jobs", "m"):
        return  # takes no forms
    messages = iter([{"type": "http.request", "body": b"--x\r\n", "more_body": True}])
    sent: list[Message] = []

    async def receive() -> Message:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "server": ("localhost", 80)}
    with structlog.testing.capture_logs() as lines:
        asyncio.run(shared_client.app(scope, receive, send))
    assert [(line["event"], line["log_level"], line["status"]) for line in lines] == [
        ("http.answered", "info", 499)
    ]
    assert sent == []


def test_answers_are_neither_kept_nor_guessed_at_nor_embedded(shared_client: TestClient) -> None:
    headers = shared_client.get("/v1/models").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_head_is_answered_where_get_is(shared_client: TestClient) -> None:
    assert shared_client.head("/healthz").status_code == 200
    assert shared_client.head("/v1/jobs").status_code == 200


# --- the guard ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8700",
        "LOCALHOST",
        "127.0.0.1:8700",
        "[::1]:8700",
        "192.168.1.5",
        "renderq.localhost",
    ],
)
def test_local_names_and_addresses_are_ours(shared_client: TestClient, host: str) -> None:
    assert shared_client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a:b:c", "["]
)
def test_a_name_that_a_foreign_page_could_point_at_us_is_refused(
    shared_client: TestClient, host: str
) -> None:
    answer = shared_client.get("/v1/jobs", headers={"Host": host})
    if host == "[":  # no host at all is in it
        assert answer.status_code == 200
    else:
        assert_problem(answer, 421, "misdirected_request")


def test_the_public_name_is_ours(settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://render.example:8443"})
    with TestClient(create_app(public), base_url=BASE) as client:
        for host in ("render.example", "render.example:8443"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200
        assert client.get("/healthz", headers={"Host": "other.example"}).status_code == 421


def test_behind_a_trusted_proxy_every_name_is_answered(settings: Settings) -> None:
    with TestClient(create_app(settings, any_host=True), base_url=BASE) as client:
        assert client.get("/healthz", headers={"Host": "api.internal"}).status_code == 200


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://["},
    {"Origin": "http://[evil]/"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_can_neither_submit_nor_cancel(
    client: TestClient, headers: dict[str, str]
) -> None:
    job = client.post("/v1/jobs", json=ORDER).json()
    assert_problem(client.post("/v1/jobs", json=ORDER, headers=headers), 403, "cross_site")
    assert_problem(client.post(job["urls"]["cancel"], headers=headers), 403, "cross_site")
    assert client.get(job["urls"]["self"]).json()["status"] == "queued"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": BASE},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": BASE.upper()},
    ],
    ids=str,
)
def test_a_page_of_our_own_can_submit(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/v1/jobs", json=ORDER, headers=headers).status_code == 202


def test_a_page_under_the_public_name_can_submit(settings: Settings) -> None:
    public = settings.model_copy(update={"public_url": "https://render.example"})
    with TestClient(create_app(public), base_url=BASE) as client:
        headers = {"Origin": "https://render.example"}
        assert client.post("/v1/jobs", json=ORDER, headers=headers).status_code == 202
