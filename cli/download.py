"""Downloads a file of any size: streamed to a hidden name beside its place, which it takes when whole."""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cli.exits import CliError, ExitCode
from cli.saving import STDOUT, check_output
from cli.terminal import err, print_json, print_line, printable, writing

if TYPE_CHECKING:
    import httpx2

    from cli.client import Client

PIECE_BYTES = 1 << 16


def check_target(output: Path, *, force: bool) -> None:
    """Refuse before anything is asked for what could not be written afterwards."""
    if output == STDOUT:
        return
    if os.path.lexists(output):
        if output.exists() and not output.is_file():
            raise CliError(f"{output} is not a file")
        if not force:
            raise _taken(output)
    check_output(output.parent / f".{secrets.token_hex(8)}", 1)


def download(
    client: "Client",
    path: str,
    output: Path,
    *,
    query: Mapping[str, Any] | None = None,
    force: bool = False,
    as_json: bool = False,
) -> Mapping[str, str]:
    """Save the answer of ``path`` as ``output``, print where it is, and return the answer's headers.

    Raises:
        CliError: The server refuses, the line breaks, or the file cannot be written; nothing is left then.
    """
    check_target(output, force=force)
    with client.stream(path, query or {}) as answer:
        if output == STDOUT:
            _to_stdout(answer)
            return answer.headers
        size = _to_file(answer, output, force=force, quiet=as_json)
    if as_json:
        print_json({"saved": str(output), "bytes": size})
    else:
        print_line(printable(output))
    return answer.headers


def _to_stdout(answer: "httpx2.Response") -> None:
    for piece in answer.iter_bytes(PIECE_BYTES):
        with writing():
            sys.stdout.buffer.write(piece)


def _to_file(answer: "httpx2.Response", output: Path, *, force: bool, quiet: bool) -> int:
    try:
        with _hidden_file(output) as (file, hidden):
            for piece in _shown(answer, output.name, quiet=quiet):
                file.write(piece)
            file.flush()
            size = file.tell()
            _put(hidden, output, force=force)
    except FileExistsError:
        raise _taken(output) from None
    except OSError as error:
        raise CliError(f"cannot write {output}: {error.strerror}", ExitCode.USAGE) from error
    return size


@contextmanager
def _hidden_file(output: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the same folder; it is gone at the end unless it took its place."""
    hidden = output.parent / f".renderq-{secrets.token_hex(6)}.part"
    try:
        with hidden.open("xb") as file:
            yield file, hidden
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink()


def _put(hidden: Path, output: Path, *, force: bool) -> None:
    """Give the whole file its name; a link, unlike a rename, never replaces what has come meanwhile."""
    if force:
        hidden.replace(output)
        return
    try:
        os.link(hidden, output)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if output.exists():
            raise FileExistsError from None
        hidden.rename(output)


def _shown(answer: "httpx2.Response", name: str, *, quiet: bool) -> Iterable[bytes]:
    """The pieces of the answer, with a bar on a terminal."""
    pieces = answer.iter_bytes(PIECE_BYTES)
    return pieces if quiet or not err().is_terminal else _with_bar(pieces, name, _length(answer))


def _length(answer: "httpx2.Response") -> int | None:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _with_bar(pieces: Iterable[bytes], name: str, length: int | None) -> Iterator[bytes]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err()) as bar:
        task = bar.add_task(printable(name), total=length)
        done = 0
        for piece in pieces:
            done += len(piece)
            yield piece
            bar.update(task, advance=len(piece))
        bar.update(task, total=done)


def _taken(output: Path) -> CliError:
    return CliError(f"{output} is there already: name another with --output, or replace it with --force")
