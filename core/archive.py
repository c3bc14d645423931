"""A folder as one file: packed for keeping, unpacked only inside the folder that is named.

What is unpacked may run as code, so its hash is to be checked before; this module only sees to it that
nothing lands outside the folder and that it is not larger than expected.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from core.errors import DamagedArchive

_FASTEST = 1


def pack(folder: Path, *, wanted: Callable[[Path], bool] = lambda _: True) -> bytes:
    """Return the regular files below ``folder`` as a compressed archive, paths relative to it.

    Files that vanish meanwhile are left out.

    Args:
        folder: What to pack.
        wanted: Asked with the relative path of each file.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=_FASTEST) as archive:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and not path.is_symlink() and wanted(name):
                try:
                    archive.add(path, arcname=str(name), recursive=False)
                except FileNotFoundError:
                    continue
    return buffer.getvalue()


def unpack(data: bytes, folder: Path, *, most_bytes: int) -> None:
    """Unpack an archive into ``folder``, which exists.

    Raises:
        DamagedArchive: It is no archive, holds something else than files, would write outside the folder, or
            holds more than ``most_bytes``. Something of it may have been written.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            members = archive.getmembers()
            _check(members, most_bytes)
            archive.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DamagedArchive(f"The archive cannot be unpacked: {type(error).__name__}: {error}") from error


def _is_inside(member: tarfile.TarInfo) -> bool:
    name = PurePosixPath(member.name)
    return member.isreg() and not name.is_absolute() and ".." not in name.parts


def _check(members: list[tarfile.TarInfo], most_bytes: int) -> None:
    strange = next((member.name for member in members if not _is_inside(member)), None)
    if strange is not None:
        raise DamagedArchive(f"The archive holds something else than files of its folder: {strange!r}.")
    size = sum(member.size for member in members)
    if size > most_bytes:
        raise DamagedArchive(f"The archive holds {size} bytes; at most {most_bytes} are taken.")
