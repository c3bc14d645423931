"""What Linux tells about a living process under ``/proc``."""

from pathlib import Path

PROC = Path("/proc")


def resident_kib(pid: int) -> int:
    """Resident memory without that of children."""
    return int(_status(pid, "VmRSS"))


def thread_count(pid: int) -> int:
    return int(_status(pid, "Threads"))


def open_files(pid: int) -> int:
    """Open handles: files, pipes, sockets and whatever else has a descriptor."""
    return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())


def children(pid: int) -> list[int]:
    """The living processes that any thread of this one has started; none once it is gone."""
    try:
        lists = [task.joinpath("children").read_text() for task in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return sorted(int(child) for text in lists for child in text.split())


def _status(pid: int, name: str) -> str:
    text = (PROC / str(pid) / "status").read_text()
    return text.partition(f"{name}:")[2].split()[0]
