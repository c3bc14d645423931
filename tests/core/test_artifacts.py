"""One suite for every place where files may be kept."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.artifacts import ArtifactStore, KeyParts, artifact_key, parse_key
from core.errors import Gone, StoreUnavailable
from tests.core.s3_server import s3_server
from tests.fixtures.waiting import wait_until

KEY = "jobs/j-1/1/0.png"


@pytest.fixture(params=["file", "memory", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ArtifactStore]:
    if request.param == "file":
        yield ArtifactStore((tmp_path / "not yet there" / "files").as_uri())
    elif request.param == "memory":
        yield ArtifactStore(f"memory://{tmp_path.name}")
    else:
        with s3_server() as address:
            use_s3(monkeypatch, address)
            yield ArtifactStore("s3://pictures/of/ann")


def use_s3(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for name, value in {
        "AWS_ENDPOINT": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


def test_a_missing_bucket_is_an_outage_and_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        use_s3(monkeypatch, address)
        store = ArtifactStore("s3://missing/of/ann")
        with pytest.raises(StoreUnavailable):
            store.put(KEY, b"x")
        with pytest.raises(StoreUnavailable):
            list(store.list())


def test_what_is_put_can_be_got(store: ArtifactStore) -> None:
    store.put(KEY, b"\x89PNG\0\xff")
    assert store.get(KEY) == b"\x89PNG\0\xff"


def test_a_second_put_replaces_the_first(store: ArtifactStore) -> None:
    store.put(KEY, b"long and old")
    store.put(KEY, b"new")
    assert store.get(KEY) == b"new"


def test_an_empty_file_is_a_file(store: ArtifactStore) -> None:
    store.put(KEY, b"")
    assert store.get(KEY) == b""
    assert store.open_range(KEY, 0, 10) == b""


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 3, b"012"), (7, 3, b"789"), (8, 100, b"89"), (10, 5, b""), (99, 1, b""), (4, 0, b"")],
)
def test_a_part_can_be_read(store: ArtifactStore, start: int, length: int, expected: bytes) -> None:
    store.put(KEY, b"0123456789")
    assert store.open_range(KEY, start, length) == expected


def test_a_missing_file_is_gone(store: ArtifactStore) -> None:
    with pytest.raises(Gone, match=r"no file jobs/j-1/1/0\.png") as caught:
        store.get(KEY)
    assert (caught.value.code, caught.value.status) == ("gone", 410)
    with pytest.raises(Gone):
        store.open_range(KEY, 0, 1)


def test_a_deleted_file_is_gone_and_may_be_deleted_again(store: ArtifactStore) -> None:
    store.put(KEY, b"x")
    store.delete(KEY)
    store.delete(KEY)
    with pytest.raises(Gone):
        store.get(KEY)


def test_a_listing_has_the_keys_below_a_prefix(store: ArtifactStore) -> None:
    store.put("jobs/a/1/0.png", b"1")
    store.put("jobs/a/2/0.png", b"22")
    store.put("jobs/b/1/0.png", b"333")
    assert sorted(store.list()) == ["jobs/a/1/0.png", "jobs/a/2/0.png", "jobs/b/1/0.png"]
    assert sorted(store.list("jobs/a/")) == ["jobs/a/1/0.png", "jobs/a/2/0.png"]


def test_an_empty_store_lists_nothing(store: ArtifactStore) -> None:
    assert list(store.list()) == []


def test_many_writers_and_sweepers_at_once_do_not_disturb_each_other(store: ArtifactStore) -> None:
    def write_and_sweep(number: int) -> bytes:
        store.put(f"jobs/j/1/{number}.png", b"swept")
        store.delete(f"jobs/j/1/{number}.png")
        store.put(f"jobs/j/2/{number}.png", str(number).encode())
        return store.get(f"jobs/j/2/{number}.png")

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write_and_sweep, range(40))) == [str(number).encode() for number in range(40)]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path.as_uri())
    old, new = b"a" * 3_000_000, b"b" * 3_000_000
    store.put(KEY, old)
    done = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            seen.add(store.get(KEY))
        return seen

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        for _ in range(5):
            store.put(KEY, new)
            store.put(KEY, old)
        done.set()
        assert reading.result(30) <= {old, new}


def test_files_lie_in_the_folder_under_their_key(tmp_path: Path) -> None:
    ArtifactStore(tmp_path.as_uri()).put(KEY, b"x")
    assert (tmp_path / KEY).read_bytes() == b"x"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0.png"]


PUT_AGAIN_AND_AGAIN = """
import sys
from core.artifacts import ArtifactStore
store, picture = ArtifactStore(sys.argv[1]), bytes(20_000_000)
while True:
    store.put(sys.argv[2], picture)
"""


def kill_in_the_middle_of_a_put(folder: Path, key: str) -> str:
    """Return what a process has left that was killed while it kept a file."""
    while True:
        program = [sys.executable, "-c", PUT_AGAIN_AND_AGAIN, folder.as_uri(), key]
        with subprocess.Popen(program, cwd=Path(__file__).parents[2]) as process:
            wait_until(lambda: list(folder.rglob("*#*")), what="a file that is being written")
            process.kill()
        for left in folder.rglob("*#*"):
            return left.relative_to(folder).as_posix()


def test_what_a_killed_process_left_half_written_is_listed_and_can_be_deleted(tmp_path: Path) -> None:
    half = kill_in_the_middle_of_a_put(tmp_path, "jobs/j-2/1/0.png")
    store = ArtifactStore(tmp_path.as_uri())
    store.put(KEY, b"whole")
    assert half in store.list()
    assert parse_key(half) == KeyParts("j-2", 1)
    store.delete(half)
    store.delete(half)
    assert half not in store.list()
    assert KEY in store.list()


def test_files_of_one_prefix_do_not_show_under_another(tmp_path: Path) -> None:
    ArtifactStore((tmp_path / "a").as_uri()).put(KEY, b"x")
    with pytest.raises(Gone):
        ArtifactStore((tmp_path / "b").as_uri()).get(KEY)


def test_parts_of_one_process_meet_in_memory() -> None:
    ArtifactStore("memory://meeting").put(KEY, b"x")
    assert ArtifactStore("memory://meeting").get(KEY) == b"x"
    with pytest.raises(Gone):
        ArtifactStore("memory://elsewhere").get(KEY)


def test_a_store_that_fails_is_unavailable_for_now(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path.as_uri())
    (tmp_path / "jobs").write_bytes(b"a file where a folder should be")
    with pytest.raises(StoreUnavailable, match=KEY) as caught:
        store.put(KEY, b"x")
    assert (caught.value.code, caught.value.status) == ("artifact_store_unavailable", 503)


def test_another_kind_of_store_is_refused() -> None:
    with pytest.raises(ValueError, match="not an artifact store: 'ftp://host/x'"):
        ArtifactStore("ftp://host/x")


def test_a_key_names_job_and_attempt() -> None:
    assert artifact_key("j-1", 2, 0, "webp") == "jobs/j-1/2/0.webp"
    assert parse_key("jobs/j-1/2/0.webp") == KeyParts("j-1", 2)


@pytest.mark.parametrize(
    "key", ["jobs/j-1/x/0.png", "jobs/j-1/0.png", "notes/j-1/1/0.png", "", "jobs/a/1/2/3"]
)
def test_a_key_of_another_shape_is_nobodys(key: str) -> None:
    assert parse_key(key) is None
