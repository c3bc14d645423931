"""submit, get, list, cancel and models against a server whose answers are written down."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.job_answers import ID, artifact, job
from tests.fixtures.scripted_server import ScriptedServer
from tests.fixtures.waiting import wait_until

READY = {"data": [{"model": "tiny", "state": "ready"}]}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script_success(server: ScriptedServer, pictures: int = 1) -> None:
    server.add("/v1/workers", READY)
    server.add("/v1/jobs", job("queued"), status=202)
    server.add(f"/v1/jobs/{ID}", job("in_progress", progress={"step": 3, "steps": 24}), Retry_After="0")
    server.add(f"/v1/jobs/{ID}", job("completed", artifacts=[artifact(i) for i in range(pictures)]))
    server.add(f"/v1/jobs/{ID}/content", b"first")
    server.add(f"/v1/jobs/{ID}/content", b"second")


def test_submit_waits_and_saves_the_picture(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    result = renderq("submit", "a boat")
    assert result.exit_code == 0
    assert result.stdout == "renderq-456789ab.png\n"
    assert Path("renderq-456789ab.png").read_bytes() == b"first"
    assert "rendering" in result.stderr


def test_submit_sends_pictures_first_and_names_them(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    server.add("/v1/files", {"id": "the-image"}, status=201)
    server.add("/v1/files", {"id": "the-mask"}, status=201)
    Path("day.png").write_bytes(b"day")
    Path("mask.png").write_bytes(b"mask")
    flags = "--model m --image day.png --mask mask.png --strength 0.4 --no-wait"
    assert renderq("submit", "a boat", *flags.split()).exit_code == 0
    *sent, ordered = server.calls
    assert [b"day" in call.body for call in sent] == [True, False]
    assert all(call.headers["Content-Type"].startswith("multipart/form-data") for call in sent)
    named = {"image": "the-image", "mask": "the-mask", "strength": 0.4}
    assert ordered.body == {"prompt": "a boat", "model": "m"} | named


@pytest.mark.parametrize("named", [f"job:{ID}/1", ID, "sha256:" + "0" * 64])
def test_submit_passes_on_what_the_server_has(renderq: Run, server: ScriptedServer, named: str) -> None:
    script_success(server)
    assert renderq("submit", "a boat", "--model", "m", "--image", named, "--no-wait").exit_code == 0
    assert server.calls[0].body["image"] == named


def test_submit_refuses_a_picture_that_cannot_be_read(renderq: Run, server: ScriptedServer) -> None:
    result = renderq("submit", "a boat", "--model", "m", "--image", "none.png")
    assert result.exit_code == 2
    assert "--image none.png cannot be read: No such file" in result.stderr
    assert server.calls == []


def test_submit_sends_the_fields_that_were_given_and_no_others(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    flags = (
        "--model m --negative-prompt fog --width 64 --height 48 --num-inference-steps 9 --guidance-scale 2.5 "
    )
    flags += "--seed 7 --n 2 --cache off --output-format webp --num-frames 9 --fps 8 --priority high "
    flags += "--queue-timeout-s 5 --run-timeout-s 6 --metadata a=b=c --no-wait"
    assert renderq("submit", "a boat", *flags.split()).exit_code == 0
    assert server.calls[0].body == {
        "prompt": "a boat",
        "model": "m",
        "negative_prompt": "fog",
        "width": 64,
        "height": 48,
        "num_inference_steps": 9,
        "guidance_scale": 2.5,
        "seed": 7,
        "n": 2,
        "cache": "off",
        "output_format": "webp",
        "num_frames": 9,
        "fps": 8,
        "priority": "high",
        "queue_timeout_s": 5.0,
        "run_timeout_s": 6.0,
        "metadata": {"a": "b=c"},
    }


def test_submit_takes_the_model_that_the_workers_serve(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    renderq("submit", "a boat", "--no-wait")
    assert server.calls[1].body == {"prompt": "a boat", "model": "tiny"}


@pytest.mark.parametrize(
    ("states", "words"),
    [({"a": "ready", "b": "ready"}, "several models"), ({"a": "gone", "b": "failed"}, "no model is served")],
)
def test_submit_asks_for_the_model_where_there_is_a_choice_or_none(
    renderq: Run, server: ScriptedServer, states: dict[str, str], words: str
) -> None:
    server.add("/v1/workers", {"data": [{"model": model, "state": state} for model, state in states.items()]})
    server.add("/v1/models", {"data": [{"id": "a"}, {"id": "b"}]})
    result = renderq("submit", "a boat")
    assert result.exit_code == 2
    assert words in result.stderr
    assert "one of a, b" in result.stderr


def test_submit_always_sends_an_idempotency_key(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    renderq("submit", "a boat", "--model", "tiny", "--no-wait")
    renderq("submit", "a boat", "--model", "tiny", "--no-wait")
    renderq("submit", "a boat", "--model", "tiny", "--no-wait", "--idempotency-key", "mine")
    drawn, second, given = (call.headers["Idempotency-Key"] for call in server.calls)
    assert len(drawn) > 20
    assert drawn != second
    assert given == "mine"


def test_several_pictures_are_numbered(renderq: Run, server: ScriptedServer) -> None:
    script_success(server, pictures=2)
    result = renderq("submit", "a boat", "--output", "boat.png")
    assert result.stdout == "boat-0.png\nboat-1.png\n"
    assert Path("boat-1.png").read_bytes() == b"second"


def test_submit_names_the_job_at_once_and_each_seed_beside_its_file(
    renderq: Run, server: ScriptedServer
) -> None:
    script_success(server, pictures=2)
    lines = renderq("submit", "a boat", "--output", "boat.png").stderr.splitlines()
    assert lines[0] == f"job {ID}: queued"
    assert lines[-2:] == ["boat-0.png: seed 7", "boat-1.png: seed 8"]


def test_submit_says_that_a_job_without_a_worker_waits(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    server.answers["/v1/jobs"].clear()
    server.add("/v1/jobs", job("queued", warnings=["no worker is serving model tiny now"]), status=202)
    words = "no worker is serving model tiny now; it waits. Ctrl-C leaves it queued; --queue-timeout-s limits"
    assert words in renderq("submit", "a boat").stderr


def test_a_picture_can_go_to_standard_output(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    assert renderq("submit", "a boat", "--output", "-").stdout_bytes == b"first"


def test_submit_as_json_prints_the_job_with_the_saved_files_and_nothing_else(
    renderq: Run, server: ScriptedServer
) -> None:
    script_success(server)
    result = renderq("submit", "a boat", "--json")
    answer = json.loads(result.stdout)
    assert answer["status"] == "completed"
    assert answer["saved"] == ["renderq-456789ab.png"]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("canceled", 4), ("expired", 4)]
)
def test_the_exit_code_tells_how_a_job_ended(
    renderq: Run, server: ScriptedServer, status: str, code: int
) -> None:
    server.add(f"/v1/jobs/{ID}", job(status, error={"code": "x", "message": "out of memory"}))
    assert renderq("get", ID).exit_code == code
    assert renderq("get", ID, "--wait", "--json").exit_code == code


def test_a_job_that_goes_on_is_no_failure(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", job("queued", queue_position=2))
    result = renderq("get", ID)
    assert result.exit_code == 0
    assert "queued, place 2" in result.stdout


def test_a_failed_submit_says_why(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/jobs", job("queued"), status=202)
    server.add(f"/v1/jobs/{ID}", job("failed", error={"code": "out_of_memory", "message": "no memory left"}))
    result = renderq("submit", "a boat", "--model", "tiny")
    assert result.exit_code == 1
    assert f"job {ID} failed: no memory left" in result.stderr


def test_get_saves_a_picture_of_a_finished_job(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", job("completed", artifacts=[artifact(0)]))
    server.add(f"/v1/jobs/{ID}/content", b"first")
    assert renderq("get", ID, "--output", "boat.png").exit_code == 0
    assert Path("boat.png").read_bytes() == b"first"


def test_an_output_that_cannot_be_written_is_named(renderq: Run, server: ScriptedServer) -> None:
    script_success(server)
    result = renderq("submit", "a boat", "--output", "nowhere/boat.png")
    assert result.exit_code == 2
    assert "cannot write nowhere/boat.png: No such file or directory" in result.stderr
    assert not server.calls


def test_an_output_is_refused_before_anything_is_ordered(renderq: Run, server: ScriptedServer) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    orders = {
        ("--output", "folder"): "Is a directory",
        ("--output", "file/boat.png"): "Not a directory",
        ("--n", "2", "--output", "-"): "takes one picture",
        ("--output", "x.jpg", "--output-format", "png"): "disagree",
    }
    for flags, words in orders.items():
        result = renderq("submit", "a boat", "--model", "tiny", *flags)
        assert (result.exit_code, words in result.stderr) == (2, True)
    assert not server.calls


def test_get_refuses_an_output_before_it_waits(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", job("queued"))
    result = renderq("get", ID, "--output", "nowhere/boat.png")
    assert result.exit_code == 2
    assert len(server.calls) == 1


@pytest.mark.parametrize(("suffix", "named"), [("JPG", "jpeg"), ("jpeg", "jpeg"), ("webp", "webp")])
def test_the_suffix_of_the_output_names_the_format(
    renderq: Run, server: ScriptedServer, suffix: str, named: str
) -> None:
    script_success(server)
    assert renderq("submit", "a boat", "--model", "tiny", "--output", f"x.{suffix}").exit_code == 0
    assert server.calls[0].body == {"prompt": "a boat", "model": "tiny", "output_format": named}


def test_a_picture_that_cannot_be_written_afterwards_can_be_had_again(
    renderq: Run, server: ScriptedServer
) -> None:
    script_success(server)
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    result = renderq("submit", "a boat", "--output", "/dev/full")
    assert result.exit_code == 2
    assert f"`renderq get {ID} --output FILE`" in result.stderr


HOSTILE = "\x1b]0;pwn\x07\x1b[31mred\r\n\nfake row \u202e \x9b31m \x7f \ud800"


@pytest.mark.parametrize("flags", [("get", ID), ("list",), ("models",), ("submit", "a boat", "--no-wait")])
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_text_of_others_cannot_drive_the_terminal(
    renderq: Run, server: ScriptedServer, flags: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    shown = job("queued", request={"prompt": HOSTILE}, model=HOSTILE, warnings=[HOSTILE])
    keys = dict.fromkeys(("id", "kind", "family", "license", "name", "ready_workers"), HOSTILE)
    server.add(f"/v1/jobs/{ID}", shown)
    server.add("/v1/models", {"data": [keys | {"size": {}}]})
    server.add("/v1/workers", READY)
    server.add("/v1/jobs", shown | {"data": [shown], "has_more": True, "last_id": HOSTILE})
    result = renderq(*flags, *as_json)
    assert result.exit_code == 0
    assert not set(result.output) & set(HOSTILE) - set(" abcdefghijklmnopqrstuvwxyz[]0;31\n")
    assert not any(line.startswith("fake row") for line in result.output.splitlines())


def test_a_refusal_cannot_drive_the_terminal(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"detail": HOSTILE}, status=422)
    result = renderq("list")
    assert result.exit_code == 2
    assert "\x1b" not in result.output
    assert "\\x0d⏎⏎fake row \\u202e \\x9b31m" in result.stderr


def test_text_that_is_not_utf8_is_refused_before_sending(renderq: Run, server: ScriptedServer) -> None:
    result = renderq("submit", "a \udcff boat", "--model", "tiny")
    assert (result.exit_code, "prompt is not UTF-8" in result.stderr) == (2, True)
    assert renderq("get", "\udcff").exit_code == 2
    assert not server.calls


def test_metadata_without_a_value_is_refused_before_sending(renderq: Run, server: ScriptedServer) -> None:
    result = renderq("submit", "a boat", "--model", "tiny", "--metadata", "owner")
    assert result.exit_code == 2
    assert "'owner' is not KEY=VALUE" in result.stderr
    assert not server.calls


def test_a_list_shows_each_job_on_a_line_and_how_to_go_on(renderq: Run, server: ScriptedServer) -> None:
    prompt = "many\nwords " * 20
    page = {"data": [job("completed", request={"prompt": prompt})], "has_more": True, "last_id": ID}
    server.add("/v1/jobs", page)
    result = renderq("list", "--status", "completed", "--limit", "1")
    assert server.calls[0].path == "/v1/jobs?status=completed&limit=1"
    assert len([line for line in result.stdout.splitlines() if ID in line]) == 1
    assert f" --after {ID}" in result.stderr
    assert json.loads(renderq("list", "--json").stdout) == page


def test_cancel_says_what_it_did(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}/cancel", job("in_progress", cancel_requested_at="now"))
    assert renderq("cancel", ID).stdout == "rendering, stopping\n"


def test_cancelling_a_finished_job_is_refused_in_words(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}/cancel", {"detail": "the job has already finished"}, status=409)
    result = renderq("cancel", ID)
    assert result.exit_code == 2
    assert "already finished" in result.stderr


def test_requeue_prints_the_id_of_the_new_job_and_nothing_else(renderq: Run, server: ScriptedServer) -> None:
    new = job("queued", id="new-id", requeued_from=ID, warnings=["no worker"])
    server.add(f"/v1/jobs/{ID}/requeue", new, status=202)
    result = renderq("requeue", ID)
    assert (result.stdout, result.stderr) == ("new-id\n", "queued\nno worker\n")
    assert (server.calls[0].method, server.calls[0].path) == ("POST", f"/v1/jobs/{ID}/requeue")
    renderq("requeue", ID, "--queue-timeout-s", "60", "--run-timeout-s", "9")
    assert server.calls[1].path == f"/v1/jobs/{ID}/requeue?queue_timeout_s=60.0&run_timeout_s=9.0"
    assert json.loads(renderq("requeue", ID, "--json").stdout)["requeued_from"] == ID


def test_requeueing_a_job_that_did_not_fail_is_refused_in_words(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}/requeue", {"detail": "only a failed job can be requeued"}, status=409)
    result = renderq("requeue", ID)
    assert result.exit_code == 2
    assert "only a failed job" in result.stderr


@pytest.mark.parametrize(
    ("found", "state", "command"),
    [
        (job("failed", parked=True), "failed, parked", True),
        (job("expired"), "expired", True),
        (job("failed", parked=True, requeued_as="newer"), "failed, requeued", False),
        (job("failed", error={"code": "x", "message": "no", "retryable": False}), "failed", False),
        (job("completed"), "completed", False),
    ],
)
def test_a_job_that_another_try_may_help_names_the_command_for_it(
    renderq: Run, server: ScriptedServer, found: dict[str, Any], state: str, command: bool
) -> None:
    server.add(f"/v1/jobs/{ID}", found)
    server.add("/v1/jobs", {"data": [found], "has_more": False, "last_id": ID})
    shown = dict(line.split(maxsplit=1) for line in renderq("get", ID).stdout.splitlines())
    assert shown["status"] == state
    assert (shown.get("again") == f"renderq requeue {ID}") is command
    assert f" {state} " in renderq("list").stdout


def test_parked_jobs_that_nobody_has_handled_are_listed_page_by_page(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/v1/jobs", {"data": [job("failed", parked=True)], "has_more": True, "last_id": ID})
    result = renderq("list", "--parked", "--not-requeued")
    assert server.calls[0].path == "/v1/jobs?parked=true&requeued=false&limit=20"
    assert f"renderq list --parked --not-requeued --after {ID}" in result.stderr
    assert "renderq list --requeued --after" in renderq("list", "--requeued").stderr


def test_every_try_at_a_job_is_listed_with_the_name_of_its_worker(
    renderq: Run, server: ScriptedServer
) -> None:
    lost = {"code": "worker_lost", "message": "silent"}
    times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": None}
    tries = [
        {"number": 1, "worker": "w-1", "outcome": "lost", "step": 5, "error": lost, **times},
        {"number": 2, "worker": "w-2", "outcome": None, "step": None, "error": None, **times},
    ]
    server.add(f"/v1/jobs/{ID}/attempts", {"data": tries})
    server.add("/v1/workers", {"data": [{"id": "w-1", "name": "tiny-7@here"}]})
    first, second = [line.split() for line in renderq("attempts", ID).stdout.splitlines()[1:]]
    assert first[:4] == ["1", "tiny-7@here", "lost", "5"]
    assert first[-2:] == ["worker_lost:", "silent"]
    assert second[:4] == ["2", "w-2", "running", "-"]
    assert json.loads(renderq("attempts", ID, "--json").stdout) == tries


def test_a_job_shows_what_it_repeats_and_what_repeats_it(renderq: Run, server: ScriptedServer) -> None:
    server.add(f"/v1/jobs/{ID}", job("failed", requeued_from="older", requeued_as="newer"))
    lines = [line.split() for line in renderq("get", ID).stdout.splitlines()]
    assert ["requeued", "from", "older"] in lines
    assert ["requeued", "as", "newer"] in lines


def test_parked_jobs_can_be_listed_alone(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"data": [job("failed")], "has_more": False})
    renderq("list", "--parked")
    renderq("list")
    assert [call.path for call in server.calls] == ["/v1/jobs?parked=true&limit=20", "/v1/jobs?limit=20"]


def test_models_are_listed_with_their_warm_workers(renderq: Run, server: ScriptedServer) -> None:
    model = {
        "id": "tiny",
        "kind": "image",
        "family": "flux",
        "size": {"default": [64, 64]},
        "inputs": {"image_to_image": True, "inpaint": False, "strength": 0.6},
        "ready_workers": 1,
    }
    server.add("/v1/models", {"data": [model | {"license": "Apache-2.0", "name": "Tiny"}]})
    line = renderq("models").stdout.splitlines()[1].split()
    assert line == ["tiny", "image", "flux", "64x64", "text,", "a", "picture", "1", "Apache-2.0", "Tiny"]


def test_ctrl_c_while_waiting_leaves_the_job_alone_and_says_how_to_go_on(
    renderq: Run, server: ScriptedServer
) -> None:
    server.add("/v1/jobs", job("queued"), status=202)
    server.add(f"/v1/jobs/{ID}", job("queued"))

    def interrupt() -> None:
        wait_until(lambda: [call.method for call in server.calls].count("GET") > 1, what="waiting")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    result = renderq("submit", "a boat", "--model", "tiny")
    interrupter.join()
    assert result.exit_code == 130
    assert f"the job goes on. See it: renderq get {ID}\n" in result.stderr
    assert not [call for call in server.calls if call.path.endswith("/cancel")]
