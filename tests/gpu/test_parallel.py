"""On two NVIDIA GPUs: guidance, tokens and weights shared over NCCL. Skipped with fewer.

Uses miniatures only, so that it needs no download and ends within five minutes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.engine import Engine
from pipeline.memory import find_hardware
from pipeline.miniature import spec_of
from policy.catalogue import Catalogue
from policy.resolve import resolve
from tests.fixtures.models import planned
from tests.fixtures.ranks import Drawn, run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(280),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two NVIDIA GPUs"),
]

EXACT: dict[str, Any] = {"dtype": "float32", "warmup": False}
JOBS: list[dict[str, Any]] = [{"cache": "balanced"}, {"cache": "off"}]
UNEVEN: dict[str, Any] = {"width": 80, "height": 80}
ORDERS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "guidance": ("qwen-image", {"cfg_parallel": 2}, [{"negative_prompt": "ugly"}]),
    "guidance and weights": ("sd3.5-medium", {"cfg_parallel": 2, "fsdp": 2}, JOBS),
    "tokens": ("flux.1-dev", {"context_parallel": 2}, [*JOBS, UNEVEN]),
    "tokens, compiled": ("flux.1-dev", {"context_parallel": 2, "compile": True, "warmup": True}, JOBS),
    "tokens and weights": ("z-image-turbo", {"context_parallel": 2, "fsdp": 2}, JOBS),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, miniature_folder: Callable[[str], Path]) -> Drawn:
    orders = [
        {
            "name": name,
            "model": model,
            "source": str(miniature_folder(model)),
            "flags": EXACT | flags,
            "jobs": jobs,
            "backend": None,
            "kill": name == "tokens and weights",
            "alone": name == "guidance",
        }
        for name, (model, flags, jobs) in ORDERS.items()
    ]
    return run_ranks(orders, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ORDERS)
def test_two_gpus_draw_the_picture_of_one(
    name: str, drawn: Drawn, miniature_folder: Callable[[str], Path]
) -> None:
    model, _, jobs = ORDERS[name]
    spec = spec_of(Catalogue.load().get_model(model))
    policy = resolve(spec, flags=EXACT, env={}, hardware=find_hardware())
    engine = Engine(spec, policy, source=str(miniature_folder(model)))
    engine.prepare()
    told, pictures = drawn(name)
    for job, picture, facts in zip(jobs, pictures, told["jobs"], strict=True):
        alone = engine.render(planned(spec, **job))
        expected = np.asarray(alone.pictures[0].image).astype(int)
        assert np.abs(picture.astype(int) - expected).mean() < 1
        assert facts["cached_steps"] == alone.acceleration["cached_steps"]
    engine.close()
    assert told["sound"]


def test_each_rank_has_a_gpu_of_its_own(drawn: Drawn) -> None:
    told, _ = drawn("tokens")
    assert dict(told["preparation"])["followers"]["devices"] == ["cuda:0", "cuda:1"]


def test_a_follower_that_dies_between_two_jobs_is_told(drawn: Drawn) -> None:
    told, _ = drawn("tokens and weights")
    assert (told["sound"], told["sound then"]) == (True, False)


def test_no_job_follows_one_that_the_leader_left_alone(drawn: Drawn) -> None:
    told, _ = drawn("guidance")
    assert "out of memory on the leader" in told["failed alone"]
    assert told["then"].startswith("rank 1 of the worker")
