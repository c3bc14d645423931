"""What is mounted, put off, compiled and remembered, on bare transformers and on the tiny pipeline."""

import ast
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.acceleration import Acceleration
from pipeline.compilation import CompilePlan, compiled_scope
from pipeline.errors import MountFailed, StepsMismatch
from pipeline.load import load_pipeline
from policy.cache import CacheConfig, CacheDecision, step_mask
from policy.model_spec import ModelSpec
from tests.fixtures.models import GraphCounter, resolved

ROOT = Path(__file__).parents[2]
OFF = CacheDecision(None, None, "off")
STEPS = 6


def cached(steps: int = STEPS, **changes: Any) -> CacheDecision:
    config = CacheConfig(
        steps=steps,
        mask=(1, *[1, 0] * (steps // 2 - 1), 1),
        fn=1,
        bn=0,
        warmup_steps=2,
        threshold=0.12,
        max_consecutive=3,
        taylorseer=1,
        separate_cfg=False,
    )
    return CacheDecision((replace(config, **changes),), "balanced", "for a test")


@pytest.fixture
def pipe(tiny_spec: ModelSpec) -> Any:
    return load_pipeline(tiny_spec, resolved(tiny_spec), torch.device("cpu"))


def draw(pipe: Any, steps: int = STEPS, seed: int = 1, **call: Any) -> torch.Tensor:
    call = {"prompt": "a boat", "width": 64, "height": 64, "max_sequence_length": 16} | call
    generator = torch.Generator().manual_seed(seed)
    output = pipe(**call, num_inference_steps=steps, generator=generator, output_type="latent")
    return output.images  # type: ignore[no-any-return]


UNCOMPILED = CompilePlan(wanted=False)


def accelerate(pipe: Any, plan: CompilePlan = UNCOMPILED, **settings: Any) -> Acceleration:
    return Acceleration(
        lambda: [pipe.transformer], plan, **{"cache_wanted": True, "backend": GraphCounter(), **settings}
    )


class Layer(nn.Linear):
    """A module to compile that needs no cache."""


def on(*modules: nn.Module) -> Acceleration:
    return Acceleration(
        lambda: modules, CompilePlan(wanted=True, scope="whole"), cache_wanted=False, backend=GraphCounter()
    )


# Putting off -----------------------------------------------------------------------------------------


def test_a_compile_asked_for_before_the_mount_is_put_off_until_it(pipe: Any) -> None:
    acceleration = accelerate(pipe, CompilePlan(wanted=True, scope="whole"))
    assert acceleration.compile() is False
    assert not acceleration.is_compiled
    assert compiled_scope(pipe.transformer) == "none"
    acceleration.mount(cached())
    assert acceleration.compile() is True
    assert acceleration.is_compiled
    assert compiled_scope(pipe.transformer) == "whole"


def test_an_uncached_job_does_not_bring_the_compile_forward(pipe: Any) -> None:
    acceleration = accelerate(pipe, CompilePlan(wanted=True, scope="whole"))
    acceleration.prepare_for(OFF)
    assert compiled_scope(pipe.transformer) == "none"
    acceleration.prepare_for(cached())
    assert compiled_scope(pipe.transformer) == "whole"


def test_where_no_cache_is_wanted_nothing_is_put_off(pipe: Any) -> None:
    acceleration = accelerate(pipe, CompilePlan(wanted=True), cache_wanted=False)
    assert acceleration.compile() is True
    assert compiled_scope(pipe.transformer) == "regional"


def test_nothing_is_compiled_unless_it_is_wanted(pipe: Any) -> None:
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached())
    assert compiled_scope(pipe.transformer) == "none"
    assert not acceleration.is_compiled


# The registry ----------------------------------------------------------------------------------------


def test_a_module_is_compiled_once() -> None:
    layer = Layer(2, 2)
    acceleration = on(layer)
    acceleration.compile()
    first = layer._compiled_call_impl
    acceleration.compile()
    assert layer._compiled_call_impl is first


def test_a_module_at_the_address_of_an_unloaded_one_is_compiled_again() -> None:
    modules: list[nn.Module] = [Layer(2, 2) for _ in range(100)]
    acceleration = Acceleration(
        lambda: modules, CompilePlan(wanted=True, scope="whole"), cache_wanted=False, backend=GraphCounter()
    )
    acceleration.compile()
    addresses = {id(module) for module in modules}
    modules.clear()
    gc.collect()
    kept = []
    while not modules:
        kept.append(Layer(2, 2))
        modules.extend(layer for layer in kept[-1:] if id(layer) in addresses)
        assert len(kept) < 50_000, "no address was given out again"
    assert not acceleration.is_compiled
    acceleration.compile()
    assert {compiled_scope(layer) for layer in modules} == {"whole"}


def test_the_registry_does_not_keep_a_module_alive() -> None:
    modules: list[nn.Module] = [Layer(2, 2)]
    acceleration = Acceleration(
        lambda: modules, CompilePlan(wanted=True, scope="whole"), cache_wanted=False, backend=GraphCounter()
    )
    acceleration.compile()
    reference = weakref.ref(modules[0])
    modules.clear()
    gc.collect()
    assert reference() is None


def test_release_forgets_what_was_compiled() -> None:
    layer = Layer(2, 2)
    acceleration = on(layer)
    acceleration.compile()
    first = layer._compiled_call_impl
    acceleration.release()
    assert not acceleration.is_compiled
    acceleration.compile()
    assert layer._compiled_call_impl is not first


def test_a_transformer_loaded_anew_is_mounted_and_compiled(pipe: Any) -> None:
    acceleration = accelerate(pipe, CompilePlan(wanted=True))
    acceleration.prepare_for(cached())
    pipe.transformer = type(pipe.transformer).from_config(pipe.transformer.config).eval()
    assert not acceleration.is_compiled
    acceleration.prepare_for(cached())
    assert acceleration.is_compiled
    assert acceleration.effective() == {
        "mounted": True,
        "compile_scope": "regional",
        "attention": "auto",
        "graphs": 0,
        "cache": [
            {
                "steps": STEPS,
                "mask": cached().configs[0].mask,
                "fn": 1,
                "bn": 0,
                "warmup_steps": 2,
                "threshold": 0.12,
                "taylorseer": 1,
                "separate_cfg": False,
            }
        ],
    }


# Mounting --------------------------------------------------------------------------------------------


def test_a_mask_reuses_exactly_its_zeros(pipe: Any) -> None:
    acceleration = accelerate(pipe)
    for preset, steps in (("quality", 12), ("balanced", 12), ("fast", 24)):
        mask = step_mask(preset, steps)
        acceleration.prepare_for(cached(steps, mask=mask))
        draw(pipe, steps)
        assert acceleration.cached_steps() == (mask.count(0),)
        acceleration.check_executed()


def test_each_configuration_gives_its_own_result_whatever_was_mounted_before(pipe: Any) -> None:
    decisions = [
        cached(taylorseer=0, mask=(1, 1, 0, 1, 0, 1)),
        cached(taylorseer=1, mask=(1, 1, 0, 1, 0, 1)),
        cached(taylorseer=1, mask=(1, 0, 0, 0, 0, 1)),
        cached(taylorseer=0, mask=None, threshold=5.0),
        cached(taylorseer=0, fn=3, bn=2),
        cached(8, taylorseer=2),
        OFF,
    ]
    acceleration = accelerate(pipe)

    def result(decision: CacheDecision) -> torch.Tensor:
        acceleration.prepare_for(decision)
        return draw(pipe, decision.configs[0].steps if decision.configs else STEPS)

    alone = []
    for decision in decisions:
        acceleration.unmount()
        alone.append(result(decision))
    assert len({tensor.sum().item() for tensor in alone}) == len(decisions)
    for order in (range(len(decisions)), reversed(range(len(decisions))), (0, 2, 1, 0, 3, 0, 4, 5, 0)):
        for index in order:
            assert torch.equal(result(decisions[index]), alone[index]), decisions[index]


def test_the_same_configuration_is_refreshed_and_not_mounted_again(pipe: Any) -> None:
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached())
    manager, context = pipe.transformer._context_manager, live_context(pipe)
    acceleration.prepare_for(cached())
    assert pipe.transformer._context_manager is manager
    assert live_context(pipe) is not context
    acceleration.prepare_for(cached(separate_cfg=True))
    assert pipe.transformer._context_manager is not manager


def live_context(pipe: Any) -> Any:
    return pipe.transformer._context_manager.get_context(pipe.transformer._context_names[-1])


def test_unmounted_a_transformer_computes_as_if_never_mounted(pipe: Any) -> None:
    expected = draw(pipe)
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached())
    assert not torch.equal(draw(pipe), expected)
    acceleration.prepare_for(OFF)
    assert torch.equal(draw(pipe), expected)
    assert acceleration.cached_steps() == (0,)


def test_a_mount_that_fails_is_undone_and_the_next_one_works(pipe: Any) -> None:
    expected = draw(pipe)
    acceleration = accelerate(pipe)
    with pytest.raises(MountFailed, match="cache_fn 9 and cache_bn 8 are more than the 10 blocks"):
        acceleration.prepare_for(cached(fn=9, bn=8))
    assert acceleration.effective()["mounted"] is False
    assert torch.equal(draw(pipe), expected)
    acceleration.prepare_for(cached())
    draw(pipe)
    assert acceleration.cached_steps() == (2,)


def test_a_mount_that_fails_half_way_leaves_nothing(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cache_dit

    expected = draw(pipe)
    acceleration = accelerate(pipe)
    mount = cache_dit.enable_cache

    def mount_and_fail(*args: Any, **kwargs: Any) -> None:
        mount(*args, **kwargs)
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(cache_dit, "enable_cache", mount_and_fail)
    with pytest.raises(MountFailed, match="FluxTransformer2DModel: out of luck"):
        acceleration.prepare_for(cached())
    monkeypatch.undo()
    assert torch.equal(draw(pipe), expected)
    acceleration.prepare_for(cached())
    draw(pipe)
    acceleration.check_executed()


def test_a_transformer_that_cache_dit_does_not_know_is_refused() -> None:
    acceleration = Acceleration(lambda: [Layer(2, 2)], CompilePlan(wanted=False), cache_wanted=True)
    with pytest.raises(MountFailed, match="Layer is not among the transformers it knows"):
        acceleration.prepare_for(cached())


@pytest.mark.parametrize(
    ("separate", "call"),
    [(False, {"true_cfg_scale": 2.5, "negative_prompt": ""}), (True, {})],
    ids=["two calls counted as one", "one call counted as two"],
)
def test_guidance_that_is_counted_wrongly_fails(pipe: Any, separate: bool, call: dict[str, Any]) -> None:
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached(separate_cfg=separate))
    draw(pipe, **call)
    with pytest.raises(StepsMismatch, match="planned were 6 in"):
        acceleration.check_executed()


def test_steps_left_out_or_run_twice_fail(pipe: Any) -> None:
    acceleration = accelerate(pipe)
    for steps in (STEPS - 1, STEPS + 1, 2 * STEPS):
        acceleration.prepare_for(cached())
        draw(pipe, steps)
        with pytest.raises(StepsMismatch):
            acceleration.check_executed()


def test_a_mount_lives_inside_the_hook_that_brings_offloaded_weights(pipe: Any) -> None:
    plain = draw(pipe)
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached())
    expected = draw(pipe)
    acceleration.unmount()
    pipe.enable_model_cpu_offload(device="cpu")
    hooked = pipe.transformer.forward
    acceleration.prepare_for(cached())
    assert pipe.transformer.forward is hooked
    for _ in range(3):  # diffusers renews its hooks after every call
        acceleration.prepare_for(cached())
        assert torch.equal(draw(pipe), expected)
        acceleration.check_executed()
    acceleration.prepare_for(OFF)
    assert hasattr(pipe.transformer, "_hf_hook")
    assert torch.equal(draw(pipe), plain)


def test_a_released_transformer_is_freed(pipe: Any) -> None:
    acceleration = accelerate(pipe)
    acceleration.prepare_for(cached())
    draw(pipe)
    reference = weakref.ref(pipe.transformer)
    acceleration.release()
    pipe.transformer = None
    gc.collect()
    assert reference() is None


# The one place ---------------------------------------------------------------------------------------


def calls_of(names: set[str]) -> Iterator[tuple[str, str]]:
    """(file, name) of each use of a name as an attribute or a keyword in the sources."""
    for package in ("api", "cli", "core", "pipeline", "policy", "tasks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                name = getattr(node, "attr", None) or getattr(node, "arg", None)
                if name in names and not (name == "compile" and _owner(node) in ("re", "self")):
                    yield path.relative_to(ROOT).as_posix(), name


def _owner(node: ast.AST) -> str:
    return getattr(getattr(node, "value", None), "id", "")


def imports_cache_dit(source: str) -> bool:
    """Whether a module imports Cache-DiT, in any way that names it."""
    for node in ast.walk(ast.parse(source)):
        named: list[object] = []
        if isinstance(node, ast.Import):
            named = [part.name for part in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            named = [node.module]
        elif isinstance(node, ast.Constant):  # import_module("cache_dit")
            named = [node.value]
        if any(isinstance(name, str) and name.split(".")[0] == "cache_dit" for name in named):
            return True
    return False


def test_only_the_acceleration_imports_cache_dit() -> None:
    """Every module of every package, those that come later included; tests and benchmarks are no package.

    Its terms, and how tokens are split between ranks, are modules of their own, which mount nothing.
    """
    packages = [folder for folder in ROOT.iterdir() if folder.name[0] != "." and folder.is_dir()]
    paths = [
        path
        for folder in packages
        if folder.name not in ("tests", "benchmarks")
        for path in folder.rglob("*.py")
        if imports_cache_dit(path.read_text(encoding="utf-8"))
    ]
    found = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    assert found == ["pipeline/acceleration.py", "pipeline/cache_terms.py", "pipeline/context_split.py"]


@pytest.mark.parametrize(
    "source",
    [
        "import cache_dit",
        "import os, cache_dit.caching as c",
        "from cache_dit import enable_cache",
        "from cache_dit.caching import BlockAdapter",
        "def late():\n    import cache_dit",
        "if TYPE_CHECKING:\n    import cache_dit",
        "importlib.import_module('cache_dit.caching')",
    ],
)
def test_every_way_to_import_it_is_seen(source: str) -> None:
    assert imports_cache_dit(source)
    assert not imports_cache_dit(source.replace("cache_dit", "cache_dits"))


def test_only_the_acceleration_mounts_and_compiles() -> None:
    names = {"enable_cache", "disable_cache", "refresh_context", "compile_repeated_blocks", "compile"}
    found = {file for file, _ in calls_of(names)}
    assert found <= {"pipeline/acceleration.py", "pipeline/engine.py"}
    # The engine asks the acceleration; it calls nothing of torch or Cache-DiT itself.
    engine = (ROOT / "pipeline/engine.py").read_text()
    assert engine.count(".compile(") == engine.count("acceleration.compile()") == 1


def test_only_the_measurement_can_compile_before_the_mount() -> None:
    assert {file for file, _ in calls_of({"compile_before_mount", "_compile_before_mount"})} == {
        "pipeline/acceleration.py",
        "pipeline/order.py",
    }
    users = [
        path
        for package in ("api", "cli", "core", "pipeline", "tasks")
        for path in (ROOT / package).rglob("*.py")
        if "import pipeline.order" in path.read_text() or "from pipeline.order" in path.read_text()
    ]
    assert users == []
