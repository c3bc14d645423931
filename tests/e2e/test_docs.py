"""Every command shown in README and docs/ works: it is run here, or named with the test that runs it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
LOCAL = "http://127.0.0.1:8700"

# Commands that start whole systems or installations, and the test that runs them.
ELSEWHERE = {
    "make demo": "tests/cli/test_demo.py",
    "make test": ".ci/run",
    "renderq up": "tests/fixtures/stack.py",
    "cp docs/examples": "docs/examples/products.csv",
    "git clone": ".ci/run",
    "source .venv/bin/activate": ".ci/run",
    "pip install": "Makefile",
    "renderq doctor |": "tests/cli/test_doctor.py",
    "mkdir -p": "tests/cli/test_datafolder.py",
    "curl -s -u": "tests/tasks/test_flower.py",
    "renderq submit": "tests/e2e/test_up.py",
    "docker compose": "tests/docker/test_compose.py",
    "docker/.env": "tests/docker/test_files.py",
    "renderq bench model": "tests/cli/test_benchmodel.py",
    "renderq db upgrade": "tests/e2e/test_up.py",
    "renderq api": "tests/e2e/test_up.py",
    "renderq upkeep": "tests/e2e/test_up.py",
    "renderq worker": "tests/e2e/test_up.py",
    "renderq flower": "tests/tasks/test_flower.py",
    "export RENDERQ_": "tests/e2e/test_up.py",
    "renderq policy explain": "tests/cli/test_explain.py",
    "renderq bench cache MODEL": "tests/pipeline/test_fit.py",
}


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            if match["language"] == language:
                name = f"{page.relative_to(ROOT)}-{number}"
                found.append(pytest.param(match["body"], match["rest"].strip(), id=name))
    return found


def environment(stack: Any) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, **stack.env, "RENDERQ_URL": stack.url, "PATH": f"{scripts}:{os.environ['PATH']}"}


@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize(("body", "mark"), blocks("sh"))
def test_shell_commands_of_the_documents_work(body: str, mark: str, stack: Any, tmp_path: Path) -> None:
    if mark == "elsewhere":
        for line in filter(None, body.splitlines()):
            owner = next((test for start, test in ELSEWHERE.items() if start in line), None)
            assert owner, f"no test is named for: {line}"
            assert (ROOT / owner).exists(), owner
        return
    shutil.copytree(ROOT / "docs" / "examples", tmp_path, dirs_exist_ok=True)
    script = "set -euo pipefail\n" + body.replace(LOCAL, stack.url)
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        cwd=tmp_path,
        env=environment(stack),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize(("body", "mark"), blocks("python"))
def test_python_examples_of_the_documents_work(body: str, mark: str, stack: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", body.replace(LOCAL, stack.url)],
        check=False,
        cwd=tmp_path,
        env=environment(stack),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{body}\n{done.stderr[-3000:]}"


def test_files_that_the_documents_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"`((?:tests|benchmarks|docs|policy|pipeline|core|tasks|api|cli)/[\w/.-]+)`",
            page.read_text(encoding="utf-8"),
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
