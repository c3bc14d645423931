"""What the compiler made is kept for the next worker of the same kind, on this machine or another.

Each boot of a worker compiles into a folder of its own. Before, what is kept is unpacked there, if its bytes
have the hash that stands in SQL; afterwards, if anything is new, the folder is packed and kept: in the
operator's folder, in the artifact store, and its hash in SQL. Nothing of this ever fails a worker: what
cannot be used is told in one line and made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core import archive, compile_caches
from core.errors import AppError, DamagedArchive
from core.log import get_logger
from tasks import live_folder
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from core.artifacts import ArtifactStore
    from core.db import Database
    from core.settings import Settings
    from core.tables import CompileCache as Kept

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LIVE = "live"
#: An archive unpacks to so many times its size at most.
EXPANSION = 20
_GB = 1e9
_TROUBLE = (AppError, OSError, *DATABASE_ERRORS)
#: Of the compiler's own files: those that mean something only while it runs.
_PASSING = (".lock", ".tmp")

_STORED = "the copy in the store is used"

_log = get_logger()


def key_of(facts: Mapping[str, Any]) -> str:
    """Name what is kept for workers of these facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class CompileCache:
    """The compiler's files of one boot of a worker."""

    def __init__(
        self,
        settings: Settings,
        worker_id: str,
        database: Database,
        artifacts: ArtifactStore,
        facts: Mapping[str, Any],
    ) -> None:
        self._folder = settings.compile_cache_folder
        self._most_bytes = int(settings.compile_cache_gb * _GB)
        self._live = self._folder / LIVE / worker_id
        self._database = database
        self._artifacts = artifacts
        self._facts = facts
        self._key = key_of(facts)
        self._restored: set[str] = set()
        self._told: dict[str, object] = {}
        self._lock: int | None = None

    def restore(self) -> dict[str, object]:
        """Have the compiler work in this worker's folder, with what is kept in it if that can be used.

        Returns:
            Facts for the preparation record: ``result`` is ``hit``, ``miss`` or ``off``.
        """
        if self.begin()["result"] == "off":
            return self._told
        try:
            self._told = self._fill()
        except _TROUBLE as error:
            self._told = self._ignore(error)
        self._restored = self._files()
        return self._told

    def begin(self) -> dict[str, object]:
        """Have the compiler work in this worker's folder, and leave alone what is kept."""
        try:
            self._begin()
        except OSError as error:
            _log.warning("compile_cache.no_folder", error=_words(error))
            self._told = {"result": "off", "reason": _words(error)}
        else:
            self._told = {"result": "miss", "reason": "a process died with it, so it is made anew"}
        return self._told

    def save(self) -> dict[str, object]:
        """Keep what the compiler made, if there is anything new.

        Returns:
            The same facts, with what was kept.
        """
        if self._told["result"] == "off":
            return self._told
        new = self._files() - self._restored
        if not new:
            return self._told
        started = time.monotonic()
        try:
            kept = self._keep()
        except _TROUBLE as error:
            _log.warning("compile_cache.not_kept", error=_words(error))
            return self._told | {"not_kept": _words(error)}
        seconds = round(time.monotonic() - started, 3)
        return self._told | {"new_files": len(new), "kept_bytes": kept, "keeping_seconds": seconds}

    def close(self) -> None:
        """Let go of the folder, as the end of the process does: the next worker deletes it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _begin(self) -> None:
        self._live.parent.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = live_folder.hold(self._live)
        shutil.rmtree(self._live, ignore_errors=True)
        self._live.mkdir(mode=0o700)
        os.environ[FOLDER_VARIABLE] = str(self._live)

    def _fill(self) -> dict[str, object]:
        live_folder.remove_dead(self._live.parent)
        with self._database.transaction() as session:
            kept = compile_caches.find_kept(session, self._key)
        if kept is None:
            return {"result": "miss", "reason": "nothing is kept yet for this model, device and versions"}
        data = self._read(kept)
        archive.unpack(data, self._live, most_bytes=EXPANSION * len(data))
        return {"result": "hit", "bytes": len(data)}

    def _read(self, kept: Kept) -> bytes:
        if kept.bytes > self._most_bytes:
            raise _too_large(kept.bytes)
        file = self._file(kept.sha256)
        data = _read_file(file)
        if data is not None and _is(data, kept):
            with suppress(OSError):  # another user's
                os.utime(file)  # used now, so it is pruned late
            return data
        if data is not None:
            _log.warning("compile_cache.file_differs", file=str(file), advice="it is ignored and replaced")
        data = self._artifacts.get(compile_caches.archive_key(self._key, kept.sha256))
        if not _is(data, kept):
            raise DamagedArchive("The archive in the artifact store differs from the hash in the database.")
        try:
            self._write(file, data)
        except OSError as error:
            _log.warning("compile_cache.not_kept", error=_words(error), advice=_STORED)
        return data

    def _ignore(self, error: Exception) -> dict[str, object]:
        _log.warning("compile_cache.ignored", key=self._key, error=_words(error))
        with suppress(OSError):
            self._begin()  # without what may have been unpacked
        return {"result": "miss", "reason": _words(error)}

    def _keep(self) -> int:
        data = archive.pack(self._live, wanted=_lasts)
        if len(data) > self._most_bytes:
            raise _too_large(len(data))
        sha256 = hashlib.sha256(data).hexdigest()
        self._artifacts.put(compile_caches.archive_key(self._key, sha256), data)
        self._write(self._file(sha256), data)
        with self._database.transaction() as session:
            compile_caches.keep(session, key=self._key, sha256=sha256, size=len(data), facts=self._facts)
        self._prune(self._file(sha256))
        return len(data)

    def _file(self, sha256: str) -> Path:
        return self._folder / f"{self._key}-{sha256}.tar.gz"

    def _write(self, file: Path, data: bytes) -> None:
        """Write whole or not at all; two workers that write the same do no harm."""
        part = self._live.with_suffix(".part")
        try:
            part.write_bytes(data)
            part.replace(file)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)  # it takes room on a disk that may be full
            raise

    def _prune(self, newest: Path) -> None:
        """Delete the files of the folder that were not used for longest, until the rest fits."""
        found = {file: stat for file in self._folder.glob("*.tar.gz") if (stat := _stat(file)) is not None}
        others = sorted(found.keys() - {newest}, key=lambda file: found[file].st_mtime, reverse=True)
        left = self._most_bytes
        for file in [newest] * (newest in found) + others:
            left -= found[file].st_size
            if left < 0:
                with suppress(OSError):  # another user's
                    file.unlink(missing_ok=True)

    def _files(self) -> set[str]:
        found = (path.relative_to(self._live) for path in self._live.rglob("*") if path.is_file())
        return {str(name) for name in found if _lasts(name)}


def forget_live(settings: Settings, worker_id: str) -> None:
    """Delete the folder of a worker that ends."""
    live_folder.forget(settings.compile_cache_folder / LIVE / worker_id)


def _stat(file: Path) -> os.stat_result | None:
    with suppress(OSError):  # another worker has deleted it
        return file.stat()
    return None


def _lasts(name: Path) -> bool:
    return "locks" not in name.parts and name.suffix not in _PASSING


def _too_large(size: int) -> DamagedArchive:
    return DamagedArchive(f"The archive has {size} bytes, more than RENDERQ_COMPILE_CACHE_GB allows.")


def _is(data: bytes, kept: Kept) -> bool:
    return len(data) == kept.bytes and hashlib.sha256(data).hexdigest() == kept.sha256


def _words(error: Exception) -> str:
    return error.message if isinstance(error, AppError) else f"{type(error).__name__}: {error}"


def _read_file(file: Path) -> bytes | None:
    """What is kept on this machine; None where there is nothing that this process can read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("compile_cache.file_unreadable", error=_words(error), advice=_STORED)
        return None
