"""The artifact store on a full S3 server, with the bucket and the variables that compose.yaml gives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.artifacts import ArtifactStore, artifact_key
from core.errors import Gone, StoreUnavailable
from tests.fixtures.compose import LocalStack, local_stack

pytestmark = pytest.mark.xdist_group("store")
KEY = artifact_key("j-1", 1, 0, "png")
PAGE = 1000
"""Keys that S3 gives in one answer."""
PART = 5 * 2**20
"""Bytes above which the library sends a file in parts."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStack]:
    with local_stack() as stack:
        stack.up("bucket")
        yield stack


@pytest.fixture
def variables(server: LocalStack, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What compose.yaml says to every process of ours about the store."""
    given = server.environment("migrate")
    for name in [name for name in given if name.startswith("AWS_")]:
        monkeypatch.setenv(name, given[name])
    return given


@pytest.fixture
def store(variables: dict[str, str], request: pytest.FixtureRequest) -> ArtifactStore:
    """The bucket, in a folder of the test's own."""
    return ArtifactStore(f"{variables['RENDERQ_ARTIFACTS_URL']}/{request.node.name}")


def test_the_url_as_it_stands_keeps_and_gives_back_a_file(variables: dict[str, str]) -> None:
    store = ArtifactStore(variables["RENDERQ_ARTIFACTS_URL"])
    store.put(KEY, b"\x89PNG\0\xff")
    assert store.get(KEY) == b"\x89PNG\0\xff"
    assert list(store.list()) == [KEY]
    store.delete(KEY)


@pytest.mark.parametrize(
    ("start", "length", "part"), [(0, 3, b"012"), (8, 100, b"89"), (10, 5, b""), (4, 0, b"")]
)
def test_a_part_of_a_file_can_be_read(store: ArtifactStore, start: int, length: int, part: bytes) -> None:
    store.put(KEY, b"0123456789")
    assert store.open_range(KEY, start, length) == part


def test_a_file_that_is_sent_in_parts_comes_back_whole(store: ArtifactStore) -> None:
    data = bytes(range(256)) * ((2 * PART + 77) // 256)
    store.put(KEY, data)
    assert store.get(KEY) == data
    assert store.open_range(KEY, PART - 3, 6) == data[PART - 3 : PART + 3]


def test_more_keys_than_one_answer_holds_are_all_listed(store: ArtifactStore) -> None:
    keys = {artifact_key(f"j-{number}", 1, 0, "png") for number in range(PAGE + 5)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    assert set(store.list()) == keys
    assert list(store.list("jobs/j-17/")) == [artifact_key("j-17", 1, 0, "png")]


def test_what_is_deleted_is_gone_and_deleting_it_again_does_nothing(store: ArtifactStore) -> None:
    store.put(KEY, b"x")
    store.delete(KEY)
    store.delete(KEY)
    assert list(store.list()) == []
    for read in (store.get, lambda key: store.open_range(key, 0, 1)):
        with pytest.raises(Gone):
            read(KEY)


def test_a_bucket_that_nobody_made_is_an_outage(variables: dict[str, str]) -> None:
    store = ArtifactStore("s3://never-made")
    with pytest.raises(StoreUnavailable):
        store.put(KEY, b"x")
    with pytest.raises(StoreUnavailable):
        list(store.list())


def test_without_the_word_for_plain_http_nothing_is_sent(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreUnavailable):
        ArtifactStore(variables["RENDERQ_ARTIFACTS_URL"]).put(KEY, b"x")
