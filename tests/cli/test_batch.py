"""batch submit, get, list, pause and the rest against a server whose answers are written down."""

import email
import email.policy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.bulk_answers import BATCH, WINDOW, batch
from tests.cli.conftest import Run
from tests.cli.job_answers import job
from tests.fixtures.scripted_server import Call, ScriptedServer

TABLE = "\ufeffsku;colour\r\nA1;red\r\nA2;blue\r\n".encode()
PROMPT = "a {colour} house"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("products.csv").write_bytes(TABLE)


def form_of(call: Call) -> dict[str, tuple[bytes, str | None, str]]:
    """The parts of a form: content, file name and type of each."""
    head = f"Content-Type: {call.headers['Content-Type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + call.body, policy=email.policy.HTTP)
    parts: Any = message.iter_parts()  # type: ignore[attr-defined]
    return {
        part.get_param("name", header="content-disposition"): (
            part.get_payload(decode=True),
            part.get_filename(),
            part.get_content_type(),
        )
        for part in parts
    }


def posted(server: ScriptedServer) -> Call:
    return next(call for call in server.calls if call.method == "POST")


def script_order(server: ScriptedServer) -> None:
    server.add("/v1/workers", {"data": [{"model": "tiny", "state": "ready"}]})
    server.add("/v1/batches", batch(), status=202)


def test_the_file_is_sent_as_it_is_with_the_fields_beside_it(renderq: Run, server: ScriptedServer) -> None:
    script_order(server)
    flags = ("--name", "näht", "--window", "22:00-6:00", "--timezone", "Europe/Berlin")
    result = renderq("batch", "submit", "products.csv", "--template", PROMPT, *flags)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{BATCH}\n"
    form = form_of(posted(server))
    assert form.pop("file") == (TABLE, "products.csv", "text/csv")
    assert form.pop("name")[0].decode() == "näht"
    assert {name: json.loads(content) for name, (content, _, _) in form.items()} == {
        "template": {"prompt": PROMPT, "model": "tiny"},
        "window": WINDOW,
    }


@pytest.mark.parametrize(
    ("template", "flags", "sent"),
    [
        (PROMPT, (), {"prompt": PROMPT, "model": "tiny"}),
        ("{thing} at night", (), {"prompt": "{thing} at night", "model": "tiny"}),
        (PROMPT, ("--model", "m"), {"prompt": PROMPT, "model": "m"}),
        ('{"model": "m", "seed": 7}', (), {"model": "m", "seed": 7}),
        (' { "seed": 7}', ("--model", "m"), {"seed": 7, "model": "m"}),
        (None, (), {"model": "tiny"}),
        (None, ("--keep", "sku"), {"model": "tiny", "metadata": {"sku": "{sku}"}}),
        (
            '{"model": "m", "metadata": {"a": "b", "title": "x"}}',
            ("--keep", "sku, title", "--keep", "size"),
            {"model": "m", "metadata": {"a": "b", "sku": "{sku}", "title": "x", "size": "{size}"}},
        ),
    ],
)
def test_a_template_is_json_or_the_plain_text_of_a_prompt(
    renderq: Run, server: ScriptedServer, template: str | None, flags: tuple[str, ...], sent: object
) -> None:
    script_order(server)
    given = () if template is None else ("--template", template)
    assert renderq("batch", "submit", "products.csv", *given, *flags).exit_code == 0
    assert json.loads(form_of(posted(server))["template"][0]) == sent


def test_a_file_of_whole_jobs_names_its_models_itself_where_there_is_a_choice(
    renderq: Run, server: ScriptedServer
) -> None:
    script_order(server)
    server.answers["/v1/workers"] = []
    server.add("/v1/workers", {"data": [{"model": name, "state": "ready"} for name in "ab"]})
    assert renderq("batch", "submit", "products.csv").exit_code == 0
    assert set(form_of(posted(server))) == {"file"}
    result = renderq("batch", "submit", "products.csv", "--template", PROMPT)
    assert (result.exit_code, "say --model: one of a, b" in result.stderr) == (2, True)


def test_a_grid_needs_no_file(renderq: Run, server: ScriptedServer) -> None:
    script_order(server)
    grid = '{"prompt": ["a red house", "a blue house"], "seed": [1, 2]}'
    assert renderq("batch", "submit", "--model", "tiny", "--grid", grid).exit_code == 0
    assert posted(server).body == {"template": {"model": "tiny"}, "grid": json.loads(grid)}


def test_an_order_sent_again_after_a_hiccup_carries_the_same_key_and_the_whole_file(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/v1/batches", {"detail": "away"}, status=503, Retry_After="0")
    server.add("/v1/batches", batch(), status=202)
    flags = ("--model", "tiny", "--template", PROMPT)
    assert renderq("batch", "submit", "products.csv", *flags).exit_code == 0
    assert renderq("batch", "submit", "products.csv", *flags, "--idempotency-key", "mine").exit_code == 0
    first, second, third = server.calls
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"] != "mine"
    assert form_of(first)["file"][0] == form_of(second)["file"][0] == TABLE
    assert third.headers["Idempotency-Key"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.csv",), "cannot read missing.csv: No such file"),
        ((".",), "cannot read .: Is a directory"),
        ((), "give a FILE with rows, or --grid"),
        (("products.csv", "--template", '{"prompt": '), "--template is not JSON"),
        (("products.csv", "--grid", "[1]"), "--grid must be a JSON object, such as"),
        (("products.csv", "--template", '{"model": "a"}', "--model", "b"), "disagree"),
        (("products.csv", "--keep", "sku,"), "--keep takes names of columns, such as sku,title, not ''"),
        (("products.csv", "--keep", "{sku}"), "--keep takes names of columns"),
        (("products.csv", "--window", "22:00-06:00"), "--window needs --timezone"),
        (("products.csv", "--timezone", "UTC"), "--timezone says where --window is meant"),
        (("products.csv", "--window", "22-6", "--timezone", "UTC"), "must look like 22:00-06:00, not '22-6'"),
        (("products.csv", "--window", "25:00-06:00", "--timezone", "UTC"), "must look like"),
        (("products.csv", "--template", "a \udcff"), "template is not UTF-8"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words_before_any_call(
    renderq: Run, server: ScriptedServer, arguments: tuple[str, ...], words: str
) -> None:
    result = renderq("batch", "submit", *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.output
    assert not server.calls


def refused(count: int) -> dict[str, Any]:
    return {
        "detail": "many",
        "code": "invalid_request",
        "errors": [
            {"row": row, "field": "width", "message": f"row {row}: width {row}0 is not a multiple of 16"}
            for row in range(1, count + 1)
        ],
    }


def test_wrong_rows_are_a_table_of_row_field_and_message_and_how_many_more(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/v1/batches", refused(25), status=422)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny")
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert lines[0].split() == ["row", "field", "message"]
    assert lines[1].split(maxsplit=2) == ["1", "width", "width 10 is not a multiple of 16"]
    assert len(lines) == 1 + 20 + 2
    assert lines[-2:] == [
        "... and 5 more; --json has all",
        "renderq: 25 errors: nothing was ordered",
    ]
    assert result.stdout == ""


def test_columns_that_nothing_uses_can_be_kept_and_that_is_said(renderq: Run, server: ScriptedServer) -> None:
    known = ["model", "prompt", "cache", "colour"]
    errors = [
        {"row": 1, "field": "sku", "message": "row 1: unknown", "limit": known, "nearest": None},
        {"row": 1, "field": "colr", "message": "row 1: colour?", "limit": known, "nearest": "colour"},
        {"row": 1, "field": "cache", "message": "row 1: cache?", "limit": ["off", "fast"], "nearest": None},
        {"row": 9, "field": "price", "message": "row 9: unknown", "limit": known, "nearest": None},
    ]
    server.add("/v1/batches", {"detail": "x", "errors": errors}, status=422)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny")
    assert "--keep sku,price keeps such a column for file names and results" in result.stderr


def test_a_script_gets_every_error_of_every_row(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/batches", refused(25), status=422)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == refused(25)


def test_a_refusal_without_rows_is_said_like_every_other(renderq: Run, server: ScriptedServer) -> None:
    problem = {"detail": "x", "errors": [{"field": "template.width", "message": "template.width 5 is wrong"}]}
    server.add("/v1/batches", problem, status=422)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny")
    assert (result.exit_code, result.stderr) == (2, "renderq: template.width 5 is wrong\n")


def test_submit_as_json_prints_the_batch_and_nothing_else(renderq: Run, server: ScriptedServer) -> None:
    script_order(server)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny", "--json")
    assert json.loads(result.stdout) == batch()
    assert result.stderr == ""


def test_submit_says_what_may_keep_the_batch_waiting(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/batches", batch(warnings=["no worker is serving model tiny now"]), status=202)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny")
    assert "no worker is serving model tiny now" in result.stderr


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("canceled", 4), ("running", 0), ("paused", 0)]
)
def test_the_exit_code_of_get_tells_how_a_batch_ended(
    renderq: Run, server: ScriptedServer, status: str, code: int
) -> None:
    server.add(f"/v1/batches/{BATCH}", batch(status, counts={"completed": 7, "failed": 1}, window=WINDOW))
    result = renderq("batch", "get", BATCH)
    assert result.exit_code == code
    assert f"{status}: 7 of 8 done, 1 failed" in result.stdout
    assert "22:00-06:00 Europe/Berlin" in result.stdout
    assert renderq("batch", "get", BATCH, "--json").exit_code == code


def test_a_list_shows_each_batch_on_a_line_and_how_to_go_on(renderq: Run, server: ScriptedServer) -> None:
    page = {
        "data": [batch("failed", counts={"completed": 5, "failed": 2, "expired": 1})],
        "has_more": True,
        "last_id": BATCH,
    }
    server.add("/v1/batches", page)
    result = renderq("batch", "list", "--status", "failed", "--schedule", "s", "--limit", "1")
    assert server.calls[0].path == "/v1/batches?status=failed&schedule=s&limit=1"
    [line] = [line for line in result.stdout.splitlines() if BATCH in line]
    assert line.split()[2:6] == ["8", "of", "8", "3"]
    assert line.endswith("night pictures")
    assert f" --after {BATCH}" in result.stderr
    assert json.loads(renderq("batch", "list", "--json").stdout) == page


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry"])
def test_pause_resume_cancel_and_retry_say_what_came_of_it(
    renderq: Run, server: ScriptedServer, verb: str
) -> None:
    answer = batch("paused", counts={"completed": 3, "in_progress": 1, "queued": 4})
    server.add(f"/v1/batches/{BATCH}/{verb}", answer)
    assert renderq("batch", verb, BATCH).stdout == "paused: 3 of 8 done, 1 rendering, 4 queued\n"
    assert json.loads(renderq("batch", verb, BATCH, "--json").stdout) == answer
    assert [call.method for call in server.calls] == ["POST", "POST"]


def test_a_batch_that_is_being_cancelled_is_stopping(renderq: Run, server: ScriptedServer) -> None:
    answer = batch(counts={"in_progress": 1, "canceled": 7}, cancel_requested_at="now")
    server.add(f"/v1/batches/{BATCH}/cancel", answer, status=202)
    said = "running, stopping: 0 of 8 done, 1 rendering, 7 canceled\n"
    assert renderq("batch", "cancel", BATCH).stdout == said


def test_a_refused_move_is_said_in_words(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/batches/{BATCH}/pause", {"detail": "The batch has already ended."}, status=409)
    result = renderq("batch", "pause", BATCH)
    assert (result.exit_code, result.stderr) == (2, "renderq: The batch has already ended.\n")


def test_jobs_can_be_listed_by_batch(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"data": [job("failed", batch_row=17)], "has_more": False, "last_id": None})
    lines = renderq("list", "--batch", BATCH).stdout.splitlines()
    assert server.calls[0].path == f"/v1/jobs?batch={BATCH}&limit=20"
    assert lines[0].split() == ["id", "status", "model", "created", "row", "prompt"]
    assert lines[1].endswith("  17   a boat")


def test_a_failed_batch_names_how_to_see_its_failed_and_expired_rows(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add(f"/v1/batches/{BATCH}", batch("failed", counts={"completed": 6, "failed": 1, "expired": 1}))
    said = renderq("batch", "get", BATCH).stderr
    for state in ("failed", "expired"):
        assert f"renderq list --batch {BATCH} --status {state}\n" in said


@pytest.mark.parametrize(
    "command",
    [("batch", "get"), ("batch", "pause"), ("schedule", "fire"), ("get",), ("cancel",), ("requeue",)],
)
def test_an_empty_id_is_refused_before_any_call(
    renderq: Run, server: ScriptedServer, command: tuple[str, ...]
) -> None:
    result = renderq(*command, "")
    assert (result.exit_code, "the id is empty" in result.stderr) == (2, True)
    assert not server.calls


@pytest.mark.parametrize(
    ("command", "path", "where"),
    [
        (("schedule", "fire"), "/v1/schedules/nightly/fire", "renderq schedule list"),
        (("batch", "watch"), "/v1/batches/nightly", "renderq batch list"),
        (("get",), "/v1/jobs/nightly", "renderq list"),
    ],
)
def test_an_id_that_is_none_is_told_where_the_ids_are(
    renderq: Run, server: ScriptedServer, command: tuple[str, ...], path: str, where: str
) -> None:
    server.add(path, {"code": "not_found", "detail": "There is none nightly."}, status=404)
    result = renderq(*command, "nightly")
    assert result.stderr == f"renderq: There is none nightly; `{where}` shows the ids\n"


HOSTILE = "\x1b]0;pwn\x07\x1b[31mred\r\n\nfake row \u202e \x9b31m \x7f \ud800"


@pytest.mark.parametrize(
    "arguments", [("submit", "products.csv", "--model", "m"), ("get", BATCH), ("list",), ("watch", BATCH)]
)
def test_names_and_warnings_of_others_cannot_drive_the_terminal(
    renderq: Run, server: ScriptedServer, arguments: tuple[str, ...]
) -> None:
    shown = batch("completed", name=HOSTILE, warnings=[HOSTILE], schedule_id=HOSTILE)
    server.add("/v1/batches", shown | {"data": [shown], "has_more": True, "last_id": HOSTILE})
    server.add(f"/v1/batches/{BATCH}", shown)
    result = renderq("batch", *arguments)
    assert result.exit_code == 0, result.output
    assert not set(result.output) & {"\x1b", "\x07", "\r", "\u202e", "\x9b", "\x7f"}
    assert not any(line.startswith("fake row") for line in result.output.splitlines())


def test_messages_about_rows_cannot_drive_the_terminal(renderq: Run, server: ScriptedServer) -> None:
    errors = [{"row": 1, "field": HOSTILE, "message": f"row 1: {HOSTILE}"}]
    server.add("/v1/batches", {"detail": "x", "errors": errors}, status=422)
    result = renderq("batch", "submit", "products.csv", "--model", "tiny")
    assert result.exit_code == 2
    assert not set(result.output) & {"\x1b", "\x07", "\r", "\u202e", "\x9b", "\x7f"}
