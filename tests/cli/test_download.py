"""Downloads: whole or not at all, never over another file, streamed from a real server."""

import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.download import PIECE_BYTES
from cli.exits import ExitCode
from tests.cli.bulk_answers import BATCH, batch
from tests.cli.conftest import Run
from tests.fixtures.scripted_server import ScriptedServer
from tests.fixtures.waiting import wait_until

CONTENT = os.urandom(3 * PIECE_BYTES + 17)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    monkeypatch.chdir(folder)


def script(server: ScriptedServer, status: str = "completed", **headers: str) -> None:
    server.add(f"/v1/batches/{BATCH}", batch(status, counts={"completed": 3, "queued": 5}))
    for what in ("content", "results", "sheet"):
        server.add(f"/v1/batches/{BATCH}/{what}", CONTENT, **headers)


def in_folder() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.parametrize(
    ("command", "what", "name"),
    [
        (("download", "--name", "{row}-{sku}"), "content?name=%7Brow%7D-%7Bsku%7D", "renderq-456789ab.zip"),
        (("download",), "content", "renderq-456789ab.zip"),
        (("results",), "results", "renderq-456789ab.csv"),
        (("results", "--separator", ";"), "results?separator=%3B", "renderq-456789ab.csv"),
        (("sheet", "--columns", "4", "--page", "2"), "sheet?columns=4&page=2", "renderq-456789ab.png"),
    ],
)
def test_each_file_is_saved_whole_under_the_name_that_is_printed(
    renderq: Run, server: ScriptedServer, command: tuple[str, ...], what: str, name: str
) -> None:
    script(server)
    result = renderq("batch", command[0], BATCH, *command[1:])
    assert (result.exit_code, result.stdout) == (0, f"{name}\n"), result.output
    assert server.calls[-1].path == f"/v1/batches/{BATCH}/{what}"
    assert Path(name).read_bytes() == CONTENT
    assert in_folder() == [name]


def test_a_file_that_is_there_is_kept_unless_force_replaces_it(renderq: Run, server: ScriptedServer) -> None:
    script(server)
    Path("x.zip").write_text("mine")
    result = renderq("batch", "download", BATCH, "--output", "x.zip")
    assert (result.exit_code, "--force" in result.stderr) == (2, True)
    assert Path("x.zip").read_text() == "mine"
    assert not server.calls
    assert renderq("batch", "download", BATCH, "--output", "x.zip", "--force").exit_code == 0
    assert Path("x.zip").read_bytes() == CONTENT


def test_a_file_that_comes_during_the_download_is_kept(renderq: Run, server: ScriptedServer) -> None:
    def pieces() -> Iterator[bytes]:
        yield CONTENT
        Path("x.zip").write_text("theirs")

    server.add(f"/v1/batches/{BATCH}", batch("completed"))
    server.add(f"/v1/batches/{BATCH}/content", pieces)
    result = renderq("batch", "download", BATCH, "--output", "x.zip")
    assert (result.exit_code, "is there already" in result.stderr) == (2, True)
    assert Path("x.zip").read_text() == "theirs"
    assert in_folder() == ["x.zip"]


def test_a_line_that_breaks_leaves_nothing_and_keeps_what_was_there(
    renderq: Run, server: ScriptedServer
) -> None:
    script(server, Content_Length=str(len(CONTENT) + 1))
    Path("x.zip").write_text("mine")
    result = renderq("batch", "download", BATCH, "--output", "x.zip", "--force")
    assert (result.exit_code, "broke off" in result.stderr) == (3, True), result.output
    assert Path("x.zip").read_text() == "mine"
    assert in_folder() == ["x.zip"]


def test_ctrl_c_during_a_download_leaves_nothing(renderq: Run, server: ScriptedServer) -> None:
    go_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield bytes(1 << 20)  # more than what waits to be written
        go_on.wait(30)

    server.add(f"/v1/batches/{BATCH}", batch("completed"))
    server.add(f"/v1/batches/{BATCH}/content", pieces)

    def interrupt() -> None:
        wait_until(
            lambda: any(part.stat().st_size for part in Path().glob(".*.part")), what="the hidden file"
        )
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    result = renderq("batch", "download", BATCH)
    interrupter.join()
    go_on.set()
    assert result.exit_code == 130
    assert in_folder() == []


def test_a_refusal_says_why_and_makes_no_file(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/batches/{BATCH}", batch("completed"))
    problem = {"detail": "x", "errors": [{"field": "name", "message": "name names no column: size"}]}
    server.add(f"/v1/batches/{BATCH}/content", problem, status=422)
    result = renderq("batch", "download", BATCH, "--name", "{size}")
    assert (result.exit_code, result.stderr) == (2, "renderq: name names no column: size\n")
    assert in_folder() == []


def test_a_download_is_asked_for_again_while_the_server_is_away(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/batches/{BATCH}/results", {"detail": "away"}, status=503, Retry_After="0")
    script(server)
    assert renderq("batch", "results", BATCH).exit_code == 0
    assert Path("renderq-456789ab.csv").read_bytes() == CONTENT


def test_a_file_goes_to_standard_output_untouched(renderq: Run, server: ScriptedServer) -> None:
    script(server)
    assert renderq("batch", "results", BATCH, "--output", "-").stdout_bytes == CONTENT
    assert in_folder() == []


def test_a_script_is_told_the_file_and_its_size(renderq: Run, server: ScriptedServer) -> None:
    script(server)
    result = renderq("batch", "sheet", BATCH, "--output", "x.png", "--json")
    assert json.loads(result.stdout) == {"saved": "x.png", "bytes": len(CONTENT)}


def test_a_sheet_of_several_pages_says_how_to_get_the_next(renderq: Run, server: ScriptedServer) -> None:
    script(server, Link='<http://x?page=2>; rel="prev", <http://x?page=4>; rel="next"')
    assert "there is more: --page 4" in renderq("batch", "sheet", BATCH, "--page", "3").stderr


def test_a_batch_that_goes_on_is_saved_as_far_as_it_is_and_that_is_said(
    renderq: Run, server: ScriptedServer
) -> None:
    script(server, status="running")
    result = renderq("batch", "download", BATCH)
    assert result.exit_code == 0
    assert "running: 3 of 8 done, 5 queued; the rest is not in the file yet" in result.stderr


def test_a_saved_file_may_be_read_by_others_as_any_new_file(renderq: Run, server: ScriptedServer) -> None:
    script(server)
    renderq("batch", "download", BATCH, "--output", "x.zip")
    Path("plain").touch()
    assert stat.S_IMODE(Path("x.zip").stat().st_mode) == stat.S_IMODE(Path("plain").stat().st_mode)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("nowhere/x.zip", "No such file or directory"),
        ("folder", "folder is not a file"),
        ("/dev/full", "/dev/full is not a file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(
    renderq: Run, server: ScriptedServer, output: str, words: str
) -> None:
    script(server)
    Path("folder").mkdir()
    result = renderq("batch", "download", BATCH, "--output", output, "--force")
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert in_folder() == ["folder"]
