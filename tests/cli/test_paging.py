"""How to go on after a page: with the same options."""

import shlex

import pytest

from tests.cli.bulk_answers import BATCH, SCHEDULE, batch, firing, schedule
from tests.cli.conftest import Run
from tests.cli.job_answers import ID, job
from tests.fixtures.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("command", "options", "path", "row"),
    [
        (
            "list",
            f"--status failed --model tiny --batch {BATCH} --parked --limit 5",
            "/v1/jobs",
            job("failed"),
        ),
        ("list", "--model 'two words'", "/v1/jobs", job("failed")),
        ("batch list", f"--status failed --schedule {SCHEDULE} --limit 5", "/v1/batches", batch()),
        ("schedule list", "--limit 5", "/v1/schedules", schedule()),
        (f"schedule firings {SCHEDULE}", "--limit 5", f"/v1/schedules/{SCHEDULE}/firings", firing()),
    ],
)
def test_the_command_for_the_next_page_repeats_the_given_options(
    renderq: Run, server: ScriptedServer, command: str, options: str, path: str, row: object
) -> None:
    server.add(path, {"data": [row], "has_more": True, "last_id": ID})
    result = renderq(*shlex.split(f"{command} {options}"))
    assert result.exit_code == 0, result.output
    assert result.stderr == f"more: renderq {command} {options} --after {ID}\n"


def test_the_last_page_says_nothing(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/jobs", {"data": [job("failed")], "has_more": False, "last_id": ID})
    assert renderq("list", "--status", "failed").stderr == ""
