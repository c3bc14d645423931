"""What the files of docker/ promise, seen without an engine: by linters, a schema, and what is in them."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner

from cli.main import app
from cli.programs import API_GRACE_S, WORKER_GRACE_S
from core.settings import OTHERS, PREFIX, Settings
from policy.options import OPTIONS
from tests.fixtures.compose import (
    DOCKER,
    ROOT,
    SECRETS,
    VARIABLE,
    Unset,
    read_compose,
    read_env,
    read_instructions,
    seconds,
)

BIN = Path(sys.executable).parent
FILES = ("compose.yaml", "compose.gpu.yaml")
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
GIVEN = {**SECRETS, "GPU_0_MODEL": "z-image-turbo", "GPU_1_MODEL": "tiny"}
ONE_SHOT = {"bucket", "migrate"}
PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
BUILT = re.compile(r"renderq-[\w-]+:local")
IMAGE_USER = "10001:10001"
FLOWER_SETTING = "flower_basic_auth"


def services(name: str = "") -> dict[str, dict[str, Any]]:
    """The services of one file, else of both."""
    found: dict[str, dict[str, Any]] = {}
    for file in [name] if name else FILES:
        found |= read_compose(file, GIVEN)["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services().items() if service["user"] == IMAGE_USER}


def renderq_commands() -> Iterator[Any]:
    """Every command line of ours that the files run, health checks included."""
    for name, service in services().items():
        if service["image"].startswith(("renderq-api", "renderq-worker")):
            yield pytest.param(service["command"], id=name)
        check = service.get("healthcheck", {}).get("test", [])
        if check[1:2] == ["renderq"]:
            yield pytest.param(check[2:], id=f"{name}-health")


def run(*command: object, **more: Any) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **more)


# --- linters ---


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_has_nothing_that_hadolint_objects_to(dockerfile: Path) -> None:
    linted = run(BIN / "hadolint", "--no-color", dockerfile)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_compose_file_follows_the_schema_of_the_specification(name: str) -> None:
    checked = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / name)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(
    shutil.which("docker") is None or run("docker", "compose", "version").returncode != 0,
    reason="no `docker compose` on this machine",
)
def test_docker_compose_itself_reads_both_files() -> None:
    files = [word for name in FILES for word in ("-f", DOCKER / name)]
    read = run("docker", "compose", *files, "config", "--quiet", env={**os.environ, **GIVEN})
    assert read.returncode == 0, read.stderr


# --- images ---


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_base_has_a_tag_and_a_digest(dockerfile: Path) -> None:
    instructions = read_instructions(dockerfile)
    given = [rest.removeprefix("BASE=") for name, rest in instructions if name == "ARG" and "BASE" in rest]
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    for base in [*given, *(base for base in bases if base != "${BASE}")]:
        assert PINNED.fullmatch(base), base
    assert given or "${BASE}" not in bases


def test_every_image_is_built_here_or_has_a_tag_and_a_digest() -> None:
    for name, service in services().items():
        pattern = BUILT if "build" in service else PINNED
        assert pattern.fullmatch(service["image"]), name
        base = service.get("build", {}).get("args", {}).get("BASE")
        assert base is None or PINNED.fullmatch(base), name


def test_a_dockerfile_ends_with_the_one_user_of_our_images() -> None:
    for dockerfile in DOCKERFILES:
        users = [rest for name, rest in read_instructions(dockerfile) if name == "USER"]
        assert users[-1] == IMAGE_USER, dockerfile.name


def test_the_files_that_are_copied_exist_and_reach_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    for dockerfile in DOCKERFILES:
        for name in copied(dockerfile):
            assert (ROOT / name).exists(), name
            assert name in let_in, name


def copied(dockerfile: Path) -> set[str]:
    """The names that a Dockerfile takes from the folder of the build."""
    copies = [rest for name, rest in read_instructions(dockerfile) if name == "COPY"]
    return {word for rest in copies if "--from" not in rest for word in rest.split()[:-1]}


@pytest.mark.parametrize("name", ["api.Dockerfile", "worker.Dockerfile"])
def test_a_wheel_with_all_packages_can_be_built_of_what_is_copied(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "wheel"
    source.mkdir()
    for part in copied(DOCKER / name):
        path = ROOT / part
        (shutil.copytree if path.is_dir() else shutil.copy)(path, source / part)
    built = run(BIN / "hatchling", "build", "-t", "wheel", "-d", target, cwd=source)
    assert built.returncode == 0, built.stderr
    [wheel] = target.glob("*.whl")
    listed = run(sys.executable, "-m", "zipfile", "-l", wheel).stdout
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    for package in packages["build"]["targets"]["wheel"]["packages"]:
        assert f"{package}/__init__.py" in listed
    assert "pipeline/tiny/" in listed
    assert "policy/catalogue/tiny.toml" in listed


def installed_by(dockerfile: Path) -> set[str]:
    """The extras that the last `pip install` of a Dockerfile asks for."""
    lines = [rest for name, rest in read_instructions(dockerfile) if name == "RUN" and "pip install" in rest]
    [extras] = re.findall(r"'\.\[([\w,]+)\]'", lines[-1])
    assert "--constraint constraints.txt" in lines[-1]
    return set(extras.split(","))


def asked_for(extras: set[str]) -> list[Requirement]:
    """What `pip install '.[extras]'` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = [text for extra in extras for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in (*project["dependencies"], *optional)]


def reached(requirement: Requirement, seen: set[tuple[str, str]]) -> None:
    """Add the distributions, each with an extra, that a requirement brings in, by what is installed here."""
    for extra in ("", *requirement.extras):
        key = (requirement.name.lower().replace("_", "-"), extra)
        if key in seen:
            continue
        seen.add(key)
        for inner in map(Requirement, importlib.metadata.requires(requirement.name) or []):
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                reached(inner, seen)


def distributions(dockerfile: str) -> set[str]:
    """The names of all that the install line of a Dockerfile brings in."""
    seen: set[tuple[str, str]] = set()
    for requirement in asked_for(installed_by(DOCKER / dockerfile)):
        if requirement.marker is None or requirement.marker.evaluate():
            reached(requirement, seen)
    return {name for name, _ in seen}


def test_the_api_image_has_flower_and_no_torch_and_the_worker_image_has_torch() -> None:
    heavy = {"torch", "diffusers", "transformers", "numpy", "av", "cache-dit"}
    api = distributions("api.Dockerfile")
    assert not api & heavy
    assert {"flower", "tornado", "celery", "kombu", "fastapi", "psycopg-binary"} <= api
    assert heavy <= distributions("worker.Dockerfile")


# --- what runs ---


@pytest.mark.parametrize("command", [*renderq_commands()])
def test_every_renderq_command_line_is_understood(command: list[str]) -> None:
    # Help is shown after the whole line was parsed: an unknown option or command ends with 2.
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output


def test_every_variable_of_ours_is_a_setting() -> None:
    known = {*Settings.model_fields, *OPTIONS, *OTHERS, FLOWER_SETTING}
    sources = [service.get("environment", {}) for service in services().values()]
    sources += [read_env(dockerfile) for dockerfile in DOCKERFILES]
    names = {name for source in sources for name in source if name.startswith(PREFIX)}
    assert names
    assert {name.removeprefix(PREFIX).lower() for name in names} <= known


def test_no_service_runs_as_root_or_may_become_root() -> None:
    for name, service in services().items():
        user, _, group = service["user"].partition(":")
        assert int(user) > 0 < int(group), name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service, name


def test_no_service_can_write_to_its_image() -> None:
    for name, service in services().items():
        assert service["read_only"] is True, name


def test_every_log_has_a_limit() -> None:
    for name, service in services().items():
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_only_the_api_and_flower_can_be_reached_and_only_from_this_host() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(published) == {"api", "flower"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)
    assert read_compose("compose.yaml", GIVEN)["networks"]["backend"]["internal"] is True
    for name in ("database", "queue", "store"):
        assert services()[name]["networks"] == ["backend"]


def test_what_runs_for_long_has_a_health_check_and_comes_back_and_what_ends_does_not() -> None:
    for name, service in services().items():
        assert ("healthcheck" in service) is (name not in ONE_SHOT), name
        assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped"), name


def test_a_service_waits_for_what_it_needs() -> None:
    everything = services()
    for name, service in everything.items():
        for other, how in service.get("depends_on", {}).items():
            ends = other in ONE_SHOT
            wanted = "service_completed_successfully" if ends else "service_healthy"
            assert how["condition"] == wanted, f"{name} -> {other}"
    for name in ("api", "upkeep", "worker", "worker-gpu-0", "worker-gpu-1"):
        assert {"migrate", "bucket", "queue"} <= set(everything[name]["depends_on"]), name


def test_the_time_to_stop_is_longer_than_the_process_takes() -> None:
    everything = services()
    for name in ("worker", "worker-gpu-0", "worker-gpu-1"):
        assert seconds(everything[name]["stop_grace_period"]) > WORKER_GRACE_S
    assert seconds(everything["api"]["stop_grace_period"]) > API_GRACE_S


def test_a_gpu_has_one_worker_and_a_gpu_worker_has_one_gpu() -> None:
    gpus = []
    for service in services("compose.gpu.yaml").values():
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        gpus += device["device_ids"]
    assert gpus == [str(number) for number in range(len(gpus))]


def test_gpu_workers_keep_weights_and_compiled_code_in_volumes() -> None:
    folders = read_env(DOCKER / "worker.Dockerfile")
    for name, service in services("compose.gpu.yaml").items():
        places = {volume.split(":")[1] for volume in service["volumes"] if not volume.endswith(":ro")}
        assert places == {"/models", "/cache"}, name
    for variable in ("HF_HOME", "RENDERQ_MODELS_DIR"):
        assert folders[variable].startswith("/models")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert folders[variable].startswith("/cache/")


def test_a_folder_of_model_files_reaches_all_that_read_the_catalogue() -> None:
    given = example() | SECRETS | {"GPU_0_MODEL": "tiny", "CATALOGUE_DIR": "/srv/catalogue"}
    for folder, variable, source in (
        ("/srv/catalogue", "/catalogue", "/srv/catalogue"),
        ("", "", "catalogue"),
    ):
        for file, names in (
            ("compose.yaml", ("api", "upkeep", "worker")),
            ("compose.gpu.yaml", ("worker-gpu-0",)),
        ):
            composed = read_compose(file, given | {"CATALOGUE_DIR": folder})["services"]
            for name in names:
                assert composed[name]["environment"]["RENDERQ_CATALOGUE_DIR"] == variable
                assert f"{source}:/catalogue:ro" in composed[name]["volumes"]


def test_all_processes_of_ours_use_the_same_database_queue_and_store() -> None:
    shared = services()["migrate"]["environment"]
    for name in ("api", "upkeep", "flower", "worker", "worker-gpu-0", "worker-gpu-1"):
        assert shared.items() <= services()[name]["environment"].items(), name


# --- secrets ---


def example() -> dict[str, str]:
    return parse_env(DOCKER / ".env.example")


def parse_env(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_the_lines_of_the_page_make_passwords_with_which_everything_starts(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    lines = [
        line
        for line in page.splitlines()
        if "docker/.env" in line and line.startswith(("umask", "for", "sed"))
    ]
    (tmp_path / "docker").mkdir()
    shutil.copy(DOCKER / ".env.example", tmp_path / "docker")
    done = run("bash", "-euc", "\n".join(lines), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = parse_env(tmp_path / "docker" / ".env")
    assert len({made[name] for name in SECRETS}) == len(SECRETS)
    assert (tmp_path / "docker" / ".env").stat().st_mode & 0o077 == 0
    assert read_compose("compose.yaml", made)


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_nothing_starts_while_a_password_is_missing(missing: str) -> None:
    with pytest.raises(Unset, match=missing):
        read_compose("compose.yaml", example() | {**SECRETS, missing: ""})


def test_no_password_is_written_in_the_files() -> None:
    secret = re.compile("PASSWORD|SECRET|ACCESS_KEY|AUTH|TOKEN|_URL")
    given = re.compile(r"\$\{(?P<name>\w+):\?[^}]+\}|\$\{HF_TOKEN:-\}")
    for file in FILES:
        parsed = yaml.safe_load((DOCKER / file).read_text(encoding="utf-8"))
        for name, service in parsed["services"].items():
            for variable, value in service.get("environment", {}).items():
                if not secret.search(variable):
                    continue
                userinfo = re.search("//[^/]*:([^/]*)@", value)
                if userinfo or not variable.endswith("_URL"):
                    assert given.fullmatch(userinfo[1] if userinfo else value), f"{name}: {variable}"
    assert {name for name, value in example().items() if not value} >= set(SECRETS)


def test_the_example_names_exactly_the_variables_that_the_files_read() -> None:
    read = {
        match["name"]
        for file in FILES
        for match in VARIABLE.finditer(
            re.sub(r"(?m)\$\$\w+", "", (DOCKER / file).read_text(encoding="utf-8"))
        )
    }
    assert set(example()) == read - {None}


def test_a_file_with_passwords_stays_out_of_git_and_out_of_the_images() -> None:
    ignored = run("git", "check-ignore", "--no-index", DOCKER / ".env", cwd=ROOT)
    assert ignored.returncode == 0
    assert "!docker" not in (ROOT / ".dockerignore").read_text(encoding="utf-8")


# --- the readers of this test ---


def test_variables_are_filled_in_as_compose_does() -> None:
    text = "a $$B ${C} ${D:-d} ${E:-} $F ${G:?why} ${C:+/c} ${E:+/e}"
    from tests.fixtures.compose import _fill

    assert _fill({"x": [text]}, {"C": "c", "F": "f", "G": "g"}) == {"x": ["a $B c d  f g /c "]}
    with pytest.raises(Unset, match="G"):
        _fill("${G:?why}", {"G": ""})


def test_continued_lines_and_comments_of_a_dockerfile_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# x\nFROM a AS b\nENV A=1\nFROM ${B}\nENV C=2 \\\n    D=3\n# y\nrun x \\\n  && y\n")
    assert read_env(file) == {"C": "2", "D": "3"}
    assert json.dumps(read_instructions(file)[-1]) == json.dumps(["RUN", "x && y"])
