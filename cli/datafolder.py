"""The folder in which `renderq up` keeps everything, and the lock that gives it to one `up` at a time."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.exits import CliError, ExitCode
from cli.valkey import fits_socket

PRIVATE = "renderq-"


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where things are: database and artifacts by the defaults of the settings, the rest named here."""

    root: Path

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def socket_note(self) -> Path:
        """Names the private folder of the socket, where there is one."""
        return self.root / "socket-folder"

    @property
    def lock(self) -> Path:
        return self.root / "up.lock"


@contextmanager
def hold_folder(root: Path) -> Iterator[DataFolder]:
    """Make the folder and lock it for this process; raise `CliError` when another `up` holds it."""
    folder = DataFolder(Path(os.path.abspath(root.expanduser())))  # noqa: PTH100 - resolve() would follow a link
    try:
        folder.valkey.mkdir(parents=True, exist_ok=True)
        folder.logs.mkdir(exist_ok=True)
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CliError(f"cannot write to the data folder {folder.root}: {error.strerror}") from error
    try:
        _take(lock, folder)
        yield folder
    finally:
        os.close(lock)  # gives the lock back; the kernel does the same for a process that was killed


def _take(lock: int, folder: DataFolder) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 20).decode().strip() or "unknown"
        raise CliError(
            f"another renderq (process {pid}) runs in {folder.root}: "
            "use that one, or give another folder with --data",
            ExitCode.UNAVAILABLE,
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


@contextmanager
def socket_in(folder: DataFolder) -> Iterator[Path]:
    """The path of Valkey's socket: in the data folder, or in a private folder where that path is too long."""
    path = folder.valkey / "valkey.sock"
    if fits_socket(path):
        yield path
        return
    private = _left_by_killed(folder) or Path(tempfile.mkdtemp(prefix=PRIVATE))
    folder.socket_note.write_text(str(private))
    try:
        yield private / "valkey.sock"
    finally:
        shutil.rmtree(private, ignore_errors=True)
        folder.socket_note.unlink(missing_ok=True)


def _left_by_killed(folder: DataFolder) -> Path | None:
    """The private folder of an `up` that was killed; used again, so that its Valkey is found too."""
    try:
        private = Path(folder.socket_note.read_text())
        state = private.lstat()
    except (OSError, ValueError):
        return None
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
    return private if is_ours and private.name.startswith(PRIVATE) and private.is_absolute() else None
