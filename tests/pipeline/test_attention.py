"""The attention kernel of the transformers, switched between passes. A CPU has torch's own ones only."""

import functools
from typing import Any

import numpy as np
import pytest

from pipeline.acceleration import Acceleration
from pipeline.attention import attention_of, switch_attention
from pipeline.boundary import transformers_of
from pipeline.compilation import CompilePlan
from pipeline.engine import Engine
from pipeline.errors import Unsupported
from pipeline.loaded import Loaded
from policy.cache import CacheDecision
from policy.model_spec import ModelSpec
from tests.fixtures.models import planned, resolved
from tests.pipeline.test_offload import load
from tests.pipeline.test_streaming import draw

# One of diffusers' kernels that is not offered, as it is only slower: torch's attention spelt out.
OTHER = "_native_math"


def test_kernels_are_switched_and_switched_back(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec)
    modules = transformers_of(pipe, tiny_spec)
    expected = draw(pipe, tiny_spec)
    assert attention_of(modules[0]) == "auto"
    switch_attention(modules, "auto")
    assert attention_of(modules[0]) == "auto"
    switch_attention(modules, OTHER)
    assert attention_of(modules[0]) == OTHER
    assert np.abs(draw(pipe, tiny_spec).astype(int) - expected).max() <= 1
    switch_attention(modules, "native")
    assert attention_of(modules[0]) == "native"
    assert np.array_equal(draw(pipe, tiny_spec), expected)


def test_a_job_that_does_not_allow_the_workers_kernel_runs_on_torchs_own(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec)
    modules = transformers_of(pipe, tiny_spec)
    switch_attention(modules, OTHER)
    acceleration = Acceleration(
        lambda: modules, CompilePlan(wanted=False), cache_wanted=False, pipeline=pipe, attention="sage"
    )
    acceleration.prepare_for(CacheDecision(None, None, "for a test"))
    assert acceleration.effective()["attention"] == "native"
    with pytest.raises(Unsupported, match="attention_backend sage cannot be used on this machine"):
        acceleration.prepare_for(CacheDecision(None, None, "for a test"), "high")


class LoadedWithoutKernel(Loaded):
    def _accelerate(self, backend: Any) -> Acceleration:
        return Acceleration(
            functools.partial(transformers_of, self.pipe, self.spec),
            CompilePlan(wanted=False),
            cache_wanted=False,
            pipeline=self.pipe,
            backend=backend,
            attention="sage",
        )


class Choosing(Engine):
    """An engine whose worker was given a kernel that this machine does not have."""

    load_kind = LoadedWithoutKernel


def test_an_engine_asks_for_the_kernel_that_each_job_allows(tiny_spec: ModelSpec) -> None:
    engine = Choosing(tiny_spec, resolved(tiny_spec, cache=False, warmup=False), device="cpu")
    engine.prepare()
    assert engine.render(planned(tiny_spec)).acceleration["attention"] == "native"
    with pytest.raises(Unsupported, match="attention_backend sage"):
        engine.render(planned(tiny_spec, quality="high"))
    engine.close()
