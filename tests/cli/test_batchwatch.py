"""Watching a batch: the live table, the plain lines, the exit code, Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli.batchwatch import LatestFailures, Lines, Pace, how_to_go_on, picture_of
from cli.bulkcalls import Batches
from cli.client import Client
from tests.cli.bulk_answers import BATCH, WINDOW, batch
from tests.cli.conftest import Run
from tests.cli.job_answers import ID, job
from tests.fixtures.scripted_server import ScriptedServer
from tests.fixtures.waiting import wait_until

VERBS = ("watch", "pause", "resume", "cancel")
PATH = f"/v1/batches/{BATCH}"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILED = job("failed", batch_row=5, error={"code": "out_of_memory", "message": "no memory left"})


def script(server: ScriptedServer, end: str = "completed", **last: int) -> None:
    """The first answer is for the look before the watch begins."""
    server.add(PATH, batch(counts={"queued": 7, "in_progress": 1}), Retry_After="0.01")
    server.add(PATH, batch(counts={"completed": 1, "queued": 6, "in_progress": 1}), Retry_After="0.01")
    server.add(PATH, batch(end, counts=last or {"completed": 8}))
    server.add("/v1/jobs", {"data": [FAILED]})


def test_without_a_terminal_watch_says_a_line_for_each_change(renderq: Run, server: ScriptedServer) -> None:
    script(server)
    result = renderq("batch", "watch", BATCH)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "running: 1 of 8 done, 1 rendering, 6 queued",
        "completed: 8 of 8 done",
        f"`renderq batch download {BATCH}` saves the pictures",
    ]


def test_a_failure_is_named_by_row_and_reason_and_ends_with_1(renderq: Run, server: ScriptedServer) -> None:
    script(server, "failed", completed=7, failed=1)
    result = renderq("batch", "watch", BATCH)
    assert result.exit_code == 1
    assert "row 5 failed: no memory left" in result.stderr
    assert result.stderr.splitlines()[-3:] == [
        f"renderq: batch {BATCH} failed: 7 of 8 done, 1 failed",
        f"  see them:    renderq list --batch {BATCH} --status failed",
        f"  order again: renderq batch retry {BATCH}",
    ]
    asked = [call.path for call in server.calls if call.path.startswith("/v1/jobs")]
    assert asked[0] == f"/v1/jobs?batch={BATCH}&status=failed&limit=100"


def test_a_canceled_batch_ends_with_4(renderq: Run, server: ScriptedServer) -> None:
    script(server, "canceled", completed=3, canceled=5)
    assert renderq("batch", "watch", BATCH).exit_code == 4


def test_submit_and_retry_watch_as_watch_does(renderq: Run, server: ScriptedServer, tmp_path: Any) -> None:
    table = tmp_path / "x.csv"
    table.write_text("colour\nred\n")
    for path, arguments in {
        "/v1/batches": ("submit", str(table), "--model", "tiny"),
        f"{PATH}/retry": ("retry", BATCH),
    }.items():
        server.answers.pop(PATH, None)
        script(server, "failed", completed=7, failed=1)
        server.add(path, batch(), status=202)
        result = renderq("batch", *arguments, "--watch")
        assert result.exit_code == 1
        assert "row 5 failed" in result.stderr


def test_watch_as_json_prints_the_last_state_alone(renderq: Run, server: ScriptedServer) -> None:
    script(server, "failed", completed=7, failed=1)
    result = renderq("batch", "watch", BATCH, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == "failed"
    assert result.stderr.startswith(f"renderq: batch {BATCH} failed")


def test_ctrl_c_leaves_the_batch_alone_and_says_how_to_go_on(renderq: Run, server: ScriptedServer) -> None:
    server.add(PATH, batch())

    def interrupt() -> None:
        wait_until(lambda: len(server.calls) > 1, what="watching")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    result = renderq("batch", "watch", BATCH)
    interrupter.join()
    assert result.exit_code == 130
    assert f"the batch goes on. See it: renderq batch watch {BATCH}" in result.stderr
    assert {call.method for call in server.calls} == {"GET"}


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        (batch(), ["watch", "pause", "cancel"]),
        (batch("paused"), ["watch", "resume", "cancel"]),
        (batch(cancel_requested_at="2026-01-01T00:00:00Z"), ["watch"]),
    ],
)
def test_who_leaves_is_told_in_short_lines_what_the_state_allows(state: Any, verbs: list[str]) -> None:
    lines = how_to_go_on(state)
    assert [verb for line in lines for verb in VERBS if f"renderq batch {verb} {BATCH}" in line] == verbs
    assert max(map(len, lines)) <= 90


@pytest.mark.parametrize("command", [("batch", "watch", BATCH), ("get", "--wait", ID)])
def test_ctrl_c_again_and_again_still_ends_in_words(server: ScriptedServer, command: tuple[str, ...]) -> None:
    server.add(PATH, batch(), Retry_After="0.01")
    server.add(f"/v1/jobs/{ID}", job("queued"), Retry_After="0.01")
    env = os.environ | {"RENDERQ_URL": server.url}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.main", *command], stderr=subprocess.PIPE, text=True, env=env
    )
    wait_until(lambda: len(server.calls) > 2, 30, "watching")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said


def test_a_row_that_was_ordered_again_is_told_by_its_newest_job_and_the_last_to_end_comes_first(
    server: ScriptedServer,
) -> None:
    ends = {
        "1": None,
        "2": "2026-01-01T00:00:09Z",
        "3": "2026-01-01T01:00:00+02:00",
        "4": "2026-01-01T00:00:08Z",
    }
    rows = {"1": 6, "2": 5, "3": 5, "4": 4}
    jobs = [job("failed", id=name, batch_row=rows[name], finished_at=end) for name, end in ends.items()]
    server.add("/v1/jobs", {"data": jobs})
    server.add("/v1/jobs", {"data": []})
    found = Batches(Client(server.url)).failures(BATCH, 5)
    assert [(failure["id"], failure["batch_row"]) for failure in found] == [("4", 4), ("3", 5), ("1", 6)]


def test_failures_are_read_again_when_as_many_others_have_failed(server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"data": [FAILED]})
    failures = LatestFailures(Batches(Client(server.url)))
    for counts in ({"failed": 1, "queued": 1}, {"failed": 1, "queued": 1}, {"failed": 1, "completed": 1}):
        failures.of(batch(counts=counts))
    assert len(server.calls) == 4


def test_a_large_batch_says_a_line_for_each_tenth_and_at_least_every_half_minute() -> None:
    seconds = 0.0
    lines = Lines(clock=lambda: seconds)
    said = [
        line
        for done in range(1001)
        for line in lines.of(batch(total=1000, counts={"completed": done, "queued": 1000 - done}), [])
    ]
    assert len(said) == 11
    seconds = 40.0
    assert lines.of(batch(total=1000, counts={"completed": 42, "queued": 958}), [])
    assert not lines.of(batch(total=1000, counts={"completed": 43, "queued": 957}), [])


def test_lines_tell_why_a_batch_waits_once_and_when_it_should_end() -> None:
    lines = Lines(clock=lambda: 0.0)
    waiting = batch(warnings=["the window opens at 22:00"], eta="2026-01-01T12:02:05Z")
    [why, state] = lines.of(waiting, [])
    assert why == "the window opens at 22:00"
    assert state.startswith("running: 0 of 8 done, 8 queued; expected end ")
    assert lines.of(waiting, []) == []


def test_an_expired_row_is_told_apart_from_a_failed_one() -> None:
    expired = job("expired", batch_row=4)
    assert Lines(clock=lambda: 0.0).of(batch(), [expired])[0] == "row 4 expired"


def test_a_pause_is_said_at_once() -> None:
    lines = Lines(clock=lambda: 0.0)
    lines.of(batch(), [])
    assert lines.of(batch("paused"), []) == ["paused: 0 of 8 done, 8 queued"]


def test_the_rate_is_that_of_the_last_minute() -> None:
    times = iter((0.0, 30.0, 60.0, 90.0, 120.0, 150.0))
    pace = Pace(clock=lambda: next(times))
    assert [pace.note(count) for count in (0, 30, 60, 60, 60, 60)] == [None, 60, 60, 30, 0, 0]


def shown(state: dict[str, Any], failures: list[dict[str, Any]]) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(picture_of(state, 12.34, failures, NOW))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_live_table_shows_counts_rate_expected_end_window_and_latest_failures() -> None:
    counts = {"completed": 4, "failed": 1, "queued": 3}
    text = shown(batch(counts=counts, eta="2026-01-01T12:02:05Z", window=WINDOW), [FAILED])
    for words in (
        f"night pictures  {BATCH}",
        "5 of 8",
        "completed 4  in_progress 0  queued 3  failed 1",
        "12.3 jobs a minute",
        "(in 2 min 5 s)",
        "22:00-06:00 Europe/Berlin",
        "no memory left",
        ID,
    ):
        assert words in text
    [bar] = [line for line in text.splitlines() if "━" in line]
    assert bar.strip(" ━╸╺") == ""


def test_the_live_table_shows_markup_of_others_as_it_is() -> None:
    failed = job("failed", error={"code": "x", "message": "[red]\x1b[2J"})
    text = shown(batch(name="[bold]x", warnings=["[/]"]), [failed])
    assert "[bold]x" in text
    assert "[red]\\x1b[2J" in text


def test_a_terminal_gets_the_live_table(server: ScriptedServer) -> None:
    script(server, "failed", completed=7, failed=1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "cli.main", "batch", "watch", BATCH]
    env = os.environ | {"RENDERQ_URL": server.url, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, env=env)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # Linux says the end of a terminal so
        pass
    finally:
        os.close(ours)
        process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"latest failures" in text
    assert b"no memory left" in text
    assert b"8 of 8" in text
