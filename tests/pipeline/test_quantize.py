"""Quantised weights, on real torchao tensors: how near the picture stays, and what they go with."""

from typing import Any

import numpy as np
import pytest
import torch
from accelerate import cpu_offload

from pipeline.engine import Engine
from pipeline.load import load_pipeline
from pipeline.quantize import quantised_layers
from policy.model_spec import ModelSpec
from policy.weights import loaded
from tests.fixtures.models import GraphCounter, pixels, planned, resolved
from tests.pipeline.test_offload import draw
from tests.pipeline.test_streaming import group

CPU = torch.device("cpu")
PROMPTS = (
    "a white house with a blue roof and an orange tree on a beach",
    "a boat with a red sail on the sea at sunset",
    "a green tree on a meadow by day",
    "a yellow circle",
)


def bytes_of(pipe: Any) -> int:
    held: list[torch.Tensor] = []
    for parameter in pipe.transformer.parameters():
        quantised = hasattr(parameter, "qdata")
        held += [parameter.qdata, parameter.scale] if quantised else [parameter]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def image(engine: Engine, prompt: str) -> np.ndarray:
    plan = planned(engine.spec, prompt=prompt, cache="off")
    return np.asarray(engine.render(plan).pictures[0].image).astype(float)


@pytest.fixture(scope="module")
def quantised(tiny_spec: ModelSpec, heavy_modules: None) -> Any:
    engine = Engine(tiny_spec, resolved(tiny_spec, quantize="int8"), device="cpu")
    engine.prepare()
    yield engine
    engine.close()


def test_the_picture_stays_near_and_is_the_same_each_time(quantised: Engine, tiny_engine: Engine) -> None:
    distances = [((image(quantised, text) - image(tiny_engine, text)) ** 2).mean() for text in PROMPTS]
    psnr = [10 * np.log10(255**2 / distance) for distance in distances]
    # Measured: 55 to 59 dB. Four bits are at 29 to 34 dB, fp8 weights at 39 to 53 dB.
    assert min(psnr) > 53
    assert max(distances) > 0
    plan = planned(quantised.spec)
    assert pixels(quantised.render(plan)) == pixels(quantised.render(plan))
    assert quantised.render(plan).acceleration["cached_steps"] == 12


def test_a_quarter_of_the_bytes_is_left_and_the_estimate_knows(
    quantised: Engine, tiny_engine: Engine
) -> None:
    small, whole = (bytes_of(engine.parts[0]) for engine in (quantised, tiny_engine))
    sizes = [loaded(quantised.spec, "float32", name).component_gb["transformer"] for name in ("int8", "none")]
    # The tiny model's rows are short, so their scales weigh more than those of a large one.
    assert small / whole == pytest.approx(sizes[0] / sizes[1], abs=0.02)
    assert quantised.preparation[0].detail["quantize"] == "int8"


def test_only_what_was_asked_for_is_quantised(tiny_spec: ModelSpec, quantised: Engine) -> None:
    pipe: Any = quantised.parts[0]
    linear = sum(isinstance(part, torch.nn.Linear) for part in pipe.transformer.modules())
    assert quantised_layers(pipe.transformer) == linear
    assert not any(map(quantised_layers, (pipe.text_encoder, pipe.text_encoder_2, pipe.vae)))
    policy = resolved(tiny_spec, quantize="int8", quantize_text=True)
    text = load_pipeline(tiny_spec, policy, CPU)
    assert all(map(quantised_layers, (text.transformer, text.text_encoder, text.text_encoder_2)))
    assert not torch.equal(draw(text), draw(pipe))


@pytest.mark.parametrize("offload", ["group", "sequential"])
def test_quantised_weights_can_be_moved(tiny_spec: ModelSpec, offload: str) -> None:
    pipe = load_pipeline(tiny_spec, resolved(tiny_spec, quantize="int8"), CPU)
    expected = draw(pipe)
    if offload == "group":
        group(pipe, tiny_spec)
    else:
        cpu_offload(pipe.transformer, CPU)
    for _ in range(2):
        assert torch.equal(draw(pipe), expected)


def test_quantised_weights_are_no_trouble_to_the_compiler(tiny_spec: ModelSpec, fresh_compiler: None) -> None:
    pipe = load_pipeline(tiny_spec, resolved(tiny_spec, quantize="int8"), CPU)
    expected = draw(pipe)
    counter = GraphCounter()
    pipe.transformer.transformer_blocks[0].compile(backend=counter, fullgraph=True)
    assert torch.allclose(draw(pipe), expected, atol=1e-4)
    assert counter.graphs == 1
