"""Downloads: whole, in part, conditional, and the reasons why there is nothing to download."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.routes.content import CHUNK_BYTES
from core.artifacts import artifact_key
from core.ids import new_id
from tests.api.parts import Worker, assert_problem

DATA = bytes(range(256))
ETAG = f'"{hashlib.sha256(DATA).hexdigest()}"'


@pytest.fixture
def url(submit: Callable[..., dict[str, Any]], worker: Worker) -> str:
    job = submit(n=2)
    worker.complete(job["id"], DATA, b"second")
    return str(job["urls"]["content"])


def test_the_bytes_come_with_their_digest_and_a_safe_name(client: TestClient, url: str) -> None:
    answer = client.get(url)
    assert answer.status_code == 200
    assert answer.content == DATA
    headers = answer.headers
    assert headers["etag"] == ETAG
    assert headers["content-type"] == "image/png"
    assert headers["content-length"] == "256"
    assert headers["accept-ranges"] == "bytes"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "private, max-age=31536000, immutable"
    job_id = url.split("/")[-2]
    assert headers["content-disposition"] == f'inline; filename="renderq-{job_id}-0.png"'
    assert "sandbox" in headers["content-security-policy"]


def test_each_file_has_its_index(client: TestClient, url: str) -> None:
    assert client.get(f"{url}?index=1").content == b"second"
    assert client.get(f"{url}?index=0").content == DATA


def test_a_file_larger_than_one_read_comes_whole(
    client: TestClient, submit: Callable[..., dict[str, Any]], worker: Worker
) -> None:
    data = DATA * (CHUNK_BYTES // 256) * 2 + b"end"
    job = submit()
    worker.complete(job["id"], data)
    assert client.get(job["urls"]["content"]).content == data
    tail = client.get(job["urls"]["content"], headers={"Range": f"bytes={CHUNK_BYTES - 2}-"})
    assert tail.content == data[CHUNK_BYTES - 2 :]


@pytest.mark.parametrize(
    ("wanted", "part", "content_range"),
    [
        ("bytes=0-9", DATA[:10], "bytes 0-9/256"),
        ("bytes=250-", DATA[250:], "bytes 250-255/256"),
        ("bytes=-6", DATA[250:], "bytes 250-255/256"),
        ("bytes=-999", DATA, "bytes 0-255/256"),
        ("bytes=255-9999", DATA[255:], "bytes 255-255/256"),
    ],
)
def test_a_part_is_sent_as_a_part(
    client: TestClient, url: str, wanted: str, part: bytes, content_range: str
) -> None:
    answer = client.get(url, headers={"Range": wanted})
    assert answer.status_code == 206
    assert answer.content == part
    assert answer.headers["content-range"] == content_range
    assert answer.headers["content-length"] == str(len(part))
    assert answer.headers["etag"] == ETAG


@pytest.mark.parametrize("wanted", ["bytes=256-", "bytes=9999-10000", "bytes=-0"])
def test_a_part_behind_the_end_is_refused(client: TestClient, url: str, wanted: str) -> None:
    answer = client.get(url, headers={"Range": wanted})
    assert_problem(answer, 416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */256"


@pytest.mark.parametrize(
    "wanted", ["bytes=0-1,4-5", "bytes=5-2", "bytes=", "bytes=-", "lines=1-2", "bytes=a-b"]
)
def test_a_range_that_is_not_served_gives_the_whole_file(client: TestClient, url: str, wanted: str) -> None:
    answer = client.get(url, headers={"Range": wanted})
    assert answer.status_code == 200
    assert answer.content == DATA


def test_a_part_of_another_version_gives_the_whole_file(client: TestClient, url: str) -> None:
    fresh = client.get(url, headers={"Range": "bytes=0-9", "If-Range": ETAG})
    stale = client.get(url, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
    assert (fresh.status_code, stale.status_code) == (206, 200)


@pytest.mark.parametrize("known", [ETAG, f"W/{ETAG}", "*", f'"x", {ETAG}'])
def test_a_known_file_is_not_sent_again(client: TestClient, url: str, known: str) -> None:
    answer = client.get(url, headers={"If-None-Match": known})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["etag"] == ETAG


def test_another_digest_is_sent_the_file(client: TestClient, url: str) -> None:
    assert client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_job_in_the_queue_has_no_file_yet(
    client: TestClient, submit: Callable[..., dict[str, Any]]
) -> None:
    answer = client.get(submit()["urls"]["content"])
    assert_problem(answer, 409, "not_ready")
    assert answer.headers["retry-after"] == "1"


def test_a_running_job_has_no_file_yet(
    client: TestClient, submit: Callable[..., dict[str, Any]], worker: Worker
) -> None:
    job = submit()
    worker.claim(job["id"])
    assert_problem(client.get(job["urls"]["content"]), 409, "not_ready")


def test_a_failed_job_says_why_it_has_no_file(
    client: TestClient, submit: Callable[..., dict[str, Any]], worker: Worker
) -> None:
    job = submit()
    worker.fail(job["id"], "out_of_memory", "the GPU has no room")
    answer = client.get(job["urls"]["content"])
    problem = assert_problem(answer, 409, "no_result")
    assert "failed" in problem["detail"]
    assert "the GPU has no room" in problem["detail"]
    assert "retry-after" not in answer.headers


def test_a_canceled_job_has_no_file(client: TestClient, submit: Callable[..., dict[str, Any]]) -> None:
    job = submit()
    client.post(job["urls"]["cancel"])
    assert "canceled" in assert_problem(client.get(job["urls"]["content"]), 409, "no_result")["detail"]


def test_an_index_behind_the_last_file_is_not_found(client: TestClient, url: str) -> None:
    assert "0 to 1" in assert_problem(client.get(f"{url}?index=2"), 404, "not_found")["detail"]


@pytest.mark.parametrize("index", ["-1", "x", "1.5", "", "10000", "0&index=1"])
def test_an_index_that_is_no_number_is_refused(client: TestClient, url: str, index: str) -> None:
    problem = assert_problem(client.get(f"{url}?index={index}"), 422, "invalid_query")
    assert problem["errors"][0]["field"] == "index"


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-9"}])
def test_a_deleted_file_is_gone(client: TestClient, url: str, headers: dict[str, str]) -> None:
    client.app.state.services.artifacts.delete(artifact_key(url.split("/")[-2], 1, 0, "png"))
    assert_problem(client.get(url, headers=headers), 410, "gone")


def test_the_file_of_no_job_is_not_found(client: TestClient) -> None:
    assert_problem(client.get(f"/v1/jobs/{new_id()}/content"), 404, "not_found")


def test_head_gives_the_headers_of_the_file(client: TestClient, url: str) -> None:
    answer = client.head(url)
    assert answer.status_code == 200
    assert answer.headers["content-length"] == "256"
    assert answer.headers["etag"] == ETAG
