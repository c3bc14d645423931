"""The command as a whole: light, in words, with meaningful exit codes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.errors import describe_unexpected, translate
from cli.exits import MEANINGS, CliError, ExitCode
from core.errors import InvalidSettings, Unavailable
from policy.errors import FieldError, InvalidOptions
from tests.cli.conftest import Run

HEAVY = (
    "torch",
    "diffusers",
    "transformers",
    "cache_dit",
    "celery",
    "sqlalchemy",
    "fastapi",
    "httpx2",
    "PIL",
)


def test_help_names_every_command_in_groups_and_every_exit_code(renderq: Run) -> None:
    text = renderq("--help").stdout
    for word in (
        "demo",
        "up",
        "api",
        "worker",
        "upkeep",
        "submit",
        "get",
        "list",
        "cancel",
        "requeue",
        "models",
    ):
        assert word in text
    for word in ("policy", "inspect", "doctor", "db", "bench", "Start here", "Tools"):
        assert word in text
    assert all(f"{int(code)} " in text for code in MEANINGS)


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_the_version_is_the_installed_one(renderq: Run) -> None:
    assert renderq("--version").stdout == "renderq 0.1.0\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['renderq', '--help']\n"
        "from cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("submit",), ("up", "--port", "99999"), ("list", "--limit", "x")]
)
def test_bad_usage_ends_with_2_and_without_a_traceback(renderq: Run, arguments: tuple[str, ...]) -> None:
    result = renderq(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_bad_settings_are_named_together(renderq: Run) -> None:
    environment = {"RENDERQ_REDIS_URL": "http://x", "RENDERQ_MAX_ATTEMPTS": "none"}
    result = renderq("db", "upgrade", env=environment)
    assert result.exit_code == 2
    assert "RENDERQ_REDIS_URL" in result.stderr
    assert "RENDERQ_MAX_ATTEMPTS" in result.stderr


def test_a_database_that_does_not_answer_ends_with_3(renderq: Run) -> None:
    result = renderq("db", "upgrade", env={"RENDERQ_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"})
    assert result.exit_code == 3
    assert "the database does not answer" in result.stderr


def test_an_error_that_nobody_expected_is_one_line_and_not_a_traceback(
    renderq: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = renderq("inspect", "x.png")
    assert result.exit_code == 2
    assert describe_unexpected(ZeroDivisionError("by zero")).message.startswith("unexpected error: ZeroDiv")
    assert describe_unexpected(ZeroDivisionError("by zero")).code == ExitCode.FAILED


@pytest.mark.parametrize("target", [">&-", "> /dev/full"])
@pytest.mark.parametrize("command", ["--version", "policy explain tiny", "policy explain tiny --json"])
def test_an_output_that_takes_nothing_is_said_in_one_line(command: str, target: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    line = f"{sys.executable} -P -m cli.main {command} {target}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE
    assert done.stderr.startswith("renderq: cannot write to standard output: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_no_database_is_named(renderq: Run, tmp_path: Path) -> None:
    (tmp_path / "renderq.db").write_bytes(b"no database " * 100)
    result = renderq("db", "upgrade", env={"RENDERQ_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 3
    assert f"{tmp_path / 'renderq.db'} is not a SQLite database" in result.stderr
    assert "sqlalche.me" not in result.stderr


def test_errors_become_words_and_codes() -> None:
    options = InvalidOptions([FieldError("a", "a is wrong"), FieldError("b", "b is wrong")])
    expected = {
        options: ("a is wrong\nb is wrong", ExitCode.USAGE),
        InvalidSettings(("x is wrong",)): ("x is wrong", ExitCode.USAGE),
        Unavailable("away"): ("away", ExitCode.UNAVAILABLE),
        CliError("mine", ExitCode.LOAD_FAILED): ("mine", ExitCode.LOAD_FAILED),
    }
    for error, (message, code) in expected.items():
        shown = translate(error)
        assert shown
        assert (shown.message, shown.code) == (message, code)
    assert translate(ValueError()) is None


def test_ctrl_c_ends_with_130(renderq: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.client.Client.models", interrupt)
    assert renderq("models").exit_code == ExitCode.INTERRUPTED


def test_every_exit_code_is_explained_to_operators() -> None:
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    table = page.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == [str(int(code)) for code in ExitCode]
