"""`renderq up` as its user meets it: refusals in words, restarts, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.processes import is_gone
from tests.fixtures.stack import QUICK, RENDERQ, RunningStack, RunningUp, start_up, stop
from tests.fixtures.waiting import wait_until

NAMES = ("renderq api", "renderq worker", "renderq upkeep", "valkey-server")
CHECKS = [
    *("python", "packages", "device", "compiler", "valkey"),
    *("database", "redis", "artifacts", "workers", "api"),
]
BROKEN_MODEL = """
id = "broken"
name = "Broken"
family = "flux"
kind = "image"
source = "{source}"
license = "none"
description = "Weights that are not there."
pipeline_class = "FluxPipeline"
dtype = "float32"
output_formats = ["png"]
[size]
default = [64, 64]
multiple = 16
minimum = 64
maximum = 64
max_pixels = 4096
sizes = [[64, 64]]
[steps]
default = 4
minimum = 1
maximum = 8
[guidance]
default = 1.0
minimum = 1.0
maximum = 1.0
style = "none"
[limits]
n = 1
prompt_characters = 100
[residency]
component_gb = {{ transformer = 0.1 }}
working_gb = 0.1
keep_resident_min_available_gb = 0.2
keep_resident = ["transformer"]
"""


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A `renderq up` that has to end by itself."""
    command = [sys.executable, RENDERQ, "up", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def all_there(up: RunningUp) -> bool:
    return all(up.find(name) for name in NAMES)


@pytest.mark.xdist_group("stack")
def test_every_process_says_what_it_is_and_stands_below_up(stack: RunningStack) -> None:
    commands = stack.below().values()
    for name in NAMES:
        assert any(name in command for command in commands), name


@pytest.mark.xdist_group("stack")
def test_a_second_up_in_the_same_folder_is_refused_in_words(stack: RunningStack) -> None:
    done = refused("--data", str(stack.data_dir), "--port", "0")
    assert done.returncode == 3
    assert f"another renderq (process {stack.process.pid}) runs in {stack.data_dir}" in done.stderr


@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize("name", ["renderq api", "renderq upkeep", "renderq flower", "valkey-server"])
def test_a_killed_process_is_started_again(stack: RunningStack, name: str) -> None:
    before = stack.find(name)
    os.kill(before[-1], signal.SIGKILL)
    wait_until(lambda: stack.find(name) and not set(stack.find(name)) & set(before), 60, f"a new {name}")
    job_id = wait_until(lambda: try_to_submit(stack), 60, "the API answers again")
    assert stack.wait_for(job_id, "completed", timeout_s=60)


def try_to_submit(stack: RunningStack) -> str:
    import httpx2

    try:
        return stack.submit("a boat with a yellow sail on the sea", seed=1)
    except httpx2.TransportError:
        return ""


@pytest.mark.xdist_group("stack")
def test_the_doctor_finds_a_running_system_in_order(stack: RunningStack) -> None:
    done = subprocess.run(
        [sys.executable, RENDERQ, "doctor", "--json"],
        env={**os.environ, **stack.env, "RENDERQ_URL": stack.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert answer["ok"]
    found: dict[str, dict[str, str]] = {check["name"]: check for check in answer["checks"]}
    assert list(found) == CHECKS
    assert {name for name, check in found.items() if check["level"] != "ok"} <= {"device"}
    assert found["redis"]["text"].endswith("maxmemory-policy noeviction, appendonly yes")
    assert "tiny" in found["workers"]["text"]


def test_a_port_in_use_is_refused_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused("--data", str(tmp_path), "--port", str(port))
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "--port" in done.stderr


def test_an_address_of_the_network_needs_a_word_of_trust(tmp_path: Path) -> None:
    done = refused("--data", str(tmp_path), "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "--trust-network" in done.stderr


def test_ctrl_c_while_starting_leaves_no_process(tmp_path: Path) -> None:
    with start_up(tmp_path) as up:
        wait_until(lambda: all_there(up), 60, "all processes")
        assert stop(up) == 0
        assert up.said().splitlines()[-1] == "stopped"


def test_a_killed_up_leaves_no_process(tmp_path: Path) -> None:
    with start_up(tmp_path, "--flower-port", "0") as up:
        wait_until(lambda: all_there(up) and up.find("renderq flower"), 60, "all processes")
        below = up.below()
        up.process.kill()
        wait_until(lambda: all(is_gone(pid) for pid in below), 20, f"the end of {below}")


def test_a_model_that_cannot_be_loaded_ends_it_with_70_and_the_reason(tmp_path: Path) -> None:
    catalogue = tmp_path / "catalogue"
    catalogue.mkdir()
    (catalogue / "broken.toml").write_text(BROKEN_MODEL.format(source=tmp_path / "no-weights"))
    env = QUICK | {"RENDERQ_CATALOGUE_DIR": str(catalogue)}
    with start_up(tmp_path, "--model", "broken", env=env) as up:
        wait_until(lambda: all_there(up), 60, "all processes")
        below = up.below()
        wait_until(lambda: up.process.poll() is not None, 120, "the end")
        assert up.process.returncode == 70
        assert "the model broken could not be made ready" in up.said()
        assert all(is_gone(pid) for pid in below)
