"""Whose a compiler's working folder is: a lock beside it is held for as long as its process lives.

The folder above may be shared by workers of other users, installations and machines. What a database says of
them proves nothing; a lock that can be taken proves that whoever had it is dead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Another process holds a lock for no longer than it takes to delete a folder.
PATIENCE_S = 5.0
_PAUSE_S = 0.05
_SUFFIXES = ("", ".part", ".lock")


def hold(folder: Path) -> int:
    """Take the lock of ``folder`` for this process; call it before the folder is made.

    Returns:
        What holds it until it is closed or the process ends.

    Raises:
        OSError: Another process has it and does not let go, or there are no locks on this file system.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(BlockingIOError):
            if (held := _try(_lock_of(folder), os.O_CREAT)) is not None:
                return held
        if time.monotonic() > deadline:
            raise BlockingIOError(f"another process holds {_lock_of(folder)}")
        time.sleep(_PAUSE_S)


def remove_dead(above: Path) -> None:
    """Delete all in ``above`` whose process is dead."""
    for name in {_owner(path) for path in above.glob("*")}:
        with suppress(OSError), _taken(above / name):  # held, or another user's
            forget(above / name)


def forget(folder: Path) -> None:
    """Delete a folder, what was half written beside it, and its lock; each if it may be deleted."""
    for suffix in _SUFFIXES:
        _remove(folder.with_name(folder.name + suffix))


@contextmanager
def _taken(folder: Path) -> Iterator[None]:
    """Have the lock while it is deleted.

    Raises:
        OSError: A process holds it, or has just taken it anew.
    """
    held = _try(_lock_of(folder), os.O_CREAT)
    if held is None:
        raise BlockingIOError(f"another process took {_lock_of(folder)} anew")
    try:
        yield
    finally:
        os.close(held)


def _try(lock: Path, flags: int) -> int | None:
    """The lock, taken; None when its file was deleted in between."""
    opened = os.open(lock, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(opened), lock.stat()):
            return opened
    except FileNotFoundError:
        pass
    except OSError:
        os.close(opened)
        raise
    os.close(opened)
    return None


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _owner(path: Path) -> str:
    return path.name.removesuffix(".part").removesuffix(".lock")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
