"""A folder packed into one file, and unpacked inside its folder only."""

import io
import tarfile
from pathlib import Path

import pytest

from core import archive
from core.errors import DamagedArchive


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for member, content in members:
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("a/../../outside"),
        member("/outside"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.LNKTYPE, "../outside"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda each: each.name,
)
def test_nothing_is_unpacked_outside_the_folder(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "old").write_text("kept")
    with pytest.raises(DamagedArchive):
        archive.unpack(tar_of((bad, b"")), folder, most_bytes=100)
    assert sorted(tmp_path.rglob("*")) == [folder, folder / "old"]


def test_an_archive_that_swells_is_not_unpacked(tmp_path: Path) -> None:
    data = tar_of((member("zeros"), b"\0" * 10_000))
    with pytest.raises(DamagedArchive, match="10000 bytes; at most 9999"):
        archive.unpack(data, tmp_path, most_bytes=9_999)
    assert list(tmp_path.iterdir()) == []


def test_what_was_packed_is_there_again(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "a").mkdir(parents=True)
    after.mkdir()
    (before / "a" / "file").write_bytes(b"content")
    (before / "passing.lock").write_bytes(b"")
    (before / "link").symlink_to("/etc/passwd")
    data = archive.pack(before, wanted=lambda name: name.suffix != ".lock")
    archive.unpack(data, after, most_bytes=100)
    assert [path.relative_to(after) for path in after.rglob("*")] == [Path("a"), Path("a/file")]
    assert (after / "a" / "file").read_bytes() == b"content"
