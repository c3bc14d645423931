"""schedule add, list, next, fire, edit and the rest against a server whose answers are written down."""

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.scheduleshow import LIST_COLUMNS, LIST_DROP, NAME_CELLS, list_row
from cli.schedulewords import FIRING_COLUMNS, FIRING_DROP, ID_CELLS, firing_row
from cli.table import lay_out
from tests.cli.bulk_answers import BATCH, SCHEDULE, WINDOW, batch, firing, schedule
from tests.cli.conftest import Run
from tests.cli.test_batch import form_of, posted, refused
from tests.fixtures.scripted_server import ScriptedServer

PATH = f"/v1/schedules/{SCHEDULE}"
SLOTS = {
    "data": [f"2026-{day}T{hour}:00:00Z" for day, hour in (("10-23", 20), ("10-24", 20), ("10-25", 21))],
    "timezone": "Europe/Berlin",
    "enabled": True,
}
NIGHTLY = ("--cron", "0 22 * * *", "--timezone", "Europe/Berlin")
TINY = ("--model", "tiny", "--template", "a {colour} house")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("products.csv").write_text("sku,colour\nA1,red\n")


def add(renderq: Run, *flags: str) -> Any:
    return renderq("schedule", "add", "products.csv", "--name", "nightly", *flags)


def script_added(server: ScriptedServer, **more: Any) -> None:
    server.add("/v1/schedules", schedule(**more), status=201)
    server.add(f"{PATH}/next", SLOTS)


def test_add_sends_file_rule_and_window_and_shows_the_next_five_firings(
    renderq: Run, server: ScriptedServer
) -> None:
    script_added(server)
    flags = ("--window", "22:00-06:00", "--misfire", "once", "--misfire-grace", "60", "--disabled")
    result = add(renderq, *NIGHTLY, *TINY, *flags)
    assert (result.exit_code, result.stdout) == (0, f"{SCHEDULE}\n"), result.output
    form = {name: content.decode() for name, (content, _, _) in form_of(posted(server)).items()}
    assert form.pop("file") == Path("products.csv").read_text()
    assert json.loads(form.pop("template")) == {"prompt": "a {colour} house", "model": "tiny"}
    assert json.loads(form.pop("window")) == WINDOW
    assert form == {
        "name": "nightly",
        "cron": "0 22 * * *",
        "timezone": "Europe/Berlin",
        "misfire": "once",
        "misfire_grace_s": "60",
        "enabled": "false",
    }
    assert server.calls[-1].path == f"{PATH}/next?count=5"
    lines = result.stderr.splitlines()
    assert lines[0] == "next firings:"
    assert lines[2] == "Fri  2026-10-23 22:00:00 +0200  2026-10-23 20:00:00 +0000"


@pytest.mark.parametrize(
    ("every", "seconds"), [("3600", 3600), ("90s", 90), ("30m", 1800), ("6h", 21600), ("1D", 86400)]
)
def test_an_interval_is_a_number_with_its_unit(
    renderq: Run, server: ScriptedServer, every: str, seconds: int
) -> None:
    script_added(server)
    assert add(renderq, "--every", every, *TINY).exit_code == 0
    assert form_of(posted(server))["every_s"][0] == str(seconds).encode()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "give one of --cron, --at and --every"),
        ((*NIGHTLY, "--every", "6h"), "give one of --cron, --at and --every"),
        (("--every", "soon"), "--every must be a number with s, m, h or d, such as 6h, not 'soon'"),
        (("--every", "6h", "--window", "22:00-06:00"), "--window needs --timezone"),
    ],
)
def test_a_rule_that_cannot_be_sent_is_refused_before_any_call(
    renderq: Run, server: ScriptedServer, flags: tuple[str, ...], words: str
) -> None:
    result = add(renderq, *TINY, *flags)
    assert (result.exit_code, words in result.stderr) == (2, True), result.output
    assert not server.calls


def test_wrong_rows_of_a_schedule_are_a_table_too(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/schedules", refused(2), status=422)
    result = add(renderq, *NIGHTLY, *TINY)
    assert result.exit_code == 2
    assert "2 errors: nothing was ordered" in result.stderr


def test_next_shows_each_time_in_the_zone_of_the_schedule_and_in_utc(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add(f"{PATH}/next", SLOTS)
    result = renderq("schedule", "next", SCHEDULE, "--count", "3")
    assert server.calls[0].path == f"{PATH}/next?count=3"
    assert [line.split("  ") for line in result.stdout.splitlines()[1:]] == [
        ["Fri", "2026-10-23 22:00:00 +0200", "2026-10-23 20:00:00 +0000"],
        ["Sat", "2026-10-24 22:00:00 +0200", "2026-10-24 20:00:00 +0000"],
        ["Sun", "2026-10-25 22:00:00 +0100", "2026-10-25 21:00:00 +0000"],
    ]
    assert json.loads(renderq("schedule", "next", SCHEDULE, "--json").stdout) == SLOTS


def test_next_of_a_schedule_without_a_zone_is_in_utc_alone(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"{PATH}/next", SLOTS | {"timezone": None})
    lines = renderq("schedule", "next", SCHEDULE).stdout.splitlines()
    assert lines[:2] == ["UTC", "2026-10-23 20:00:00 +0000"]


def test_next_says_when_there_is_none_and_when_it_is_disabled(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"{PATH}/next", SLOTS | {"data": [], "enabled": False})
    result = renderq("schedule", "next", SCHEDULE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "it will not fire any more" in result.stderr
    assert f"`renderq schedule enable {SCHEDULE}`" in result.stderr


def test_a_list_shows_next_firing_window_state_and_last_outcome(renderq: Run, server: ScriptedServer) -> None:
    one = schedule(last_firing=firing(), enabled=False)
    server.add("/v1/schedules", {"data": [one], "has_more": True, "last_id": SCHEDULE})
    result = renderq("schedule", "list", "--limit", "1")
    [line] = [line for line in result.stdout.splitlines() if SCHEDULE in line]
    for words in (
        "2026-12-01 22:00:00 +0100",
        "22:00-06:00 Europe/Berlin",
        "  no  ",
        "fired 2026-11-30 ",
        "0 22 * * * Europe/Berlin",
    ):
        assert words in line
    assert f" --after {SCHEDULE}" in result.stderr
    assert json.loads(renderq("schedule", "list", "--json").stdout)["data"] == [one]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"cron": None, "every_s": 9000}, "every 2 h 30 min"),
        ({"cron": None, "at": "2030-01-31T22:00:00Z"}, "at 2030-01-31 23:00:00 +0100"),
    ],
)
def test_get_says_when_it_fires(
    renderq: Run, server: ScriptedServer, rule: dict[str, Any], words: str
) -> None:
    server.add(PATH, schedule(**rule))
    assert words in renderq("schedule", "get", SCHEDULE).stdout


def test_fire_prints_the_batch_and_watch_follows_it(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"{PATH}/fire", firing(batch=batch()), status=202)
    server.add(f"/v1/batches/{BATCH}", batch("completed", counts={"completed": 8}))
    assert renderq("schedule", "fire", SCHEDULE).stdout == f"{BATCH}\n"
    watched = renderq("schedule", "fire", SCHEDULE, "--watch")
    assert (watched.exit_code, watched.stdout) == (0, f"{BATCH}\n")
    assert "completed: 8 of 8 done" in watched.stderr
    assert json.loads(renderq("schedule", "fire", SCHEDULE, "--json").stdout)["batch_id"] == BATCH
    followed = renderq("schedule", "fire", SCHEDULE, "--json", "--watch")
    assert json.loads(followed.stdout)["status"] == "completed"


def test_fire_says_what_keeps_its_batch_waiting(renderq: Run, server: ScriptedServer) -> None:
    waiting = batch(warnings=["the window opens at 22:00"])
    server.add(f"{PATH}/fire", firing(batch=waiting), status=202)
    result = renderq("schedule", "fire", SCHEDULE)
    assert (result.stdout, result.stderr.splitlines()[0]) == (f"{BATCH}\n", "the window opens at 22:00")


def test_add_says_what_is_odd_about_its_rows(renderq: Run, server: ScriptedServer) -> None:
    script_added(server, warnings=["row 2: colour is empty"])
    assert "row 2: colour is empty\n" in add(renderq, *NIGHTLY, *TINY).stderr


@pytest.mark.parametrize(
    ("other", "is_twin"),
    [({}, True), ({"enabled": False}, False), ({"name": "weekly"}, False)],
)
def test_add_warns_of_an_enabled_schedule_of_the_same_name(
    renderq: Run, server: ScriptedServer, other: dict[str, Any], is_twin: bool
) -> None:
    there = schedule(id="the-other", **other)
    server.add("/v1/schedules", {"data": [schedule(name="x")], "has_more": True, "last_id": "x"})
    server.add("/v1/schedules", {"data": [there], "has_more": False, "last_id": "the-other"})
    script_added(server)
    result = add(renderq, *NIGHTLY, *TINY)
    assert (result.exit_code, result.stdout) == (0, f"{SCHEDULE}\n"), result.output
    assert ("the-other is enabled and has the same name" in result.stderr) is is_twin


def test_a_list_on_80_columns_keeps_id_state_next_firing_and_name() -> None:
    lines = lay_out(LIST_COLUMNS, [list_row(schedule())], 80, drop=LIST_DROP, least=NAME_CELLS).lines
    assert lines == [
        "id                                    on   next firing                name",
        f"{SCHEDULE}  yes  2026-12-01 22:00:00 +0100  nightly",
    ]


def test_firings_on_80_columns_keep_batch_and_error_whole() -> None:
    lines = lay_out(FIRING_COLUMNS, [firing_row(firing())], 80, drop=FIRING_DROP, least=ID_CELLS).lines
    assert lines[1].endswith(BATCH)
    assert max(map(len, lines)) <= 80


def test_a_firing_that_failed_says_why_and_ends_with_1(renderq: Run, server: ScriptedServer) -> None:
    failed = firing(outcome="failed", batch_id=None, error="model tiny is not offered any more")
    server.add(f"{PATH}/fire", failed, status=202)
    result = renderq("schedule", "fire", SCHEDULE)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was ordered: model tiny is not offered any more" in result.stderr


def test_a_firing_whose_answer_is_lost_is_not_sent_again(
    renderq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    arrived.append(connection.recv(4096))

        listener = threading.Thread(target=hang_up)
        listener.start()
        monkeypatch.setenv("RENDERQ_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        result = renderq("schedule", "fire", SCHEDULE)
        server.shutdown(socket.SHUT_RDWR)
        listener.join()
    assert result.exit_code == 3
    assert len(arrived) == 1


def test_a_firing_refused_for_the_moment_is_sent_again(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"{PATH}/fire", {"detail": "away"}, status=503, Retry_After="0")
    server.add(f"{PATH}/fire", firing(), status=202)
    assert renderq("schedule", "fire", SCHEDULE).exit_code == 0


def test_enable_and_disable_say_what_is_so_now(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"{PATH}/enable", schedule())
    server.add(f"{PATH}/disable", schedule(enabled=False, next_at=None))
    said = "enabled, next firing 2026-12-01 22:00:00 +0100\n"
    assert renderq("schedule", "enable", SCHEDULE).stdout == said
    assert renderq("schedule", "disable", SCHEDULE).stdout == "disabled\n"


def test_firings_are_listed_with_their_batches(renderq: Run, server: ScriptedServer) -> None:
    data = [firing(), firing(outcome="failed", batch_id=None, error="no such model", kind="due", missed=3)]
    server.add(f"{PATH}/firings", {"data": data, "has_more": False, "last_id": None})
    lines = renderq("schedule", "firings", SCHEDULE).stdout.splitlines()
    assert lines[0].split() == ["due", "fired", "kind", "outcome", "missed", "batch", "or", "error"]
    assert BATCH in lines[1]
    assert lines[2].split()[6:9] == ["due", "failed", "3"]
    assert lines[2].endswith("no such model")


def test_remove_deletes_the_schedule(renderq: Run, server: ScriptedServer) -> None:
    server.add(PATH, b"", status=204)
    assert renderq("schedule", "remove", SCHEDULE).stdout == "removed\n"
    assert (server.calls[0].method, server.calls[0].path) == ("DELETE", PATH)


TEMPLATE = {"model": "tiny", "prompt": "a {colour} {thing}"}


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        (("--name", "weekly"), {"name": "weekly"}),
        (("--cron", "0 3 * * 1"), {"cron": "0 3 * * 1"}),
        (("--every", "6h"), {"every_s": 21600}),
        (("--timezone", "UTC"), {"timezone": "UTC"}),
        (("--window", "1:00-2:00"), {"window": WINDOW | {"start": "01:00", "end": "02:00"}}),
        (("--no-window",), {"window": None}),
        (("--misfire", "once", "--misfire-grace", "9"), {"misfire": "once", "misfire_grace_s": 9}),
        (("--template", "a {colour} boat"), {"template": TEMPLATE | {"prompt": "a {colour} boat"}}),
        (("--model", "m"), {"template": TEMPLATE | {"model": "m"}}),
        (("--template", '{"model": "m", "seed": 1}'), {"template": {"model": "m", "seed": 1}}),
        (("--grid", '{"seed": [1, 2]}'), {"grid": {"seed": [1, 2]}}),
    ],
)
def test_edit_sends_what_was_given_and_nothing_else(
    renderq: Run, server: ScriptedServer, flags: tuple[str, ...], sent: dict[str, Any]
) -> None:
    server.add(PATH, schedule())
    result = renderq("schedule", "edit", SCHEDULE, *flags)
    assert result.exit_code == 0, result.output
    [call] = [call for call in server.calls if call.method == "PATCH"]
    assert call.body == sent
    assert result.stdout.startswith("id ")


def test_edit_can_replace_the_rows(renderq: Run, server: ScriptedServer) -> None:
    server.add(PATH, schedule(warnings=["row 1: colour is empty"]))
    result = renderq("schedule", "edit", SCHEDULE, "--file", "products.csv", "--no-window")
    assert (result.exit_code, "row 1: colour is empty\n" in result.stdout) == (0, True)
    [call] = [call for call in server.calls if call.method == "PATCH"]
    form = form_of(call)
    assert form.pop("file")[0].decode() == Path("products.csv").read_text()
    assert {name: content for name, (content, _, _) in form.items()} == {"window": b"null"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "nothing to change was given"),
        (("--window", "1:00-2:00", "--no-window"), "disagree"),
    ],
)
def test_an_edit_that_says_nothing_or_two_things_is_refused(
    renderq: Run, server: ScriptedServer, flags: tuple[str, ...], words: str
) -> None:
    server.add(PATH, schedule())
    result = renderq("schedule", "edit", SCHEDULE, *flags)
    assert (result.exit_code, words in result.stderr) == (2, True)
    assert not [call for call in server.calls if call.method == "PATCH"]


HOSTILE = "\x1b[31mred\r\n\nfake row \u202e \x9b31m \x7f"


@pytest.mark.parametrize(
    "arguments", [("list",), ("get", SCHEDULE), ("firings", SCHEDULE), ("next", SCHEDULE)]
)
def test_names_and_errors_of_others_cannot_drive_the_terminal(
    renderq: Run, server: ScriptedServer, arguments: tuple[str, ...]
) -> None:
    one = schedule(name=HOSTILE, cron=HOSTILE, timezone=HOSTILE, last_firing=firing(outcome=HOSTILE))
    server.add("/v1/schedules", {"data": [one], "has_more": True, "last_id": HOSTILE})
    server.add(PATH, one)
    server.add(f"{PATH}/next", SLOTS | {"timezone": HOSTILE})
    server.add(f"{PATH}/firings", {"data": [firing(error=HOSTILE)], "has_more": False})
    result = renderq("schedule", *arguments)
    assert result.exit_code == 0, result.output
    assert not set(result.output) & {"\x1b", "\r", "\u202e", "\x9b", "\x7f"}
    assert not any(line.startswith("fake row") for line in result.output.splitlines())


def test_a_terminal_of_80_columns_is_told_which_columns_have_no_room(server: ScriptedServer) -> None:
    server.add("/v1/schedules", {"data": [schedule()], "has_more": False, "last_id": SCHEDULE})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "cli.main", "schedule", "list"]
    env = os.environ | {"RENDERQ_URL": server.url, "COLUMNS": "80"}
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=env, check=True, text=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode().splitlines()
    os.close(ours)
    assert shown[0].split() == ["id", "on", "next", "firing", "name"]
    assert max(map(len, shown)) <= 80
    said = "not shown: window, last outcome, when (a wider terminal or --json has them)\n"
    assert done.stderr == said
