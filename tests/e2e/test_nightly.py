"""A content team's night: a schedule of a product list, fired, held, let go on, watched and fetched."""

import csv
import io
import itertools
import json
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from PIL import Image
from typer.testing import CliRunner

from cli.main import app
from tests.fixtures.plain import http
from tests.fixtures.stack import RunningStack
from training.checker import judge

pytestmark = pytest.mark.xdist_group("stack")
PRODUCTS = Path(__file__).parents[2] / "docs" / "examples" / "products.csv"
TEMPLATE = "a {colour} {thing} on a meadow"
LONG = {"seed": 7, "n": 8, "num_inference_steps": 50, "guidance_scale": 2.5}
"""A single job that keeps the only worker busy until it is cancelled."""

Renderq = Callable[..., str]


@pytest.fixture
def renderq(stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renderq:
    """Run a command against the system and return what it prints; its exit code must be the named one."""
    monkeypatch.setenv("RENDERQ_URL", stack.url)
    monkeypatch.chdir(tmp_path)
    shutil.copy(PRODUCTS, tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.stdout

    return run


def next_local_times(renderq: Renderq, schedule: str) -> list[datetime]:
    answer = json.loads(renderq("schedule", "next", schedule, "--count", "5", "--json"))
    return [datetime.fromisoformat(text).astimezone(ZoneInfo("Europe/Berlin")) for text in answer["data"]]


def test_a_nightly_schedule_is_fired_held_resumed_watched_and_fetched(
    renderq: Renderq, stack: RunningStack
) -> None:
    rule = ("--cron", "0 22 * * *", "--timezone", "Europe/Berlin", "--name", "nightly products")
    schedule = renderq(
        "schedule", "add", "products.csv", "--template", TEMPLATE, "--keep", "sku", *rule
    ).strip()
    times = next_local_times(renderq, schedule)
    assert [(time.hour, time.minute) for time in times] == [(22, 0)] * 5
    assert [(later - time).days for time, later in itertools.pairwise(times)] == [1] * 4

    long = stack.submit("a green tree on a meadow", **LONG)
    stack.wait_for(long, "in_progress")
    batch = renderq("schedule", "fire", schedule).strip()
    assert renderq("batch", "pause", batch).startswith("paused: 0 of 8 done")
    http.post(f"{stack.url}/v1/jobs/{long}/cancel").raise_for_status()
    stack.wait_for(long, "canceled")
    after = stack.submit("a green tree on a meadow", seed=1)  # the worker is free, and takes a single job
    assert stack.wait_for(after, "completed")
    held = json.loads(renderq("batch", "get", batch, "--json"))
    assert (held["status"], held["counts"]["completed"], held["schedule_id"]) == ("paused", 0, schedule)

    renderq("batch", "resume", batch)
    ended = json.loads(renderq("batch", "watch", batch, "--json"))
    assert (ended["status"], ended["counts"]["completed"]) == ("completed", 8)

    check_pictures(renderq, batch)
    check_sheet(renderq, batch)
    check_history(renderq, schedule, batch)
    renderq("schedule", "remove", schedule)


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(PRODUCTS.read_text())))


def check_pictures(renderq: Renderq, batch: str) -> None:
    """The archive has a picture for each row, named as asked, and most of them show what their row says."""
    path = renderq("batch", "download", batch, "--name", "{row}-{sku}").strip()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = [f"{number}-{row['sku']}.png" for number, row in enumerate(rows(), start=1)]
        assert set(names) <= set(archive.namelist())
        pictures = [Image.open(io.BytesIO(archive.read(name))) for name in names]
    right = [
        judge(TEMPLATE.format(**row), picture).correct for row, picture in zip(rows(), pictures, strict=True)
    ]
    assert sum(right) >= 6, right


def check_sheet(renderq: Renderq, batch: str) -> None:
    path = renderq("batch", "sheet", batch, "--columns", "4", "--output", "sheet.png").strip()
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        assert min(sheet.size) > 2 * 64


def check_history(renderq: Renderq, schedule: str, batch: str) -> None:
    """The table of results, the jobs, the schedule's firings and its list all tell of the batch."""
    table = renderq("batch", "results", batch, "--output", "-").removeprefix("\ufeff")
    results = list(csv.DictReader(io.StringIO(table)))
    assert [row["sku"] for row in results] == [row["sku"] for row in rows()]
    jobs = json.loads(renderq("list", "--batch", batch, "--status", "completed", "--json"))["data"]
    assert {job["batch_row"] for job in jobs} == set(range(1, 9))
    [firing] = json.loads(renderq("schedule", "firings", schedule, "--json"))["data"]
    assert (firing["kind"], firing["outcome"], firing["batch_id"]) == ("manual", "fired", batch)
    assert batch in renderq("batch", "list", "--schedule", schedule)
    assert "fired" in next(line for line in renderq("schedule", "list").splitlines() if schedule in line)
