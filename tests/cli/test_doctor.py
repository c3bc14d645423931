"""doctor: every part is looked at, and what is wrong comes with what to do."""

import subprocess
from pathlib import Path

import pytest

from cli import checks, valkey
from core.settings import Settings, get_settings
from tests.cli.conftest import Run
from tests.fixtures.scripted_server import ScriptedServer
from tests.fixtures.waiting import wait_until

DEPLOYMENT = ["database", "redis", "artifacts", "workers", "api"]


def examine(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, checks.Finding]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return {finding.name: finding for finding in checks.check_deployment()}


def test_a_machine_with_nothing_running_is_told_what_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = examine(monkeypatch, RENDERQ_DATA_DIR=str(tmp_path), RENDERQ_URL="http://127.0.0.1:9")
    levels = {name: finding.level for name, finding in found.items()}
    assert levels == {
        "database": "warn",
        "redis": "fail",
        "artifacts": "warn",
        "workers": "warn",
        "api": "warn",
    }
    assert "renderq up" in found["redis"].advice
    assert list(tmp_path.iterdir()) == []


def test_what_the_api_reaches_and_these_settings_do_not_is_a_matter_of_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: ScriptedServer
) -> None:
    answers = [{"name": "database", "ok": True}, {"name": "redis", "ok": True}]
    monkeypatch.setenv("RENDERQ_DATA_DIR", str(tmp_path / "absent"))

    def advice(*checks_of_api: dict[str, object]) -> dict[str, str]:
        server.answers["/readyz"] = [(503, {}, {"checks": list(checks_of_api)})]
        return {name: finding.advice for name, finding in examine(monkeypatch).items()}

    told = advice(*answers)
    for name in ("database", "redis"):
        assert told[name].startswith(f"the API at {server.url} reaches another {name}: set RENDERQ_DATA_DIR ")
        assert f"RENDERQ_{name.upper()}_URL" in told[name]
        assert f"RENDERQ_URL to the API of {tmp_path / 'absent'}" in told[name]
    assert advice(answers[0])["redis"].startswith("start it, or `renderq up`")
    get_settings.cache_clear()
    monkeypatch.setenv("RENDERQ_REDIS_URL", "redis://127.0.0.1:9/0")
    assert "reaches another redis: set RENDERQ_REDIS_URL to that one" in advice(*answers)["redis"]


def test_old_tables_are_a_failure_with_the_command_that_helps(tmp_path: Path) -> None:
    import sqlite3

    sqlite3.connect(tmp_path / "renderq.db").close()
    finding = checks.check_database(Settings.for_data_dir(tmp_path))
    assert finding.level == "fail"
    assert finding.advice == "run `renderq db upgrade`"


def test_wrong_settings_are_a_finding_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(monkeypatch, RENDERQ_REDIS_URL="http://nowhere", RENDERQ_URL="http://127.0.0.1:9")
    assert found["settings"].level == "fail"
    assert "RENDERQ_REDIS_URL" in found["settings"].text
    assert "api" in found


@pytest.mark.parametrize(
    ("kept", "level", "advice"),
    [
        ({"maxmemory-policy": "noeviction", "appendonly": "yes"}, "ok", ""),
        ({"maxmemory-policy": "allkeys-lru", "appendonly": "yes"}, "fail", "noeviction"),
        ({"maxmemory-policy": "volatile-lru", "appendonly": "yes"}, "warn", "noeviction"),
        ({"maxmemory-policy": "noeviction", "appendonly": "no"}, "warn", "appendonly yes"),
    ],
)
def test_a_redis_that_may_drop_messages_is_named(kept: dict[str, str], level: str, advice: str) -> None:
    finding = checks.judge_redis("redis://here", kept)
    assert finding.level == level
    assert advice in finding.advice


def test_a_redis_that_answers_but_refuses_config_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "valkey.sock"
    command = [*valkey.server_command(valkey.find_server(), tmp_path, path), "--rename-command", "CONFIG", ""]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: valkey.answers(path), 10, "valkey")
        finding = checks.check_redis(Settings.load(redis_url=f"redis+socket://{path}"))
    finally:
        server.kill()
        server.wait()
    assert finding.level == "warn"
    assert "noeviction" in finding.advice


def test_passwords_are_not_shown() -> None:
    assert checks.hidden("redis://user:secret@host:6379/0") == "redis://host:6379/0"
    finding = checks.check_redis(Settings.load(redis_url="redis://user:secret@127.0.0.1:9/0"))
    assert "secret" not in str(finding)


def test_what_a_check_trips_over_becomes_its_finding(tmp_path: Path) -> None:
    settings = Settings.for_data_dir(tmp_path, database_url="postgresql://nobody@127.0.0.1:9/none")
    finding = checks.guarded("database", checks.check_database, settings)
    assert finding.level == "fail"
    assert "127.0.0.1" in finding.text


def test_a_failed_check_ends_with_1_and_says_what_to_do(renderq: Run, tmp_path: Path) -> None:
    result = renderq("doctor", env={"RENDERQ_DATA_DIR": str(tmp_path), "RENDERQ_URL": "http://127.0.0.1:9"})
    assert result.exit_code == 1
    [line, advice] = result.stdout[result.stdout.index("fail redis") :].splitlines()[:2]
    assert "does not answer" in line
    assert advice.strip().startswith("-> start it")
