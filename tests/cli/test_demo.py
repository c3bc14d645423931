"""`renderq demo` as a newcomer runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image

from cli.demo import PROMPT
from tests.fixtures.processes import descendants, is_gone
from tests.fixtures.stack import RENDERQ
from tests.fixtures.waiting import wait_until
from training.checker import judge

DEMO_S = 240


def test_the_demo_draws_its_prompt_and_leaves_nothing_but_the_picture(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, RENDERQ, "demo", "--seed", "7", "--json"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "XDG_DATA_HOME": str(temporary)},
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"prompt: {PROMPT}"
    [path] = json.loads(done.stdout)["saved"]
    assert judge(PROMPT, Image.open(tmp_path / path)).correct
    assert not list(temporary.glob("renderq*"))


def test_ctrl_c_during_the_demo_ends_everything_with_130(tmp_path: Path) -> None:
    demo = subprocess.Popen([sys.executable, RENDERQ, "demo"], cwd=tmp_path, process_group=0)
    below: dict[int, str] = {}
    try:
        wait_until(lambda: any("renderq worker" in line for line in descendants(demo.pid).values()), 60)
        below.update(descendants(demo.pid))
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
        assert all(is_gone(pid) for pid in below)
    finally:
        demo.kill()
        demo.wait()
