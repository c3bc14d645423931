"""What ends a worker's child before it takes a job: the real preparation, in a process of its own."""

import multiprocessing
import os
from pathlib import Path

import pytest

from core import workers
from core.hardware import detect
from core.ids import new_id
from pipeline.errors import LoadFailed
from policy.modes import Hardware
from policy.resolve import resolve
from tasks import provenance
from tasks.board import Board
from tasks.child import LOAD_FAILED, Setup, check_device, local_source, prepare
from tests.fixtures.workers import Stage

GPU = Hardware("cuda", "NVIDIA L4", 1, 24.0, 20.0, supports_bf16=True)
CPU = Hardware("cpu", None, 1, 16.0, 8.0, supports_bf16=True)


@pytest.mark.skipif(detect().device != "cpu", reason="needs a machine without a GPU")
def test_options_resolved_for_a_gpu_that_torch_does_not_see_end_the_worker(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=GPU)
    setup = Setup(stage.settings, spec, policy, new_id(), "tiny@test", Board(), hardware=GPU)
    with stage.database.transaction() as session:
        workers.register_worker(
            session,
            worker_id=setup.worker_id,
            name=setup.name,
            host="test",
            pid=os.getpid(),
            model="tiny",
            queue="render.tiny",
            policy={},
            device={},
        )
    child = multiprocessing.get_context("fork").Process(target=prepare, args=(setup,))
    child.start()
    child.join(60)
    assert child.exitcode == LOAD_FAILED
    assert setup.board.cells.failed
    (told,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("renderq worker:")]
    assert "resolved for cuda, but torch sees only a CPU: NVIDIA L4 needs" in told
    with stage.database.reading() as session:
        row = workers.get_worker(session, setup.worker_id)
    assert row.state == "failed"
    assert row.error
    assert row.error in told


def test_the_device_that_the_options_were_resolved_for_is_accepted() -> None:
    check_device(GPU, "cuda")
    check_device(CPU, "cpu")


def test_a_gpu_that_only_torch_sees_is_told_of() -> None:
    with pytest.raises(LoadFailed, match="resolved for cpu, but torch finds cuda: install nvidia-ml-py"):
        check_device(CPU, "cuda")


def setup_with(stage: Stage, models_dir: Path) -> Setup:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=CPU)
    settings = stage.settings.model_copy(update={"models_dir": models_dir})
    return Setup(settings, spec, policy, new_id(), "tiny@test", Board(), hardware=CPU)


def test_weights_come_from_the_folder_of_the_model_if_it_is_there(stage: Stage, tmp_path: Path) -> None:
    setup = setup_with(stage, tmp_path)
    assert local_source(setup) is None
    (tmp_path / "tiny").mkdir()
    assert local_source(setup) == str(tmp_path / "tiny")


def test_a_folder_of_models_that_is_not_there_is_told(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"RENDERQ_MODELS_DIR is .*absent, which is not a folder"):
        local_source(setup_with(stage, tmp_path / "absent"))


def test_a_picture_from_local_weights_names_no_revision(stage: Stage) -> None:
    spec = stage.catalogue["flux.1-dev"]
    assert provenance._model(spec, from_folder=True)["revision"] is None
    assert provenance._model(spec, from_folder=False)["revision"] == spec.revision
