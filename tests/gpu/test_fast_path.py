"""On an NVIDIA GPU: offload in groups, quantised weights, CUDA graphs, kernels. Skipped without one.

Uses the bundled model and miniatures only, so that it needs no download.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.engine import Engine
from pipeline.memory import find_hardware
from pipeline.miniature import spec_of
from pipeline.quantize import quantised_layers
from policy.catalogue import Catalogue
from policy.resolve import resolve
from tests.fixtures.models import pixels, planned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(280),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

Prepare = Callable[..., Engine]


@pytest.fixture
def prepare(miniature_folder: Callable[[str], Path]) -> Iterator[Prepare]:
    engines: list[Engine] = []

    def prepared(model_id: str, **flags: object) -> Engine:
        spec = Catalogue.load().get_model(model_id)
        source = None
        if model_id != "tiny":
            spec, source = spec_of(spec), str(miniature_folder(model_id))
        policy = resolve(spec, flags=flags, env={}, hardware=find_hardware())
        engines.append(Engine(spec, policy, source=source))
        engines[-1].prepare()
        return engines[-1]

    yield prepared
    for engine in engines:
        engine.close()


def devices(module: torch.nn.Module) -> set[str]:
    return {parameter.device.type for parameter in module.parameters()}


def distance(one: Any, other: Any) -> float:
    """Mean difference of two pictures, in steps of 255."""
    first, second = (np.asarray(rendering.pictures[0].image).astype(int) for rendering in (one, other))
    return float(np.abs(first - second).mean())


# --- offload in groups ---


def test_blocks_that_come_one_by_one_draw_the_same_and_go_again(prepare: Prepare) -> None:
    resident = prepare("tiny")
    plans = [planned(resident.spec, **fields) for fields in ({}, {"cache": "off"}, {"cache": "fast"}, {})]
    expected = [pixels(resident.render(plan)) for plan in plans]
    engine = prepare("tiny", offload="group", keep_resident="vae")
    pipe: Any = engine.parts[0]
    for plan, pixel in zip(plans, expected, strict=True):
        assert pixels(engine.render(plan)) == pixel, plan
        assert "cpu" in devices(pipe.transformer)
        assert "cpu" in devices(pipe.text_encoder_2)
        assert devices(pipe.vae) == {"cuda"}


@pytest.mark.parametrize(
    "model_id", ["qwen-image", "sd3.5-medium", "sana-1.6b", "wan2.2-t2v-a14b", "ltx-video"]
)
def test_every_family_streams_its_blocks(prepare: Prepare, model_id: str) -> None:
    resident, streamed = prepare(model_id), prepare(model_id, offload="group")
    for fields in ({}, {"cache": "off"}, {}):
        plan = planned(resident.spec, num_inference_steps=14, **fields)
        assert pixels(streamed.render(plan)) == pixels(resident.render(plan))


def test_a_failed_job_leaves_the_stream_in_order(prepare: Prepare) -> None:
    engine = prepare("tiny", offload="group")
    expected = pixels(engine.render(planned(engine.spec)))
    with pytest.raises(ZeroDivisionError):
        engine.render(planned(engine.spec), lambda done, _total: bool(1 / (5 - done)) or True)
    assert pixels(engine.render(planned(engine.spec))) == expected


# --- quantised weights ---


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
@pytest.mark.parametrize("offload", ["none", "model", "group"])
def test_quantised_weights_draw_nearly_the_same(prepare: Prepare, quantize: str, offload: str) -> None:
    pytest.importorskip("torchao")
    if quantize == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU does not compute fp8")
    whole = prepare("tiny", dtype="bfloat16")
    engine = prepare("tiny", dtype="bfloat16", quantize=quantize, offload=offload)
    plan = planned(engine.spec, cache="off")
    drawn = [engine.render(plan) for _ in range(2)]
    assert pixels(drawn[0]) == pixels(drawn[1])
    assert distance(drawn[0], whole.render(plan)) < 6
    pipe: Any = engine.parts[0]
    assert quantised_layers(pipe.transformer) > 0
    assert quantised_layers(pipe.text_encoder_2) == 0


# --- CUDA graphs ---


def test_recorded_sizes_are_replayed_and_draw_what_they_would_anyway(prepare: Prepare) -> None:
    plain = prepare("flux.1-schnell")
    engine = prepare("flux.1-schnell", capture=True)
    assert engine.effective()["graphs"] == 1
    plan = planned(engine.spec)
    drawn = [engine.render(plan) for _ in range(3)]
    assert len({pixels(one) for one in drawn}) == 1
    assert [one.acceleration["replayed"] for one in drawn] == [True] * 3
    assert distance(drawn[0], plain.render(plan)) < 1
    other_seed = planned(engine.spec, seed=8)
    assert distance(engine.render(other_seed), plain.render(other_seed)) < 1


def test_other_sizes_and_second_tries_run_as_usual(prepare: Prepare) -> None:
    plain = prepare("flux.1-schnell")
    engine = prepare("flux.1-schnell", capture=True)
    side = engine.spec.size.default[0]
    small = planned(engine.spec, height=side // 2)
    done = engine.render(small)
    assert (done.acceleration["replayed"], engine.effective()["graphs"]) == (False, 1)
    assert pixels(done) == pixels(plain.render(small))
    again = engine.render(planned(engine.spec), safer=True)
    assert again.acceleration["replayed"] is False
    assert engine.render(planned(engine.spec)).acceleration["replayed"] is True


def test_guidance_is_recorded_both_ways(prepare: Prepare) -> None:
    engine = prepare("tiny", capture=True, cache=False)
    for fields in ({}, {"guidance_scale": 3.0}, {}):
        assert engine.render(planned(engine.spec, **fields)).acceleration["replayed"] is True
    assert engine.render(planned(engine.spec, cache="fast")).acceleration["cached_steps"] == 0


# --- attention kernels ---


@pytest.mark.parametrize("kernel", ["_native_cudnn", "_native_flash"])
def test_torchs_other_kernels_draw_nearly_the_same(prepare: Prepare, kernel: str) -> None:
    plain = prepare("tiny", dtype="bfloat16")
    engine = prepare("tiny", dtype="bfloat16", attention_backend=kernel)
    plan = planned(engine.spec, cache="off")
    drawn = [engine.render(plan) for _ in range(2)]
    assert pixels(drawn[0]) == pixels(drawn[1])
    assert drawn[0].acceleration["attention"] == kernel
    assert distance(drawn[0], plain.render(plan)) < 6


def test_a_less_exact_kernel_draws_the_jobs_that_allow_it(prepare: Prepare) -> None:
    pytest.importorskip("sageattention")
    engine = prepare("flux.1-dev", dtype="bfloat16", attention_backend="sage")
    used = [
        engine.render(planned(engine.spec, quality=quality)).acceleration["attention"]
        for quality in ("lossless", "high", "lossless")
    ]
    assert used == ["native", "sage", "native"]
