"""What the packages may do, held by a machine."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "cli", "core", "migrations", "pipeline", "policy", "tasks")
"""What the wheel holds."""

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

EXCUSED = {("cli/submit.py", "submit")}
"""Longer on purpose: its signature is the table of the command's options, its body is short."""

OWN_CLOCK = {"core/recurrence.py"}
"""Where this machine's time may count: to judge what a caller sends, before anything of it is kept."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Return the path and the syntax tree of every shipped module."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that hold docstrings, those of attributes included."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def length(node: ast.Module | Definition) -> int:
    """Return the number of lines from the first to the last statement, docstrings left out."""
    first = 1 if isinstance(node, ast.Module) else node.lineno
    last = max((child.end_lineno or 0 for child in ast.walk(node) if isinstance(child, ast.stmt)), default=0)
    return last - first + 1 - len(docstring_lines(node))


def offences(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield each place that does what only one module may do, or that is too long."""
    if length(tree) > MAX_MODULE_LINES:
        yield f"{module}: {length(tree)} lines"
    for node in ast.walk(tree):
        if is_long(node) and (module, node.name) not in EXCUSED:
            yield f"{module}:{node.lineno} {node.name}: {length(node)} lines"
        if commits(node) and module != "core/db.py":
            yield f"{module}:{node.lineno} commits"  # type: ignore[attr-defined]
        if writes_state_of_job(node) and module != "core/moves.py":
            yield f"{module}:{node.lineno} writes Job.state"  # type: ignore[attr-defined]
        if reads_own_clock(node) and module.startswith(("core/", "tasks/")) and module not in OWN_CLOCK:
            yield f"{module}:{node.lineno} reads the time of its machine"  # type: ignore[attr-defined]


def is_long(node: ast.AST) -> TypeGuard[Definition]:
    return isinstance(node, Definition) and length(node) > MAX_FUNCTION_LINES


def commits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "commit"


def reads_own_clock(node: ast.AST) -> bool:
    """Whether the node asks for the time of day; `time.monotonic` is no such time."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    module = getattr(node.func.value, "id", "")
    return (module, node.func.attr) in {("datetime", "now"), ("datetime", "utcnow"), ("time", "time")}


def writes_state_of_job(node: ast.AST) -> bool:
    """Whether the node sets ``job.state``, makes ``Job(state=...)``, or updates or inserts rows of Job."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(part, ast.Attribute) and is_state_of_job(part) for part in targets)
    if not isinstance(node, ast.Call):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name == "Job":
        return True
    named = [part.id for part in node.args if isinstance(part, ast.Name)]
    return name in ("update", "insert") and "Job" in named


def is_state_of_job(part: ast.Attribute) -> bool:
    return part.attr == "state" and isinstance(part.value, ast.Name) and part.value.id.lower().endswith("job")


# --- the tests ---


def test_the_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run(
        [program, "--no-cache"], check=False, capture_output=True, text=True, cwd=ROOT, timeout=280
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_our_package_names_are_ours_alone() -> None:
    owners = importlib.metadata.packages_distributions()
    claimed = {package: set(owners.get(package, ())) - {"renderq"} for package in (*PACKAGES, "tests")}
    assert not any(claimed.values()), claimed


def test_the_wheel_holds_all_our_packages_and_they_are_all_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert set(project["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
    assert set(project["mypy"]["packages"]) >= set(PACKAGES)
    assert set(project["importlinter"]["root_packages"]) == set(PACKAGES) - {"migrations"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_its_init_is_empty(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    folders = {path.parent for path in (ROOT / package).rglob("*.py")} - {ROOT / "migrations" / "versions"}
    for folder in folders:
        assert (folder / "__init__.py").read_text(encoding="utf-8").strip() == "", folder


def test_an_excuse_is_still_needed() -> None:
    long = {(module, node.name) for module, tree in modules() for node in ast.walk(tree) if is_long(node)}
    assert long == EXCUSED


def test_no_python_in_the_docker_folder() -> None:
    """A folder ``docker`` with Python in it would hide the Docker SDK."""
    assert not list((ROOT / "docker").rglob("*.py"))


def test_one_place_commits_one_writes_jobs_the_database_has_the_clock_and_nothing_is_long() -> None:
    assert [offence for module, tree in modules() for offence in offences(module, tree)] == []


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("session.commit()", "commits"),
        ("job.state = 'failed'", "writes Job.state"),
        ("a = next_job.state = x", "writes Job.state"),
        ("Job(id=1)", "writes Job.state"),
        ("update(Job).values(state=1)", "writes Job.state"),
        ("sqlalchemy.insert(Job)", "writes Job.state"),
        ("def long():\n" + "    x = 1\n" * 60, "long: 61 lines"),
        ("x = 1\n" * 401, "401 lines"),
        ("datetime.now(UTC)", "reads the time of its machine"),
        ("time.time()", "reads the time of its machine"),
    ],
)
def test_an_offence_would_be_seen(code: str, told: str) -> None:
    (offence,) = offences("tasks/render.py", ast.parse(code))
    assert offence.endswith(told)


@pytest.mark.parametrize(
    "code",
    [
        "worker.state = 'ready'",
        "update(Worker).values(state=1)",
        "state = job.state",
        "select(Job)",
        "time.monotonic()",
        '"""' + "\n" * 500 + '"""',
        "def long():\n    '''Doc" + "\n" * 80 + "'''\n    return 1",
    ],
)
def test_what_is_allowed_is_not_told(code: str) -> None:
    assert list(offences("tasks/render.py", ast.parse(code))) == []


def test_core_loads_no_framework() -> None:
    modules_of_core = ", ".join(f"core.{path.stem}" for path in (ROOT / "core").glob("[a-z]*.py"))
    never = {"celery", "kombu", "redis", "fastapi", "torch"}
    code = f"import sys, {modules_of_core}; print(sorted({never!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"
