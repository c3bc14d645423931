"""What the compiler made is kept, believed only by its hash in SQL, and never why a worker fails."""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from core import compile_caches, workers
from core.artifacts import ArtifactStore
from core.ids import new_id
from core.tables import Worker
from tasks.broker import Broker
from tasks.compile_cache import FOLDER_VARIABLE, LIVE, CompileCache, forget_live, key_of
from tasks.upkeep import Upkeep, forget_compile_caches
from tests.fixtures.workers import Stage

pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True),
    pytest.mark.xdist_group("compile cache"),
]

FACTS: dict[str, Any] = {"model": "tiny", "versions": {"torch": "2.13.0"}, "device": {"type": "cpu"}}
MADE = {"fxgraph/ab/graph": b"a graph", "cd/code.so": b"\x7fELF code"}


@pytest.fixture(autouse=True)
def compilers_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "")


class Boots:
    """Boots of workers on one stage; each has a cache of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.folder = stage.settings.compile_cache_folder

    def boot(self, facts: dict[str, Any] = FACTS, **settings: Any) -> CompileCache:
        stage = self.stage
        worker_id = new_id()
        with stage.database.transaction() as session:
            workers.register_worker(
                session,
                worker_id=worker_id,
                name=worker_id,
                host="test",
                pid=1,
                model="tiny",
                queue="render.tiny",
                policy={},
                device={},
            )
        chosen = stage.settings.model_copy(update=settings)
        return CompileCache(chosen, worker_id, stage.database, stage.artifacts, facts)

    def keep(self) -> dict[str, object]:
        """One whole start of a worker that compiles."""
        cache = self.boot()
        cache.restore()
        compile_something(cache)
        return cache.save()

    def file(self) -> Path:
        (file,) = self.folder.glob("*.tar.gz")
        return file

    def archive_keys(self) -> list[str]:
        return list(self.stage.artifacts.list(compile_caches.PREFIX))


def compile_something(cache: CompileCache, made: dict[str, bytes] = MADE) -> None:
    for name, content in made.items():
        path = live() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def live() -> Path:
    """Where the compiler works now."""
    return Path(os.environ[FOLDER_VARIABLE])


def found() -> dict[str, bytes]:
    return {str(path.relative_to(live())): path.read_bytes() for path in live().rglob("*") if path.is_file()}


@pytest.fixture
def boots(stage: Stage) -> Boots:
    return Boots(stage)


@pytest.fixture
def kept(boots: Boots) -> Boots:
    told = boots.keep()
    assert told["result"] == "miss"
    assert told["new_files"] == 2
    return boots


def test_the_next_worker_of_the_same_kind_begins_with_what_the_first_made(kept: Boots) -> None:
    cache = kept.boot()
    told = cache.restore()
    assert (told["result"], found()) == ("hit", MADE)
    assert cache.save() == told  # nothing new, nothing kept


def test_what_is_new_is_added(kept: Boots) -> None:
    cache = kept.boot()
    cache.restore()
    compile_something(cache, {"ef/more.so": b"more"})
    assert cache.save()["new_files"] == 1
    kept.boot().restore()
    assert found() == MADE | {"ef/more.so": b"more"}


@pytest.mark.parametrize(
    "facts",
    [
        FACTS | {"model": "other"},
        FACTS | {"versions": {"torch": "2.14.0"}},
        FACTS | {"device": {"type": "cuda"}},
    ],
)
def test_a_worker_of_another_kind_does_not_see_it(kept: Boots, facts: dict[str, Any]) -> None:
    assert kept.boot(facts).restore()["result"] == "miss"
    assert found() == {}


def test_another_machine_takes_it_from_the_artifact_store(kept: Boots, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert kept.boot(compile_cache_dir=elsewhere).restore()["result"] == "hit"
    assert found() == MADE
    assert len(list(elsewhere.glob("*.tar.gz"))) == 1


def spoiled(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]
    yield data[:-1] + bytes([data[-1] ^ 1])
    yield b""
    yield data + b"x"


@pytest.mark.parametrize("way", range(4))
def test_a_file_that_was_changed_is_not_believed_and_is_replaced(
    kept: Boots, way: int, capsys: pytest.CaptureFixture[str]
) -> None:
    good = kept.file().read_bytes()
    kept.file().write_bytes(list(spoiled(good))[way])
    assert kept.boot().restore()["result"] == "hit"  # from the store
    assert found() == MADE
    assert kept.file().read_bytes() == good


def test_a_file_that_cannot_be_read_does_not_hide_the_one_in_the_store(kept: Boots) -> None:
    file = kept.file()
    file.unlink()
    file.mkdir()
    assert kept.boot().restore()["result"] == "hit"
    assert found() == MADE


@pytest.mark.parametrize("way", range(4))
def test_an_archive_that_was_changed_in_the_store_is_ignored_and_made_anew(kept: Boots, way: int) -> None:
    (key,) = kept.archive_keys()
    good = kept.stage.artifacts.get(key)
    kept.file().unlink()
    kept.stage.artifacts.put(key, list(spoiled(good))[way])
    cache = kept.boot()
    told = cache.restore()
    assert (told["result"], found()) == ("miss", {})
    assert "differs from the hash in the database" in str(told["reason"])
    compile_something(cache)
    cache.save()
    assert kept.boot().restore()["result"] == "hit"


def test_an_archive_that_is_gone_is_made_anew(kept: Boots) -> None:
    (key,) = kept.archive_keys()
    kept.file().unlink()
    kept.stage.artifacts.delete(key)
    assert kept.boot().restore()["result"] == "miss"


def test_a_hash_that_fits_makes_a_bad_archive_no_better(kept: Boots) -> None:
    import hashlib

    bad = b"no archive at all"
    sha256 = hashlib.sha256(bad).hexdigest()
    key = key_of(FACTS)
    kept.stage.artifacts.put(compile_caches.archive_key(key, sha256), bad)
    with kept.stage.database.transaction() as session:
        compile_caches.keep(session, key=key, sha256=sha256, size=len(bad), facts=FACTS)
    told = kept.boot().restore()
    assert (told["result"], found()) == ("miss", {})
    assert "cannot be unpacked" in str(told["reason"])


def test_a_store_and_a_database_that_fail_fail_no_worker(boots: Boots) -> None:
    shutil.rmtree(boots.stage.folder / "artifacts")
    (boots.stage.folder / "artifacts").write_text("no folder")
    cache = boots.boot()
    cache.restore()
    compile_something(cache)
    assert "artifact store failed" in str(cache.save()["not_kept"])


def test_a_folder_that_cannot_be_made_turns_it_off(boots: Boots) -> None:
    boots.folder.write_text("no folder")
    cache = boots.boot()
    assert cache.restore()["result"] == "off"
    assert os.environ[FOLDER_VARIABLE] == ""
    assert cache.save()["result"] == "off"


def test_a_cache_in_whose_presence_a_process_died_is_left_alone(kept: Boots) -> None:
    assert kept.boot().begin()["result"] == "miss"
    assert found() == {}


def test_two_workers_that_start_at_once_each_keep_a_whole_archive(boots: Boots) -> None:
    first, second = boots.boot(), boots.boot()
    for cache in (first, second):
        cache.restore()
        compile_something(cache)
    assert sum(path.is_dir() for path in (boots.folder / LIVE).iterdir()) == 2
    first.save()
    second.save()
    assert boots.boot().restore()["result"] == "hit"


def test_the_folder_is_pruned_to_its_size(boots: Boots) -> None:
    boots.folder.mkdir(parents=True)
    old = boots.folder / "old.tar.gz"
    old.write_bytes(b"x" * 9_000)
    os.utime(old, (1, 1))
    cache = boots.boot(compile_cache_gb=9_100 / 1e9)
    cache.restore()
    compile_something(cache)
    cache.save()
    assert not old.exists()
    assert len(list(boots.folder.glob("*.tar.gz"))) == 1


def test_what_is_too_large_is_not_kept(boots: Boots) -> None:
    cache = boots.boot(compile_cache_gb=1e-8)
    cache.restore()
    compile_something(cache)
    assert "more than RENDERQ_COMPILE_CACHE_GB allows" in str(cache.save()["not_kept"])
    assert boots.archive_keys() == []


def test_a_folder_goes_with_its_worker_or_with_the_next_start(boots: Boots) -> None:
    stale = boots.folder / LIVE / new_id()
    stale.mkdir(parents=True)
    stale.with_suffix(".part").write_bytes(b"half")
    stale.with_suffix(".lock").touch()
    cache = boots.boot()
    cache.restore()
    assert {path.name.partition(".")[0] for path in stale.parent.iterdir()} == {live().name}
    mine = live()
    assert mine.stat().st_mode & 0o777 == 0o700
    forget_live(boots.stage.settings, mine.name)
    assert list(mine.parent.iterdir()) == []


def test_a_folder_in_use_is_left_alone_whatever_the_database_says_of_its_worker(boots: Boots) -> None:
    """Another installation may share the folder above."""
    first = boots.boot()
    first.restore()
    compile_something(first)
    theirs = live()
    with boots.stage.database.transaction() as session:
        session.execute(delete(Worker))
    second = boots.boot()
    second.restore()
    assert theirs.is_dir()
    first.close()
    boots.boot().restore()
    assert not theirs.exists()
    assert live().is_dir()


def test_a_file_of_another_user_is_a_hit(kept: Boots, monkeypatch: pytest.MonkeyPatch) -> None:
    utime = os.utime

    def refuse(path: Path, times: tuple[float, float] | None = None) -> None:
        if path == kept.file():  # root, who runs some of these tests, is refused nothing
            raise PermissionError
        utime(path, times)

    monkeypatch.setattr(os, "utime", refuse)
    kept.stage.artifacts.delete(kept.archive_keys()[0])
    assert kept.boot().restore()["result"] == "hit"


def test_what_does_not_fit_on_the_disk_leaves_nothing_half_written(boots: Boots) -> None:
    cache = boots.boot()
    cache.restore()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            cache._write(boots.folder / "a.tar.gz", b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(boots.folder.rglob("*.part")) == []


def test_upkeep_deletes_archives_that_nothing_is_noted_of(
    kept: Boots, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = kept.stage
    orphan = compile_caches.archive_key("0" * 64, "1" * 64)
    stage.artifacts.put(orphan, b"x")
    stage.artifacts.put("jobs/1/1/0.png", b"a picture")
    artifacts = ArtifactStore(stage.settings.artifacts_url)
    upkeep = Upkeep(stage.settings, stage.database, artifacts, Broker(stage.settings))
    assert forget_compile_caches(upkeep) == 0
    assert orphan in kept.archive_keys(), "it is so young that its row may be on its way"
    monkeypatch.setattr("tasks.upkeep.YOUNG_ARCHIVE_S", -60.0)
    assert forget_compile_caches(upkeep) == 0
    (left,) = kept.archive_keys()
    assert left != orphan
    monkeypatch.setattr("tasks.upkeep.COMPILE_CACHE_LIFE_S", -1.0)
    assert forget_compile_caches(upkeep) == 1
    assert kept.archive_keys() == []
    assert stage.artifacts.get("jobs/1/1/0.png") == b"a picture"
