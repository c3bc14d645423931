"""Job A, any job B, job A again: the same bytes. Nothing of one job reaches the next."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.engine import Engine
from pipeline.errors import MountFailed, Stopped
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from tests.fixtures.models import GraphCounter, pixels, planned, resolved

STEPS = 8
B: list[dict[str, Any]] = [
    {"seed": 99, "prompt": "a boat with a yellow sail on the sea"},
    {"num_inference_steps": 13},
    {"guidance_scale": 3.0, "negative_prompt": "a tree", "n": 2},
    {"cache": "off"},
    {"cache": "quality"},
    {"cache": "fast", "guidance_scale": 2.0},
    {"num_inference_steps": 4},
    {"cache": {"scm": "3:1:2", "fn": 2, "bn": 1, "taylorseer": 0}},
]
A: list[dict[str, Any]] = [
    {},
    {"guidance_scale": 2.5, "cache": "fast"},
    {"cache": "off"},
    {"cache": {"scm": "11010101"}},
]


def draw(engine: Engine, fields: dict[str, Any]) -> tuple[bytes, ...]:
    return pixels(engine.render(job(engine, fields)))


def job(engine: Engine, fields: dict[str, Any]) -> RenderPlan:
    return planned(engine.spec, **{"num_inference_steps": STEPS, **fields})


@pytest.fixture(scope="module", params=["none", "regional", "whole"])
def engine(
    request: pytest.FixtureRequest, tiny_engine: Engine, shallow_spec: ModelSpec, fresh_compiler: None
) -> Iterator[Engine]:
    """The tiny model uncompiled, with its blocks compiled, and compiled whole."""
    if request.param == "none":
        yield tiny_engine
        return
    policy = resolved(shallow_spec, compile=True, compile_scope=request.param)
    engine = Engine(shallow_spec, policy, device="cpu", backend=GraphCounter())
    engine.prepare()
    yield engine
    engine.close()


def test_no_job_leaves_a_trace_in_the_next(engine: Engine) -> None:
    first = [draw(engine, a) for a in A]
    for b in B:
        draw(engine, b)
        assert draw(engine, A[0]) == first[0], f"after {b}"
    assert [draw(engine, a) for a in reversed(A)] == first[::-1]


@pytest.mark.parametrize("at", [1, 6])
def test_no_job_that_was_stopped_or_failed_does_either(engine: Engine, at: int) -> None:
    def fail(done: int, _total: int) -> bool:
        if done == at:
            raise ConnectionError("the lease is lost")
        return True

    expected = draw(engine, {})
    for b in A[:2]:
        with pytest.raises(Stopped):
            engine.render(job(engine, b), lambda done, _total: done < at)
        assert draw(engine, {}) == expected
        with pytest.raises(ConnectionError):
            engine.render(job(engine, b), fail)
        assert draw(engine, {}) == expected


def test_no_job_that_broke_inside_the_model_does_either(tiny_engine: Engine) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    expected = draw(tiny_engine, {})
    pipe: Any = tiny_engine.parts[0]
    for module in (pipe.text_encoder_2, pipe.transformer.transformer_blocks[1], pipe.vae.decoder):
        handle = module.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            draw(tiny_engine, {})
        handle.remove()
        assert draw(tiny_engine, {}) == expected


def test_a_new_engine_draws_what_one_with_a_history_draws(tiny_engine: Engine, tiny_spec: ModelSpec) -> None:
    for b in B:
        draw(tiny_engine, b)
    new = Engine(tiny_spec, resolved(tiny_spec), device="cpu")
    new.prepare()
    assert [draw(new, a) for a in A] == [draw(tiny_engine, a) for a in A]
    new.close()


def test_a_mount_that_fails_costs_one_job(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import cache_dit

    expected = draw(tiny_engine, {})

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("no pattern matched")

    monkeypatch.setattr(cache_dit, "enable_cache", fail)
    with pytest.raises(MountFailed, match="no pattern matched"):
        draw(tiny_engine, {"cache": "fast"})
    monkeypatch.undo()
    assert draw(tiny_engine, {}) == expected


@pytest.mark.parametrize("model_id", ["flux.1-dev", "qwen-image", "wan2.2-t2v-a14b"])
def test_other_sizes_lengths_and_families_leave_no_trace(
    miniature_engine: Callable[..., Engine], model_id: str
) -> None:
    engine = miniature_engine(model_id)
    width, height = engine.spec.size.default
    jobs: list[dict[str, Any]] = [
        {},
        {"width": width // 2, "height": height},
        {"num_inference_steps": 7, "cache": "fast"},
        {"cache": "off"},
        {"prompt": "a boat " * 9},
    ]
    first = [draw(engine, fields) for fields in jobs]
    with pytest.raises(Stopped):
        engine.render(job(engine, {}), lambda done, _total: done < 6)
    again = [draw(engine, fields) for fields in reversed(jobs)]
    assert again[::-1] == first
