"""Where the made files are kept: a folder, memory or S3, behind one class.

A key names the attempt that made the file. Rows refer to the files of the completing attempt only, so a
file that another attempt left behind is never seen and upkeep can remove it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store

from core.errors import Gone, StoreUnavailable
from core.room import lacks_room
from core.settings import s3_allows_http

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


_S3_CLIENT: "ClientConfig" = {"connect_timeout": "5s", "timeout": "120s"}
_S3_RETRY: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""A caller waits for an answer: better a clear error soon than the library's three minutes."""
_HALF_WRITTEN = re.compile(r"#\d+$")
"""The end of a name that the library writes to before it renames it; it neither lists nor deletes these."""


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """A file that an attempt has stored under ``key`` and that becomes visible when the attempt completes."""

    index: int
    key: str
    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    seed: int
    frames: int | None = None
    fps: float | None = None
    duration_s: float | None = None
    thumbnail_key: str | None = None
    thumbnail_bytes: int | None = None
    thumbnail_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class KeyParts:
    """Whose file a key names."""

    job_id: str
    attempt: int


def artifact_key(job_id: str, attempt: int, name: int | str, extension: str) -> str:
    """Return the key of one file of one attempt, ``extension`` without its dot."""
    return f"jobs/{job_id}/{attempt}/{name}.{extension}"


def parse_key(key: str) -> KeyParts | None:
    """Return whose file ``key`` names, or None when it is not one of ours."""
    parts = key.split("/")
    if len(parts) != 4 or parts[0] != "jobs" or not parts[2].isdecimal():
        return None
    return KeyParts(parts[1], int(parts[2]))


class ArtifactStore:
    """Files by key. Writing is atomic: a key is either absent or whole."""

    def __init__(self, url: str) -> None:
        """Open ``file:///folder`` (made if missing), ``memory://`` or ``s3://bucket/prefix``.

        S3 credentials come from the environment variables of AWS or from the machine's role.
        """
        self.url = url
        self._store = _open(url)
        self._folder = folder_of(url)

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``, replacing what was there."""
        with _translated(key, reads=False):
            obstore.put(self._store, key, data)

    def get(self, key: str) -> bytes:
        """Return the whole file; Gone when there is none."""
        with _translated(key):
            return bytes(obstore.get(self._store, key).bytes())

    def open_range(self, key: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``; fewer at the end of the file."""
        with _translated(key):
            size = obstore.head(self._store, key)["size"]
            end = min(start + length, size)
            if start >= end:
                return b""
            return bytes(obstore.get_range(self._store, key, start=start, end=end))

    def lacks_room(self) -> str | None:
        """Return in words that a folder's disk is full; None when it is not, or is no folder."""
        return None if self._folder is None else lacks_room(self._folder)

    def delete(self, key: str) -> None:
        """Remove the file; nothing happens when there is none."""
        try:
            with _translated(key):
                if self._folder is not None and _HALF_WRITTEN.search(key):
                    (self._folder / key).unlink()
                else:
                    obstore.delete(self._store, key)
        except Gone:
            return

    def list(self, prefix: str = "jobs/", before: datetime | None = None) -> Iterator[str]:
        """Yield the keys below ``prefix`` in no particular order, or those that were written ``before``.

        In a folder these include what a killed process has left half written, as keys that can be deleted.
        """
        with _translated(prefix, reads=False):
            for chunk in obstore.list(self._store, prefix):
                for meta in chunk:
                    if before is None or meta["last_modified"] < before:
                        yield meta["path"]
        if self._folder is not None:
            yield from _half_written(self._folder, prefix, before)


def folder_of(url: str) -> Path | None:
    """Return the folder that ``url`` names; None when it names another kind of store."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _half_written(folder: Path, prefix: str, before: datetime | None) -> Iterator[str]:
    for place, _, names in os.walk(folder / prefix):
        for file in (Path(place) / name for name in names if _HALF_WRITTEN.search(name)):
            with suppress(FileNotFoundError):  # it is whole now
                written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
                if before is None or written < before:
                    yield file.relative_to(folder).as_posix()


class _translated:  # noqa: N801 - used as a statement
    """Turn the storage library's errors into ours.

    "Not found" means a missing file where one is read; anywhere else it is the bucket that is missing.
    """

    def __init__(self, key: str, *, reads: bool = True) -> None:
        self._key = key
        self._reads = reads

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if self._reads and isinstance(error, NotFoundError | FileNotFoundError):
            raise Gone(f"There is no file {self._key} in the artifact store.") from error
        if isinstance(error, BaseError | OSError):
            # The library tells its whole inner state; the first line says what happened.
            reason = str(error).strip().partition("\n")[0]
            raise StoreUnavailable(f"The artifact store failed at {self._key}: {reason}") from error


def _open(url: str) -> ObjectStore:
    match urlsplit(url).scheme:
        case "file":
            return LocalStore(folder_of(url), automatic_cleanup=True, mkdir=True)
        case "memory":
            return _memory(url)
        case "s3":
            client: ClientConfig = {**_S3_CLIENT, "allow_http": s3_allows_http()}
            # One request for each deletion is what every S3-like service understands.
            return S3Store.from_url(
                url, config={"disable_bulk_delete": True}, client_options=client, retry_config=_S3_RETRY
            )
    raise ValueError(f"not an artifact store: {url!r}; use file:///folder, s3://bucket/prefix or memory://")


@cache
def _memory(_url: str) -> MemoryStore:
    """Return one memory for each URL, so that the parts of one process meet in it."""
    return MemoryStore()
