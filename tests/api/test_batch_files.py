"""All files of a batch together: the ZIP, the table, the contact sheet."""

import csv
import io
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api import sheet
from api.archive import CHUNK_BYTES, write_archive
from api.file_names import FileNames
from api.results_table import ResultsTable
from core.artifacts import ArtifactStore, artifact_key
from core.errors import StoreUnavailable
from core.tables import Artifact, Job
from tests.api.parts import BASE, Worker, assert_problem

ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)

TEMPLATE = {"model": "tiny", "prompt": "a {colour} house"}
ROWS = [
    {"colour": "red", "sku": "A/1"},
    {"colour": "white", "sku": "=cmd|'/c calc'!A1"},
    {"colour": "blue", "sku": "a_1"},
]
Batch = dict[str, Any]


def png(colour: tuple[int, int, int] = (200, 0, 0)) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(written, "PNG")
    return written.getvalue()


@pytest.fixture
def batch(client: TestClient) -> Batch:
    body = {"template": TEMPLATE | {"metadata": {"sku": "{sku}"}, "seed": 7}, "rows": ROWS}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 202, answer.text
    made: Batch = answer.json()
    return made


def unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def table_in(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))


# --- the ZIP --------------------------------------------------------------------------------------------


def test_the_zip_has_every_file_by_its_row_and_a_table_of_all_rows(
    client: TestClient, batch: Batch, worker: Worker
) -> None:
    worker.end(batch["id"], b"picture", fail_row=2)
    answer = client.get(batch["urls"]["content"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="renderq-{batch["id"]}.zip"'
    files = unpack(answer.content)
    assert list(files) == ["1.png", "3.png", "results.csv"]
    assert files["3.png"] == b"picture"
    table = table_in(files["results.csv"])
    assert [line["files"] for line in table] == ["1.png", "", "3.png"]
    assert (table[1]["status"], table[1]["error_code"]) == ("failed", "out_of_memory")


def test_files_are_stored_as_they_are(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"], b"x" * 10_000)
    with zipfile.ZipFile(io.BytesIO(client.get(batch["urls"]["content"]).content)) as archive:
        kinds = {entry.filename: entry.compress_type for entry in archive.infolist()}
    assert kinds == dict.fromkeys(("1.png", "2.png", "3.png"), zipfile.ZIP_STORED) | {
        "results.csv": zipfile.ZIP_DEFLATED
    }


def test_the_caller_names_the_files(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"], b"one", b"two", media_type="image/jpeg")
    files = unpack(client.get(batch["urls"]["content"], params={"name": "{sku}-{colour}.png"}).content)
    assert sorted(files) == sorted([
        "A_1-red-0.jpg", "A_1-red-1.jpg", "=cmd_'_c calc'!A1-white-0.jpg", "=cmd_'_c calc'!A1-white-1.jpg",
        "a_1-blue-0.jpg", "a_1-blue-1.jpg", "results.csv",
    ])  # fmt: skip
    equal = unpack(client.get(batch["urls"]["content"], params={"name": "{sku}_{index}"}).content)
    assert {"A_1_0.jpg", "a_1_0-2.jpg"} <= set(equal)


def test_while_the_batch_runs_the_zip_has_what_there_is(
    client: TestClient, batch: Batch, worker: Worker
) -> None:
    answer = client.get(batch["urls"]["content"])
    assert_problem(answer, 409, "not_ready")
    assert int(answer.headers["retry-after"]) > 0
    worker.release(batch["id"])
    jobs = {job["batch_row"]: job["id"] for job in client.get(batch["urls"]["jobs"]).json()["data"]}
    worker.complete(jobs[3], b"third")
    early = unpack(client.get(batch["urls"]["content"], params={"name": "{sku}"}).content)
    assert early["a_1-2.png"] == b"third", "the first row keeps its name for later"
    assert [line["status"] for line in table_in(early["results.csv"])] == ["queued", "queued", "completed"]


def test_a_batch_that_ended_without_a_file_has_no_zip(client: TestClient, batch: Batch) -> None:
    client.post(batch["urls"]["cancel"])
    assert "canceled" in assert_problem(client.get(batch["urls"]["content"]), 409, "no_result")["detail"]


@pytest.mark.parametrize(
    "name", ["{0.__class__}", "{row", "a/b", "{skuu}", "x" * 300, "{row!r}", "..\\{row}"]
)
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_bad_name_is_refused_before_anything_is_sent(
    client: TestClient, batch: Batch, worker: Worker, name: str
) -> None:
    worker.end(batch["id"])
    answer = client.get(batch["urls"]["content"], params={"name": name})
    problem = assert_problem(answer, 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == ["name"]
    if name == "{skuu}":
        assert problem["errors"][0]["row"] == 1
        assert "known: colour, id, index, row, seed, sku" in problem["detail"]


def test_a_deleted_file_is_left_out_and_told(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"], b"picture")
    job = client.get(batch["urls"]["jobs"]).json()["data"][-1]
    client.app.state.services.artifacts.delete(artifact_key(job["id"], 1, 0, "png"))  # type: ignore[attr-defined]
    files = unpack(client.get(batch["urls"]["content"]).content)
    assert "1.png" not in files
    assert [line["files"] for line in table_in(files["results.csv"])] == ["deleted: 1.png", "2.png", "3.png"]


class WatchedStore(ArtifactStore):
    """Counts the bytes that are out at one time, and fails where it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__(f"memory://{id(self)}")
        self.fails_at = fails_at
        self.longest_read = 0

    def open_range(self, key: str, start: int, length: int) -> bytes:
        if self.fails_at and self.fails_at in key and start:
            raise StoreUnavailable
        data = super().open_range(key, start, length)
        self.longest_read = max(self.longest_read, len(data))
        return data


def made_job(store: ArtifactStore, row: int, size: int) -> Job:
    key = artifact_key(f"job-{row}", 1, 0, "png")
    store.put(key, bytes(size))
    made = Artifact(job_id=f"job-{row}", index=0, key=key, media_type="image/png", bytes=size)
    plan = {"n": 1, "seed": 1, "width": 8, "height": 8}
    return Job(
        id=f"job-{row}", batch_row=row, batch_fields={}, plan=plan, state="completed", artifacts=[made]
    )


def test_a_large_file_is_sent_a_chunk_at_a_time() -> None:
    store = WatchedStore()
    jobs = [made_job(store, row, 3 * CHUNK_BYTES + 5) for row in (1, 2)]
    pieces = list(write_archive(jobs, FileNames(), ResultsTable([]), store))
    assert max(map(len, pieces)) <= CHUNK_BYTES
    assert store.longest_read <= CHUNK_BYTES
    assert [len(data) for data in list(unpack(b"".join(pieces)).values())[:2]] == [3 * CHUNK_BYTES + 5] * 2


def test_a_file_that_ends_early_leaves_a_zip_without_its_directory() -> None:
    store = WatchedStore()
    jobs = [made_job(store, row, 10) for row in (1, 2, 3)]
    store.put(jobs[1].artifacts[0].key, b"short")
    received = bytearray()
    with pytest.raises(StoreUnavailable, match="5 bytes instead of 10"):
        received.extend(
            piece for pieces in write_archive(jobs, FileNames(), ResultsTable([]), store) for piece in pieces
        )
    assert b"PK\x05\x06" not in received


def test_a_store_that_fails_in_the_middle_leaves_a_zip_without_its_directory() -> None:
    store = WatchedStore(fails_at="job-2")
    jobs = [made_job(store, row, CHUNK_BYTES + 1) for row in (1, 2, 3)]
    received = bytearray()

    def receive(pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            received.extend(piece)

    with pytest.raises(StoreUnavailable):
        receive(write_archive(jobs, FileNames(), ResultsTable([]), store))
    assert b"1.png" in received
    assert b"PK\x05\x06" not in received


def test_head_makes_no_zip(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"])
    answer = client.head(batch["urls"]["content"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/zip"
    assert answer.content == b""


# --- the table ------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_row_in_order(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"], b"one", b"two", fail_row=3)
    answer = client.get(batch["urls"]["results"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="renderq-{batch["id"]}.csv"'
    first, second, third = table_in(answer.content)
    assert [line["row"] for line in (first, second, third)] == ["1", "2", "3"]
    url = f"{BASE}/v1/jobs/{first['job_id']}/content?index="
    assert first["files"] == f"{url}0 | {url}1"
    assert (first["colour"], first["sku"], first["seed"], first["width"]) == ("red", "A/1", "7", "64")
    assert second["sku"] == "'=cmd|'/c calc'!A1"
    assert (third["status"], third["error_message"], third["files"]) == ("failed", "the GPU has no room", "")
    assert client.get(first["files"].split(" | ")[1]).content == b"two"


def test_the_table_can_be_read_before_anything_is_made(client: TestClient, batch: Batch) -> None:
    table = table_in(client.get(batch["urls"]["results"]).content)
    assert [line["status"] for line in table] == ["queued"] * 3


def test_a_row_that_was_ordered_again_stands_there_once(
    client: TestClient, batch: Batch, worker: Worker
) -> None:
    worker.end(batch["id"], fail_row=2)
    client.post(batch["urls"]["retry"])
    worker.end(batch["id"], b"again")
    table = table_in(client.get(batch["urls"]["results"]).content)
    assert [line["status"] for line in table] == ["completed"] * 3
    assert unpack(client.get(batch["urls"]["content"]).content)["2.png"] == b"again"


# --- the sheet ------------------------------------------------------------------------------------------


def size_of(answer: Any) -> tuple[int, int]:
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.format == "PNG"
        return picture.size


def test_the_sheet_shows_pictures_and_says_why_the_others_are_missing(
    client: TestClient, batch: Batch, worker: Worker
) -> None:
    waiting = client.get(batch["urls"]["sheet"])
    worker.end(batch["id"], png(), fail_row=2)
    answer = client.get(batch["urls"]["sheet"], params={"columns": 3})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/png"
    assert "link" not in answer.headers
    with Image.open(io.BytesIO(answer.content)) as picture:
        places = [picture.getpixel((picture.width * (2 * place + 1) // 6, 60)) for place in range(3)]
    assert places[0] == places[2] == (200, 0, 0) != places[1]
    assert size_of(waiting)[0] > 3 * sheet.LARGEST_TILE


@pytest.mark.parametrize("content", [b"no picture", None], ids=["broken", "deleted"])
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_file_that_cannot_be_drawn_does_no_harm(
    client: TestClient, batch: Batch, worker: Worker, content: bytes | None
) -> None:
    worker.end(batch["id"], png())
    for job in client.get(batch["urls"]["jobs"]).json()["data"]:
        files: ArtifactStore = client.app.state.services.artifacts  # type: ignore[attr-defined]
        files.delete(key := artifact_key(job["id"], 1, 0, "png"))
        if content is not None:
            files.put(key, content)
    assert client.get(batch["urls"]["sheet"]).status_code == 200


def test_a_video_is_a_tile_and_its_file_is_not_read(client: TestClient, batch: Batch, worker: Worker) -> None:
    worker.end(batch["id"], png(), media_type="video/mp4")
    with Image.open(io.BytesIO(client.get(batch["urls"]["sheet"]).content)) as picture:
        assert (200, 0, 0) not in {colour for _, colour in picture.getcolors(1 << 20) or []}


def test_a_long_batch_has_pages_that_lead_to_each_other(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.batch_files.ROWS_PER_PAGE", 2)
    body = {"template": {"model": "tiny", "prompt": "a house"}, "grid": {"seed": [1, 2, 3, 4, 5]}}
    url = client.post("/v1/batches", json=body).json()["urls"]["sheet"]
    answers = [client.get(url, params={"page": page, "columns": 2}) for page in (1, 2, 3)]
    assert [answer.links.keys() for answer in answers] == [{"next"}, {"prev", "next"}, {"prev"}]
    assert answers[0].links["next"]["url"] == f"{url}?columns=2&page=2"
    assert client.get(answers[2].links["prev"]["url"]).content == answers[1].content
    problem = assert_problem(client.get(url, params={"page": 4}), 422, "invalid_query")
    assert (problem["errors"][0]["field"], problem["errors"][0]["nearest"]) == ("page", 3)


@pytest.mark.parametrize("query", ["columns=0", "columns=21", "columns=x", "page=0", "page=-1", "page=10000"])
@ON_SQLITE
@pytest.mark.usefixtures("database_kind")
def test_a_bad_sheet_is_refused(client: TestClient, batch: Batch, query: str) -> None:
    problem = assert_problem(client.get(f"{batch['urls']['sheet']}?{query}"), 422, "invalid_query")
    assert [error["field"] for error in problem["errors"]] == [query.partition("=")[0]]


# --- columns with any header, separators ----------------------------------------------------------------


@ON_SQLITE
def test_files_can_be_named_by_a_column_with_dots_in_its_name(client: TestClient) -> None:
    template = TEMPLATE | {"metadata": {"Art.-Nr.": "{Art.-Nr.}"}}
    body = {"template": template, "rows": [{"colour": "red", "Art.-Nr.": "4711"}]}
    made = client.post("/v1/batches", json=body).json()
    Worker.of(client).end(made["id"], png())
    archive = client.get(made["urls"]["content"], params={"name": "{row}-{Art.-Nr.}"})
    assert set(unpack(archive.content)) == {"1-4711.png", "results.csv"}
    for name in ("{Art.-Nr}", "{row.__class__}", "{colour!r}"):
        refused = client.get(made["urls"]["content"], params={"name": name})
        assert_problem(refused, 422, "invalid_query")


@ON_SQLITE
@pytest.mark.parametrize(
    ("word", "mark"),
    [("comma", ","), ("semicolon", ";"), ("tab", "\t"), (",", ","), (";", ";"), ("\t", "\t"), (None, ",")],
)
def test_the_table_is_divided_as_the_caller_wants_it(
    client: TestClient, batch: Batch, word: str | None, mark: str
) -> None:
    answer = client.get(batch["urls"]["results"], params={"separator": word} if word else {})
    assert f'"row"{mark}"colour"{mark}"sku"{mark}' in answer.text


@ON_SQLITE
def test_another_separator_is_refused(client: TestClient, batch: Batch) -> None:
    assert_problem(client.get(batch["urls"]["results"] + "?separator=%7C"), 422, "invalid_query")
