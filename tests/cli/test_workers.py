"""`renderq workers` against a server whose answers are written down."""

import json
from typing import Any

from tests.cli.conftest import Run
from tests.cli.job_answers import ID
from tests.fixtures.scripted_server import ScriptedServer


def worker(name: str, state: str, job: str | None = None) -> dict[str, Any]:
    since = {"started_at": "2026-01-01T00:00:00Z", "heartbeat_at": "2026-01-02T00:00:00Z"}
    return {
        "name": name,
        "model": "tiny",
        "state": state,
        "current_job_id": job,
        "jobs_done": 3,
        "warm_shapes": None,
        "cold_requests": None,
    } | since


def test_live_workers_are_listed_and_the_ended_ones_on_demand(renderq: Run, server: ScriptedServer) -> None:
    rows = [worker("a@here", "ready", ID), worker("b@here", "gone"), worker("c@here", "failed")]
    server.add("/v1/workers", {"data": rows})
    lines = [line.split() for line in renderq("workers").stdout.splitlines()]
    assert [line[0] for line in lines] == ["name", "a@here"]
    assert lines[1][1:3] == ["tiny", "ready"]
    assert lines[1][-3:] == ["3", "any", ID]
    assert len(renderq("workers", "--all").stdout.splitlines()) == 4
    assert json.loads(renderq("workers", "--json").stdout) == rows[:1]


def test_no_live_worker_is_said_in_words(renderq: Run, server: ScriptedServer) -> None:
    server.add("/v1/workers", {"data": [worker("b@here", "gone")]})
    result = renderq("workers")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no live worker; --all" in result.stderr


def test_warm_shapes_are_counted_where_something_is_compiled(renderq: Run, server: ScriptedServer) -> None:
    compiling = {"warm_shapes": ["64x64", "96x64 guided"], "cold_requests": {}}
    busy = compiling | {"cold_requests": {"128x64": 3}}
    server.add(
        "/v1/workers", {"data": [worker("a@here", "ready") | compiling, worker("b@here", "ready") | busy]}
    )
    lines = renderq("workers").stdout.splitlines()
    assert "2 warm, 1 cold" not in lines[1]
    assert "2 warm" in lines[1]
    assert "2 warm, 1 cold" in lines[2]
