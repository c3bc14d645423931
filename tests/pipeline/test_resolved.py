"""What runs is what was resolved: every option against what is really on the modules."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock

from pipeline.cache_terms import contexts_of
from pipeline.engine import Engine
from policy.cache import step_mask
from policy.catalogue import Catalogue
from policy.mask import choose_mask
from policy.model_spec import ModelSpec
from tests.fixtures.models import GraphCounter, planned, resolved


def fitted(rule: str) -> tuple[int, ...]:
    """The mask of the tiny model's curve for its default steps."""
    return choose_mask(rule, 24, Catalogue.load()["tiny"].curve).mask


@pytest.fixture(scope="module")
def prepared(shallow_spec: ModelSpec, fresh_compiler: None) -> Iterator[Callable[..., Engine]]:
    """Prepares an engine with these flags; the next test with the same gets the same one."""
    engines: dict[str, Engine] = {}

    def prepare(**flags: object) -> Engine:
        key = str(flags)
        if key not in engines:
            engine = Engine(
                shallow_spec, resolved(shallow_spec, **flags), device="cpu", backend=GraphCounter()
            )
            engine.prepare()
            engines[key] = engine
        return engines[key]

    yield prepare
    for engine in engines.values():
        engine.close()


def transformer(engine: Engine) -> Any:
    pipe: Any = engine.parts[0]
    return pipe.transformer


def compiled_parts(module: torch.nn.Module) -> set[str]:
    """Classes of the parts that are compiled; "" for the module itself."""
    return {
        "" if part is module else type(part).__name__
        for part in module.modules()
        if part._compiled_call_impl is not None
    }


def blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    kinds = (FluxTransformerBlock, FluxSingleTransformerBlock)
    return [part for part in module.modules() if isinstance(part, kinds)]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({}, set()),
        ({"compile": False, "compile_scope": "whole"}, set()),
        ({"compile": True}, {"FluxTransformerBlock", "FluxSingleTransformerBlock"}),
        ({"compile": True, "compile_scope": "whole"}, {""}),
        ({"compile": True, "cache": False, "compile_scope": "whole"}, {""}),
        ({"compile": False, "performance_mode": "speed"}, set()),
        ({"performance_mode": "speed"}, set()),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_exactly_what_was_resolved_is_compiled(
    prepared: Callable[..., Engine], flags: dict[str, Any], parts: set[str]
) -> None:
    engine = prepared(**flags)
    module = transformer(engine)
    assert compiled_parts(module) == parts
    if "FluxTransformerBlock" in parts:
        assert all(block._compiled_call_impl is not None for block in blocks(module))
    rendering = engine.render(planned(engine.spec))
    assert compiled_parts(module) == parts
    expected_scope = {frozenset(): "none", frozenset({""}): "whole"}.get(frozenset(parts), "regional")
    assert rendering.acceleration["compile_scope"] == expected_scope == engine.effective()["compile_scope"]
    assert rendering.acceleration["compiled"] is bool(parts) is engine.policy["compile"]
    assert engine.preparation[2].detail["compiled"] is bool(parts)


@pytest.mark.parametrize(
    ("flags", "mask"),
    [
        ({}, fitted("fit:50")),
        ({"cache_preset": "quality"}, fitted("fit:27")),
        ({"cache_preset": "fast"}, fitted("fit:58")),
        ({"cache_preset": "adaptive"}, None),
        ({"cache_scm": "6:1:3"}, step_mask("6:1:3", 24)),
    ],
    ids=str,
)
def test_the_preset_that_was_resolved_is_mounted_and_decides_what_is_reused(
    prepared: Callable[..., Engine], flags: dict[str, Any], mask: tuple[int, ...] | None
) -> None:
    engine = prepared(**flags)
    for _ in range(2):
        rendering = engine.render(planned(engine.spec))
        (context,) = contexts_of(transformer(engine))
        config = context.cache_config
        if mask is None:
            assert config.steps_computation_mask is None
            assert config.steps_computation_policy == "dynamic"
            assert rendering.acceleration["cached_steps"] == len(context.get_cached_steps()) > 0
        else:
            assert tuple(config.steps_computation_mask) == mask
            assert config.steps_computation_policy == "static"
            assert context.get_cached_steps() == [step for step, bit in enumerate(mask) if bit == 0]
            assert rendering.acceleration["cached_steps"] == mask.count(0)
        assert config.num_inference_steps == 24


@pytest.mark.parametrize(
    "flags",
    [
        {"cache_fn": 3, "cache_bn": 2, "cache_taylorseer": 2, "cache_warmup_steps": 6},
        {
            "cache_preset": "adaptive",
            "cache_threshold": 0.5,
            "cache_max_consecutive": 2,
            "cache_taylorseer": 0,
        },
    ],
    ids=["static", "adaptive"],
)
def test_every_knob_that_was_resolved_is_mounted(prepared: Callable[..., Engine], flags: Any) -> None:
    engine = prepared(**flags)
    engine.render(planned(engine.spec, guidance_scale=2.0))
    (context,) = contexts_of(transformer(engine))
    config, policy = context.cache_config, engine.policy
    assert config.Fn_compute_blocks == policy["cache_fn"]
    assert config.Bn_compute_blocks == policy["cache_bn"]
    assert config.max_warmup_steps == policy["cache_warmup_steps"]
    assert config.enable_separate_cfg is True
    order = context.calibrator_config.taylorseer_order if context.calibrator_config else 0
    assert order == policy["cache_taylorseer"]
    if policy["cache_preset"] == "adaptive":
        assert config.residual_diff_threshold == policy["cache_threshold"]
        assert config.max_continuous_cached_steps == policy["cache_max_consecutive"]
    assert policy.options["cache_fn"].value == policy["cache_fn"]


def test_with_the_cache_off_nothing_is_mounted(prepared: Callable[..., Engine]) -> None:
    engine = prepared(cache=False)
    module = transformer(engine)
    rendering = engine.render(planned(engine.spec))
    assert not hasattr(module, "_context_manager")
    assert rendering.acceleration["cache"] == "off"
    assert "cache is off" in str(rendering.acceleration["cache_reason"])
    # A job may ask for a preset all the same, and gets it.
    asked = engine.render(planned(engine.spec, cache="fast"))
    assert asked.acceleration["cached_steps"] == fitted("fit:58").count(0)
    engine.render(planned(engine.spec))
    assert not hasattr(module, "_context_manager")


def test_compiled_whole_without_a_cache_a_job_cannot_mount_one(prepared: Callable[..., Engine]) -> None:
    engine = prepared(compile=True, cache=False, compile_scope="whole")
    record = engine.render(planned(engine.spec, cache="fast")).acceleration
    assert record["cache"] == "off"
    assert "without a cache" in str(record["cache_reason"])
    assert engine.effective()["mounted"] is False


class RunCounter:
    """A compiler that counts how often its graphs run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph: Any, _inputs: object) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.runs += 1
            return graph.forward(*arguments)

        return run


@pytest.mark.usefixtures("fresh_compiler")
def test_a_safer_try_runs_without_cache_and_uncompiled_and_leaves_both_for_the_next(
    shallow_spec: ModelSpec,
) -> None:
    compiler = RunCounter()
    engine = Engine(shallow_spec, resolved(shallow_spec, compile=True), device="cpu", backend=compiler)
    engine.prepare()
    before = compiler.runs
    record = engine.render(planned(shallow_spec, cache="fast"), safer=True).acceleration
    assert compiler.runs == before
    assert (record["cache"], record["cached_steps"]) == ("off", 0)
    assert "another try" in str(record["cache_reason"])
    assert (record["compiled"], record["compiles"]) == (False, 0)
    record = engine.render(planned(shallow_spec, cache="fast")).acceleration
    assert compiler.runs > before
    assert (record["cache"], record["compiled"], record["compiles"]) == ("fast", True, 0)
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_have_the_number_format_that_was_resolved(shallow_spec: ModelSpec, dtype: str) -> None:
    engine = Engine(shallow_spec, resolved(shallow_spec, dtype=dtype), device="cpu")
    load = engine.prepare()[0]
    assert load.detail["dtype"] == dtype
    pipe: Any = engine.parts[0]
    for part in (pipe.transformer, pipe.vae, pipe.text_encoder, pipe.text_encoder_2):
        assert {parameter.dtype for parameter in part.parameters()} == {getattr(torch, dtype)}
    engine.render(planned(shallow_spec, num_inference_steps=6))
    engine.close()


@pytest.mark.parametrize("tiling", ["true", "false"])
def test_the_decoder_tiles_as_resolved(shallow_spec: ModelSpec, tiling: str) -> None:
    engine = Engine(shallow_spec, resolved(shallow_spec, vae_tiling=tiling), device="cpu")
    engine.prepare()
    pipe: Any = engine.parts[0]
    assert pipe.vae.use_tiling is (tiling == "true")
    engine.close()
