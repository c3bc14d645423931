"""Every way in which a batch can be wrong: refused with row and field named, and nothing queued."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from starlette.types import Message

from api.bulk_requests import BATCH_PARTS
from api.errors import Refused
from api.upload import IN_MEMORY_BYTES, UPLOAD_LIMIT_BYTES, UploadPlaces, receive_order
from tests.api.parts import ORDER, assert_problem
from tests.fixtures.small_disk import small_disk

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.usefixtures("database_kind"),
]

TEMPLATE = {"model": "tiny", "prompt": "a {colour} house"}
Wrong = tuple[int | None, str]


@pytest.fixture(autouse=True)
def nothing_is_queued(client: TestClient, count_jobs: Callable[[], int]) -> Iterator[None]:
    yield
    assert count_jobs() == 0
    assert client.get("/v1/batches").json()["data"] == []


def send(client: TestClient, content: bytes, filename: str = "a.csv", **parts: Any) -> Any:
    data = {"template": json.dumps(TEMPLATE)} | parts
    return client.post("/v1/batches", data=data, files={"file": (filename, content)})


async def wait_for_order(request: Request) -> None:
    async with receive_order(request, BATCH_PARTS, UploadPlaces()):
        pass


def wrong(problem: dict[str, Any]) -> list[Wrong]:
    return [(error["row"], error["field"]) for error in problem["errors"]]


# --- tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "where", "words"),
    [
        (b"", [(None, "file")], "empty"),
        (b"\xef\xbb\xbf", [(None, "file")], "empty"),
        (b"colour\n", [(None, "file")], "no rows"),
        (b"colour\nr\xf6d\n", [(None, "file")], "line 2"),
        (b"colour\nr\0d\n", [(None, "file")], "NUL"),
        (b"colour,colour\nred,blue\n", [(None, "colour")], "one name"),
        (b"colour,\nred,blue\n", [(None, "file")], "no name"),
        (b"red\nblue\n", [(None, "template.prompt"), (None, "red")], "colour"),
        (b"colour,size\nred,small\n", [(None, "size")], "size"),
        (b"colour\nred\nblue,small\n", [(2, "colour")], "row 2"),
        (b'colour\n"red\nblue\n', [(1, "file")], "never closed"),
        (b"colour,width\nred,65\nblue,64\nwhite,sixty\n", [(1, "width"), (3, "width")], "row 1"),
        (b"colour,n\nred,99\nblue,0\n", [(1, "n"), (2, "n")], "row 2"),
        (b"row,colour\n1,red\n", [(1, "row")], "row"),
        (b"colour\n" + b"x" * 60_000 + b"\n", [(1, "colour")], "50000"),
    ],
)
def test_a_bad_table_is_refused_with_row_and_field(
    client: TestClient, content: bytes, where: list[Wrong], words: str
) -> None:
    problem = assert_problem(send(client, content), 422, "invalid_request")
    assert wrong(problem) == where
    assert words in json.dumps(problem["errors"])


def test_a_table_of_a_row_too_many_is_refused(client: TestClient) -> None:
    content = b"colour\n" + b"red\n" * 10_001
    problem = assert_problem(send(client, content), 422, "invalid_request")
    assert wrong(problem) == [(10_001, "file")]
    assert problem["errors"][0]["limit"] == 10_000


def test_every_bad_row_of_a_large_table_is_told(client: TestClient) -> None:
    content = b"colour,width\n" + b"red,64\nred,65\n" * 1000
    problem = assert_problem(send(client, content), 422, "invalid_request")
    assert wrong(problem) == [(row, "width") for row in range(2, 2001, 2)]
    assert "and 995 more" in problem["detail"]
    assert len(problem["detail"]) < 1000


@pytest.mark.parametrize("filename", ["a.xlsx", "a", "", "a.csv.exe", "csv", ".csv/"])
def test_a_file_of_an_unknown_kind_is_refused(client: TestClient, filename: str) -> None:
    answer = client.post(
        "/v1/batches",
        content=form(
            part("file", "colour\nred\n", filename=filename), part("template", json.dumps(TEMPLATE))
        ),
        headers=FORM,
    )
    problem = assert_problem(answer, 422, "invalid_request")
    assert wrong(problem) == [(None, "file")]
    assert ".csv" in problem["detail"]


@pytest.mark.parametrize(
    ("line", "words"),
    [("{", "JSON"), ("[1]", "object"), ('{"colour": 1, "colour": 2}', "twice"), ('{"colour": NaN}', "NaN")],
)
def test_a_bad_line_of_json_is_refused(client: TestClient, line: str, words: str) -> None:
    problem = assert_problem(
        send(client, f'{{"colour": "red"}}\n{line}\n'.encode(), "a.jsonl"), 422, "invalid_request"
    )
    assert problem["errors"][0]["row"] == 2
    assert words in problem["detail"]


# --- templates and bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"template": TEMPLATE | {"prompt": "a {size} house"}}, (None, "template.prompt")),
        ({"template": TEMPLATE | {"prompt": "a {colour house"}}, (None, "template.prompt")),
        ({"template": TEMPLATE | {"prompt": "a {0.__class__}"}}, (None, "template.prompt")),
        ({"template": TEMPLATE | {"prompt": "a {colour.__class__}"}}, (None, "template.prompt")),
        ({"template": TEMPLATE | {"prompt": "{colour!r}"}}, (None, "template.prompt")),
        ({"template": TEMPLATE | {"promt": "a house"}}, (None, "template.promt")),
        ({"template": TEMPLATE | {"width": 65}}, (None, "template.width")),
        ({"template": TEMPLATE | {"model": "nobody"}}, (None, "template.model")),
        ({"template": [1]}, (None, "template")),
        ({"rows": []}, (None, "rows")),
        ({"rows": None}, (None, "rows")),
        ({"rows": {"colour": "red"}}, (None, "rows")),
        ({"rows": [{"colour": "red"}, 5]}, (2, "rows")),
        ({"rows": [{"colour": "red"}, {"colour": "blue", "seed": -1}]}, (2, "seed")),
        ({"rows": [{"colour": "red"}, {}]}, (2, "colour")),
        ({"grid": {}}, (None, "grid")),
        ({"grid": {"seed": []}}, (None, "grid.seed")),
        ({"grid": {"seed": list(range(20_000))}}, (None, "grid")),
        ({"name": ""}, (None, "name")),
        ({"name": 5}, (None, "name")),
        ({"name": "x" * 201}, (None, "name")),
        ({"name": "a\0b"}, (None, "name")),
        ({"prompt": "a house"}, (None, "prompt")),
        ({"windows": None}, (None, "windows")),
        ({"window": "22:00-06:00"}, (None, "window")),
        ({"window": {"start": "22:00", "end": "06:00"}}, (None, "window.timezone")),
        ({"window": {"start": "25:00", "end": "06:00", "timezone": "UTC"}}, (None, "window.start")),
        ({"window": {"start": "22:00", "end": "22:00", "timezone": "UTC"}}, (None, "window.end")),
        ({"window": {"start": "22:00", "end": "06:00", "timezone": "Mars/Base"}}, (None, "window.timezone")),
    ],
    ids=lambda part: json.dumps(part)[:60],
)
def test_a_bad_order_is_refused_with_row_and_field(
    client: TestClient, body: dict[str, Any], where: Wrong
) -> None:
    answer = client.post("/v1/batches", json={"template": TEMPLATE, "rows": [{"colour": "red"}]} | body)
    problem = assert_problem(answer, 422, "invalid_request")
    assert where in wrong(problem)
    assert len(problem["errors"]) <= 2
    assert len(answer.content) < 8000


def test_what_is_wrong_with_name_window_and_rows_is_told_at_once(client: TestClient) -> None:
    body = {"name": "", "window": 5, "colour": 1, "rows": [ORDER | {"n": 0}, ORDER | {"seed": -1}]}
    problem = assert_problem(client.post("/v1/batches", json=body), 422, "invalid_request")
    assert set(wrong(problem)) == {(None, "name"), (None, "window"), (None, "colour"), (1, "n"), (2, "seed")}


def test_a_field_of_a_request_beside_the_template_is_told_where_it_belongs(client: TestClient) -> None:
    problem = assert_problem(client.post("/v1/batches", json=ORDER), 422, "invalid_request")
    assert "stand in template" in problem["errors"][0]["message"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "malformed_json"),
        (b"[]", "malformed_json"),
        (b'{"rows": [', "malformed_json"),
        (b'{"rows": [{"seed": NaN}]}', "malformed_json"),
        (b'{"rows": [], "rows": []}', "duplicate_key"),
        (b'{"rows": [' + b"{}," * 25_001 + b"{}]}", "malformed_json"),
        (b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed_json"),
        (b'{"name": "\xff"}', "malformed_json"),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_a_body_that_is_no_object_is_refused(client: TestClient, content: bytes, code: str) -> None:
    answer = client.post("/v1/batches", content=content, headers={"Content-Type": "application/json"})
    assert_problem(answer, 400, code)


@pytest.mark.parametrize(
    "kind", ["", "text/csv", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x"]
)
def test_a_body_of_another_type_is_refused_and_the_types_named(client: TestClient, kind: str) -> None:
    answer = client.post("/v1/batches", content=b"a,b\n1,2\n", headers={"Content-Type": kind})
    problem = assert_problem(answer, 415, "unsupported_media_type")
    assert "multipart/form-data" in problem["detail"]


# --- too large ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("application/json", b'{"name": "'),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n',
        ),
    ],
)
def test_a_line_of_fifty_megabytes_is_refused_before_all_of_it_has_come(kind: str, begin: bytes) -> None:
    chunks = iter([begin, *[b"x" * 1024 * 1024] * 50])
    received: list[int] = []

    async def receive() -> Message:
        chunk = next(chunks)
        received.append(len(chunk))
        return {"type": "http.request", "body": chunk, "more_body": True}

    request = Request(
        {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}, receive
    )
    with pytest.raises(Refused) as refused:
        asyncio.run(wait_for_order(request))
    assert (refused.value.code, refused.value.status) == ("body_too_large", 413)
    assert sum(received) <= UPLOAD_LIMIT_BYTES + 1024 * 1024


def test_a_file_that_does_not_arrive_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.upload.UPLOAD_TIMEOUT_S", 0.05)
    begun = iter([b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na,b'])

    async def receive() -> Message:
        for chunk in begun:
            return {"type": "http.request", "body": chunk, "more_body": True}
        return await asyncio.get_running_loop().create_future()  # the caller has gone quiet

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(Refused) as refused:
        asyncio.run(wait_for_order(request))
    assert refused.value.code == "body_timeout"


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/schedules"])
def test_a_large_body_without_room_on_the_disk_is_sent_back_for_a_while(
    client: TestClient, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"x" * IN_MEMORY_BYTES
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with small_disk(tmp_path, 1) as mounted:
        if not mounted:
            pytest.skip("this user may not mount a disk that can be filled")
        answers = [
            client.post(path, files={"file": ("a.csv", b"colour\n" + large)}),
            client.post(path, content=b'{"name": "' + large, headers={"Content-Type": "application/json"}),
        ]
    for answer in answers:
        assert_problem(answer, 503, "disk_full")
        assert int(answer.headers["retry-after"]) > 0


@pytest.fixture
def no_place_is_free(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.app.state, "upload_places", UploadPlaces(0))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("no_place_is_free")
@pytest.mark.parametrize("path", ["/v1/batches", "/v1/schedules"])
def test_a_large_body_too_many_is_sent_back_for_a_while_and_small_ones_are_not(
    client: TestClient, path: str
) -> None:
    large = b"x" * IN_MEMORY_BYTES
    answers = [
        client.post(path, files={"file": ("a.csv", b"colour\n" + large)}),
        client.post(path, content=b'{"name": "' + large, headers={"Content-Type": "application/json"}),
    ]
    for answer in answers:
        assert_problem(answer, 503, "too_many_uploads")
        assert int(answer.headers["retry-after"]) > 0
    assert_problem(client.post(path, json={}), 422, "invalid_request")


def test_a_place_is_kept_until_the_body_is_gone_and_free_again_whatever_happens(client: TestClient) -> None:
    places = UploadPlaces(1)
    with places.watch() as grown, places.watch() as other:
        grown(IN_MEMORY_BYTES)
        assert places.free == 1
        grown(IN_MEMORY_BYTES + 1)
        grown(IN_MEMORY_BYTES + 2)
        assert places.free == 0
        with pytest.raises(Refused):
            other(UPLOAD_LIMIT_BYTES)
    assert places.free == 1
    before = client.app.state.upload_places.free  # type: ignore[attr-defined]
    send(client, b"colour\n" + b"\xff" * (IN_MEMORY_BYTES + 1))
    assert client.app.state.upload_places.free == before > 1  # type: ignore[attr-defined]


def test_a_part_that_is_too_large_is_refused(client: TestClient) -> None:
    answer = send(client, b"colour\nred\n", template=json.dumps(TEMPLATE | {"prompt": "x" * 300_000}))
    assert "Part exceeded maximum size of 256KB" in assert_problem(answer, 400, "malformed_form")["detail"]


# --- forms ----------------------------------------------------------------------------------------------

FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def part(name: str, value: str | bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--x--\r\n"


FILE = part("file", "colour\nred\n", "a.csv")


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (form(part("template", "{}")), "file", "no part 'file'"),
        (form(part("file", "colour\nred\n")), "file", "uploaded file"),
        (form(FILE, FILE), "file", "twice"),
        (form(FILE, part("name", "a"), part("name", "b")), "name", "twice"),
        (form(FILE, part("rows", "[]")), "rows", "rows are in the file"),
        (form(FILE, part("colour", "red")), "colour", "not a part"),
        (form(FILE, part("template", "{}", "t.json")), "template", "not an uploaded file"),
        (form(FILE, part("a", "x", "b.csv")), "a", "not a part"),
        (form(FILE, part("", "x")), "", "not a part"),
        (form(FILE, part("é" * 500, "x")), "é" * 50, "not a part"),
    ],
    ids=lambda part: repr(part)[-40:],
)
def test_a_form_with_wrong_parts_is_refused_and_the_part_named(
    client: TestClient, content: bytes, field: str, words: str
) -> None:
    answer = client.post("/v1/batches", content=content, headers=FORM)
    problem = assert_problem(answer, 422, "invalid_request")
    assert problem["errors"][0]["field"].startswith(field)
    assert words in problem["errors"][0]["message"]
    assert len(answer.content) < 2000


def test_all_wrong_parts_are_told_at_once(client: TestClient) -> None:
    answer = client.post("/v1/batches", content=form(part("a", "1"), part("b", "1")), headers=FORM)
    assert [field for _, field in wrong(assert_problem(answer, 422, "invalid_request"))] == ["a", "b", "file"]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("template", "a {colour} house", "malformed_json"),
        ("template", "", "malformed_json"),
        ("template", '{"a": 1, "a": 2}', "duplicate_key"),
        ("grid", "{", "malformed_json"),
        ("window", b'"\xff"', "malformed_json"),
        ("name", b"N\xfcsse", "malformed_form"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(
    client: TestClient, name: str, value: str | bytes, code: str
) -> None:
    answer = client.post("/v1/batches", content=form(FILE, part(name, value)), headers=FORM)
    problem = assert_problem(answer, 400, code)
    assert [error["field"] for error in problem["errors"]] == [name]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (form(FILE), "multipart/form-data"),
        (form(FILE), "multipart/form-data; boundary="),
        (form(FILE), 'multipart/form-data; boundary="' + "y" * 80 + '"'),
        (form(FILE), "multipart/form-data; boundary=y"),
        (b"not a form", "multipart/form-data; boundary=x"),
        (FILE, "multipart/form-data; boundary=x"),
        (FILE[:-20], "multipart/form-data; boundary=x"),
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\nContent-Type: a/b\r\n\r\nx\r\n--x--\r\n", "multipart/form-data; boundary=x"),
        (form(*[part("name", "a")] * 200), "multipart/form-data; boundary=x"),
        (form(*[part("file", "a", "a.csv")] * 200), "multipart/form-data; boundary=x"),
    ],
    ids=lambda part: repr(part)[-40:],
)
def test_a_broken_form_is_refused(client: TestClient, content: bytes, kind: str) -> None:
    answer = client.post("/v1/batches", content=content, headers={"Content-Type": kind})
    assert answer.status_code in {400, 422}
    assert_problem(answer, answer.status_code, answer.json()["code"])
