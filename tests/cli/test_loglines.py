"""What the terminal of `renderq up` shows of the logs."""

import json

import pytest

from cli.loglines import concise


def line(**fields: object) -> str:
    return json.dumps(
        {"event": "job.claimed", "level": "info", "logger": "tasks.render", "timestamp": "now"} | fields
    )


@pytest.mark.parametrize(
    ("program", "written", "shown"),
    [
        ("worker", line(job="1", model="tiny", seconds=None, detail={}), "job.claimed job=1 model=tiny"),
        (
            "worker",
            line(event="job.completed", job_id="1", model="tiny", timings_ms={"total": 281.3}, attempt=1),
            "job 1 tiny completed 0.28 s",
        ),
        ("worker", line(event="job.started", job_id="1"), None),
        ("worker", line(event="two\nlines"), "two"),
        ("worker", line(logger="celery.worker", event="connected"), None),
        ("worker", line(logger="celery.worker", level="warning", event="lost"), "warning: lost"),
        ("worker", line(level="error", exception="Traceback ..."), "error: job.claimed\nTraceback ..."),
        ("api", line(logger="api.middleware", event="http.answered"), None),
        ("api", line(logger="api.middleware", event="http.answered", level="error"), "error: http.answered"),
        ("worker", "Segmentation fault", "Segmentation fault"),
        ("worker", "[1, 2]", "[1, 2]"),
        ("worker", "", None),
        ("worker", " 10 %\r 60 %\r100 %\r", "100 %"),
        ("valkey", "12:M 30 Nov 2026 20:28:24.419 * Ready to accept connections unix", None),
    ],
)
def test_only_own_lines_and_warnings_are_shown(program: str, written: str, shown: str | None) -> None:
    assert concise(program, written) == shown


def test_messages_that_nobody_reads_any_more_are_not_shown_while_stopping() -> None:
    written = line(
        level="warning", event="Requeuing undeliverable message for queue 'control': No consumers."
    )
    assert concise("upkeep", written, stopping=True) is None
    assert concise("upkeep", written)
    assert concise("upkeep", line(level="warning", event="other"), stopping=True)
