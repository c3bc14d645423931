"""Two processes draw the picture that one draws: guidance, tokens and weights shared, cached or not.

The ranks are started as a worker starts them, and talk over gloo on the loopback interface.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engine import Engine
from pipeline.miniature import spec_of
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from tests.fixtures.models import planned, resolved
from tests.fixtures.ranks import Drawn, run_ranks

pytestmark = pytest.mark.xdist_group("ranks")
#: In the kernel's table of connections.
LISTENS = "0A"

CACHED, PLAIN, OTHER = {}, {"cache": "off"}, {"prompt": "a boat", "seed": 9}
NEGATIVE = {"negative_prompt": "ugly, small"}
#: 5 by 5 tokens, which two ranks cannot share alike.
UNEVEN = {"width": 80, "height": 80}
STOP = {"stop_at": 3}
ADAPTIVE = {"cache_preset": "adaptive", "cache_threshold": 5.0, "cache_warmup_steps": 2}

# What only splits guidance comes first: splitting tokens changes a process for all that comes after.
ORDERS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "separate guidance": ("qwen-image", {"cfg_parallel": 2}, [NEGATIVE, NEGATIVE | PLAIN, OTHER]),
    "batched guidance and weights": ("sd3.5-medium", {"cfg_parallel": 2, "fsdp": 2}, [CACHED, PLAIN]),
    "tokens": ("flux.1-dev", {"context_parallel": 2}, [CACHED, STOP, PLAIN, UNEVEN, CACHED]),
    "tokens of pictures in a list": (
        "z-image-turbo",
        {"context_parallel": 2},
        [{"cache": "balanced"}, PLAIN],
    ),
    "tokens and weights of a video": (
        "wan2.2-t2v-a14b",
        {"context_parallel": 2, "fsdp": 2},
        [{"num_inference_steps": 16}, PLAIN],
    ),
    "tokens by threshold": ("qwen-image", {"context_parallel": 2, **ADAPTIVE}, [NEGATIVE, OTHER]),
    "compiled blocks": ("flux.1-dev", {"context_parallel": 2, "compile": True}, [CACHED, PLAIN]),
    "both, on four ranks": ("qwen-image", {"context_parallel": 2, "cfg_parallel": 2}, [NEGATIVE]),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, miniature_folder: Callable[[str], Path]) -> Drawn:
    """What several ranks made of an order: its facts, and the pixels of each job."""
    out = tmp_path_factory.mktemp("ranks")
    orders = [
        {
            "name": name,
            "model": model,
            "source": str(miniature_folder(model)),
            "flags": flags | {"warmup": name == "tokens" or "compile" in flags},
            "backend": "eager",
            "jobs": jobs,
            "kill": name == "tokens of pictures in a list",
        }
        for name, (model, flags, jobs) in ORDERS.items()
    ]
    return run_ranks(orders, out)


@pytest.fixture(scope="module")
def alone(miniature_folder: Callable[[str], Path]) -> Callable[..., tuple[np.ndarray, int]]:
    """What one process draws: pixels and reused steps."""

    @cache
    def engine(model: str, flags: str) -> Engine:
        spec = small(model)
        made = Engine(
            spec,
            resolved(spec, warmup=False, **json.loads(flags)),
            source=str(miniature_folder(model)),
            device="cpu",
        )
        made.prepare()
        return made

    def picture(model: str, flags: dict[str, Any], job: dict[str, Any]) -> tuple[np.ndarray, int]:
        rendering = engine(model, json.dumps(flags)).render(planned(small(model), **job))
        first = rendering.pictures[0]
        pixels = np.asarray(first.frames if first.image is None else first.image)
        return pixels, int(str(rendering.acceleration["cached_steps"]))

    return picture


def small(model: str) -> ModelSpec:
    return spec_of(Catalogue.load().get_model(model))


@pytest.mark.parametrize("name", ORDERS)
def test_several_ranks_draw_the_picture_of_one(
    name: str,
    drawn: Drawn,
    alone: Callable[..., tuple[np.ndarray, int]],
) -> None:
    model, flags, jobs = ORDERS[name]
    told, pictures = drawn(name)
    own = {
        key: value
        for key, value in flags.items()
        if key not in ("cfg_parallel", "context_parallel", "fsdp", "compile")
    }
    reused = []
    for job, picture, facts in zip(jobs, pictures, told["jobs"], strict=True):
        if "stop_at" in job:
            assert facts == {"stopped": job["stop_at"]}
            continue
        expected, steps = alone(model, own, job)
        assert picture.shape == expected.shape
        assert np.abs(picture.astype(int) - expected.astype(int)).max() <= 1
        assert facts["cached_steps"] == steps
        reused.append(steps)
    assert reused[0] > 0, "the first job is cached"
    assert told["sound"]


def test_the_same_job_gives_the_same_bytes_also_after_one_that_was_stopped(
    drawn: Drawn,
) -> None:
    _, pictures = drawn("tokens")
    assert np.array_equal(pictures[0], pictures[-1])


def test_the_preparation_tells_of_the_followers_and_the_degrees(
    drawn: Drawn,
) -> None:
    told, _ = drawn("both, on four ranks")
    steps = dict(told["preparation"])
    assert list(steps)[:2] == ["followers", "load"]
    assert (len(steps["followers"]["pids"]), steps["followers"]["devices"]) == (3, ["cpu"] * 4)
    assert steps["followers"]["degrees"] == {"cfg_parallel": 2, "context_parallel": 2, "fsdp": 1}


def test_a_follower_that_dies_between_two_jobs_is_told_at_once_and_no_job_runs_without_it(
    drawn: Drawn,
) -> None:
    told, _ = drawn("tokens of pictures in a list")
    assert not told["sound then"]
    assert told["abandoned"] == [told["then"]]
    assert told["then"].startswith("rank 1 of the worker")


def test_compiled_blocks_compile_nothing_in_a_job(
    drawn: Drawn,
) -> None:
    told, _ = drawn("compiled blocks")
    facts = [(job["compiled"], job["compiles"], job["uncompiled_calls"]) for job in told["jobs"]]
    assert facts == [(True, 0, 0)] * 2
    assert dict(told["preparation"])["warmup"]["compiles"] > 0


def test_the_ranks_meet_where_only_this_machine_can_reach_them() -> None:
    from pipeline.parallel import find_store, offer_store

    offered = offer_store(2)
    port = f":{offered.port:04X}"
    tables = [Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    listening = [local for _, local, _, state, *_ in rows if local.endswith(port) and state == LISTENS]
    assert listening == [f"0100007F{port}"]
    find_store(offered.port, 2).set("met", "here")
    assert offered.get("met") == b"here"
