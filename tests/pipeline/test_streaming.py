"""Offload by group, on the real hooks of diffusers: what is fetched, when, and what survives it.

There is no second device here: "cpu:0" stands for the GPU and "cpu" for the host, and fetches are counted
where diffusers does them. `tests/gpu` looks at the devices themselves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.hooks.group_offloading import ModuleGroup

from pipeline.acceleration import Acceleration
from pipeline.boundary import split_steps, transformers_of
from pipeline.compilation import CompilePlan
from pipeline.render import render_pass
from pipeline.streaming import offload_in_groups
from policy.cache import CacheDecision
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.weights import text_encoders
from tests.fixtures.models import GraphCounter, planned
from tests.pipeline.test_offload import DEVICE, HOST, Moves, cached, load

STEPS = 6
OFF = CacheDecision(None, None, "for a test")


def draw(pipe: Any, spec: ModelSpec) -> np.ndarray:
    plan = planned(spec, num_inference_steps=STEPS)
    done = render_pass(pipe, spec, [plan], [7], device=HOST, each_step=lambda _done: None)
    return done.drawn[0].pixels


def accelerated(pipe: Any, spec: ModelSpec) -> Acceleration:
    plan = CompilePlan(wanted=False)
    return Acceleration(lambda: transformers_of(pipe, spec), plan, cache_wanted=True, pipeline=pipe)


def group(pipe: Any, spec: ModelSpec, *resident: str) -> None:
    offload_in_groups(pipe, spec.transformers, text_encoders(spec), resident, DEVICE)


class Fetches:
    """Every fetch of a group of these modules, told apart: blocks, and what lies outside of them."""

    def __init__(self, modules: list[torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks = self.outside = 0
        roots = {id(module) for module in modules}
        own = {id(part) for module in modules for part in module.modules()}
        onload = ModuleGroup.onload_

        def counted(group: ModuleGroup) -> None:
            self.outside += id(group.onload_leader) in roots
            self.blocks += id(group.onload_leader) in own - roots
            onload(group)

        monkeypatch.setattr(ModuleGroup, "onload_", counted)


@pytest.fixture(scope="module")
def two_transformers(miniature_folder: Callable[[str], Path]) -> tuple[ModelSpec, str]:
    from pipeline.miniature import spec_of

    spec = spec_of(Catalogue.load().get_model("wan2.2-t2v-a14b"))
    return spec, str(miniature_folder("wan2.2-t2v-a14b"))


def test_blocks_are_fetched_for_each_step_and_reused_steps_fetch_fewer(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load(tiny_spec)
    expected = draw(plain, tiny_spec)
    over = accelerated(plain, tiny_spec)
    over.mount(cached(STEPS))
    reused = draw(plain, tiny_spec)
    assert not np.array_equal(reused, expected)
    pipe = load(tiny_spec)
    group(pipe, tiny_spec)
    acceleration = accelerated(pipe, tiny_spec)
    fetches = Fetches([pipe.transformer], monkeypatch)
    blocks = len(pipe.transformer.transformer_blocks) + len(pipe.transformer.single_transformer_blocks)
    assert np.array_equal(draw(pipe, tiny_spec), expected)
    assert (fetches.outside, fetches.blocks) == (STEPS, STEPS * blocks)
    # Mounted and taken off inside the hook of the transformer: what lies outside of its blocks comes too.
    for decision, picture, computed in ((cached(STEPS), reused, 4), (OFF, expected, STEPS)) * 2:
        fetches.blocks = fetches.outside = 0
        acceleration.mount(decision)
        assert np.array_equal(draw(pipe, tiny_spec), picture)
        assert fetches.outside == STEPS
        assert fetches.blocks == computed * blocks + (STEPS - computed)  # one block is always computed


def test_a_cache_that_is_mounted_already_stays_inside_the_hook(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = load(tiny_spec)
    acceleration = accelerated(pipe, tiny_spec)
    acceleration.mount(cached(STEPS))
    reused = draw(pipe, tiny_spec)
    acceleration.unmount()
    group(pipe, tiny_spec)
    acceleration.mount(cached(STEPS))
    fetches = Fetches([pipe.transformer], monkeypatch)
    for _ in range(2):
        acceleration.mount(cached(STEPS))
        assert np.array_equal(draw(pipe, tiny_spec), reused)
        assert acceleration.cached_steps() == (2,)
    assert fetches.outside == 2 * STEPS


def test_what_is_not_streamed_moves_as_a_whole_and_what_is_resident_stays(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = load(tiny_spec)
    expected = draw(pipe, tiny_spec)
    moves = Moves(pipe, monkeypatch)
    group(pipe, tiny_spec, "text_encoder")
    assert {name for name, to in moves.take().items() if DEVICE in to} == {"text_encoder"}
    for _ in range(2):
        assert np.array_equal(draw(pipe, tiny_spec), expected)
        moved = moves.take()
        assert set(moved) == {"vae"}
        assert (moved["vae"][0], moved["vae"][-1]) == (DEVICE, HOST)


def test_two_transformers_are_both_streamed(
    two_transformers: tuple[ModelSpec, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, source = two_transformers
    plain = load(spec, source)
    steps = split_steps(plain, spec, STEPS)
    over = accelerated(plain, spec)
    over.mount(cached(*steps))
    reused = draw(plain, spec)
    pipe = load(spec, source)
    group(pipe, spec)
    acceleration = accelerated(pipe, spec)
    acceleration.mount(cached(*steps))
    fetches = Fetches(transformers_of(pipe, spec), monkeypatch)
    assert np.array_equal(draw(pipe, spec), reused)
    assert fetches.outside == 2 * STEPS  # two calls in each step


def test_the_compiler_breaks_at_the_hook_which_is_why_the_two_exclude_each_other(
    tiny_spec: ModelSpec, fresh_compiler: None
) -> None:
    compile_one_block(load(tiny_spec))
    pipe = load(tiny_spec)
    group(pipe, tiny_spec)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile_one_block(pipe)


def compile_one_block(pipe: Any) -> None:
    """Compiles a block as one graph, or not at all, and draws."""
    pipe.transformer.transformer_blocks[0].compile(backend=GraphCounter(), fullgraph=True)
    draw(pipe, Catalogue.load()["tiny"])
