"""The warm-up: what it runs, and when it calls a worker not ready."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline import warmup
from pipeline.boundary import split_steps
from pipeline.compilation import compiles_so_far
from pipeline.engine import Engine
from pipeline.errors import WarmupIncomplete
from pipeline.load import find_bundled
from pipeline.miniature import spec_of
from pipeline.warmup import count_steps, guidance_scales, plan_warm_up, run_warm_up
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from tests.fixtures.models import GraphCounter, planned, resolved

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compile_something(number: int) -> None:
    """A real compile of a real function, new for every number."""

    code = _double.__code__.replace(co_name=f"double_{number}")
    torch.compile(FunctionType(code, globals()), backend="eager")(torch.ones(2))


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def test_every_size_is_run_with_guidance_and_without(tiny_spec: ModelSpec) -> None:
    sizes = [(64, 64), (32, 64)]
    plans = plan_warm_up(tiny_spec, sizes, steps=3, compiled=False, cached=True).plans
    assert [(plan.width, plan.height, plan.guidance_scale) for plan in plans] == [
        (64, 64, 1.0),
        (64, 64, 2.5),
        (32, 64, 1.0),
        (32, 64, 2.5),
    ]
    assert [tiny_spec.calls_per_step(plan) for plan in plans] == [1, 2, 1, 2]
    assert {plan.num_inference_steps for plan in plans} == {3}


def test_a_compiling_worker_also_runs_other_prompt_lengths_and_checks_an_unseen_one(
    tiny_spec: ModelSpec,
) -> None:
    warm_up = plan_warm_up(tiny_spec, [(64, 64)], steps=3, compiled=True, cached=True)
    lengths = {len(plan.prompt.split()) for plan in warm_up.plans}
    assert len(lengths) == 3
    assert warm_up.checks[: len(warm_up.plans)] == warm_up.plans
    unseen = {len(plan.prompt.split()) for plan in warm_up.checks} - lengths
    assert len(unseen) == 1


@pytest.mark.parametrize("model_id", list(Catalogue.load()))
def test_guidance_is_warmed_in_each_way_a_request_can_have_it(model_id: str) -> None:
    spec = Catalogue.load().get_model(model_id)
    scales = guidance_scales(spec)
    assert scales[0] == spec.guidance.default
    assert len({spec.guidance.steers(scale) for scale in scales}) == len(scales)
    possible = {spec.guidance.steers(scale) for scale in (spec.guidance.minimum, spec.guidance.maximum)}
    assert {spec.guidance.steers(scale) for scale in scales} == possible


def test_both_transformers_get_steps_enough_for_a_reused_one(miniature_engine: Callable[..., Engine]) -> None:
    engine = miniature_engine("wan2.2-t2v-a14b")

    def split(steps: int) -> Sequence[int]:
        return split_steps(engine.parts[0], engine.spec, steps)

    steps = count_steps(split, cached=True)
    assert min(split(steps)) >= 3
    assert min(split(steps - 1)) < 3
    warm = engine.preparation[-1].detail
    assert warm["cached_steps"] == [[1, 1], [1, 1]]


def test_a_split_that_never_reaches_one_transformer_is_not_warm() -> None:
    with pytest.raises(WarmupIncomplete, match="gives every transformer 3 steps"):
        count_steps(lambda steps: (steps, 0), cached=True)


@pytest.mark.parametrize("reused", [(0,), (1, 0), (0, 0)])
def test_a_pass_that_reuses_nothing_is_not_warm(tiny_spec: ModelSpec, reused: tuple[int, ...]) -> None:
    warm_up = plan_warm_up(tiny_spec, [(64, 64)], steps=3, compiled=False, cached=True)
    with pytest.raises(WarmupIncomplete, match="64x64 reused"):
        run_warm_up(warm_up, lambda _plan: reused)
    uncached = plan_warm_up(tiny_spec, [(64, 64)], steps=3, compiled=False, cached=False)
    assert run_warm_up(uncached, lambda _plan: reused)["passes"] == 2


def test_a_second_round_that_compiles_is_not_warm(tiny_spec: ModelSpec) -> None:
    calls: list[RenderPlan] = []
    warm_up = plan_warm_up(tiny_spec, [(64, 64)], steps=3, compiled=True, cached=True)

    def compile_in_the_first_round(plan: RenderPlan) -> tuple[int]:
        calls.append(plan)
        if len(calls) <= len(warm_up.plans):
            compile_something(100 + len(calls))
        return (1,)

    detail = run_warm_up(warm_up, compile_in_the_first_round)
    assert detail["compiles"] == len(warm_up.plans)
    assert detail["compiles_second_round"] == 0

    def compile_always(_plan: RenderPlan) -> tuple[int]:
        calls.append(_plan)
        compile_something(200 + len(calls))
        return (1,)

    with pytest.raises(WarmupIncomplete, match="second round of the warm-up still compiled"):
        run_warm_up(warm_up, compile_always)


def test_a_worker_whose_warm_up_reaches_no_reused_step_is_not_ready(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.warmer.forced", _all_computed)
    engine = Engine(tiny_spec, resolved(tiny_spec), device="cpu")
    with pytest.raises(WarmupIncomplete, match=r"reused \[0\] steps"):
        engine.prepare()


def test_a_worker_whose_weights_draw_no_picture_is_not_ready(tiny_spec: ModelSpec, tmp_path: Path) -> None:
    folder = shutil.copytree(find_bundled(tiny_spec.source), tmp_path / "tiny")
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    state = load_file(weights)
    state["proj_out.weight"][0, 0] = float("nan")
    save_file(state, weights)
    engine = Engine(tiny_spec, resolved(tiny_spec), source=str(folder), device="cpu")
    with pytest.raises(WarmupIncomplete, match="no picture of 64x64 can be drawn: the latents hold NaN"):
        engine.prepare()


def _all_computed(config: Any, steps: int) -> Any:
    return replace(config, steps=steps, mask=(1,) * steps)


def test_a_worker_that_would_compile_for_every_prompt_is_not_ready(
    miniature_folder: Callable[[str], Any],
) -> None:
    """Qwen-Image does not pad its prompts; with every length a constant, no warm-up covers the next one."""
    spec = spec_of(Catalogue.load().get_model("qwen-image"))
    policy = resolved(spec, compile=True, compile_dynamic="false")
    source = str(miniature_folder("qwen-image"))
    engine = Engine(spec, policy, source=source, device="cpu", backend=GraphCounter())
    with pytest.raises(WarmupIncomplete, match=r"still compiled .*a red boat"):
        engine.prepare()


def test_a_shape_that_is_not_warm_runs_at_once_and_uncompiled(
    miniature_folder: Callable[[str], Any],
) -> None:
    spec = spec_of(Catalogue.load().get_model("flux.1-dev"))
    source = str(miniature_folder("flux.1-dev"))
    backend = GraphCounter()
    engine = Engine(spec, resolved(spec, compile=True), source=source, device="cpu", backend=backend)
    engine.prepare()
    graphs, compiles = backend.graphs, compiles_so_far()
    width, height = spec.size.default
    warm = engine.render(planned(spec, num_inference_steps=4)).acceleration
    cold = engine.render(planned(spec, num_inference_steps=4, width=width // 2)).acceleration
    assert (warm["compiled"], warm["warm_shape"], warm["compiles"]) == (True, True, 0)
    assert (cold["compiled"], cold["warm_shape"], cold["compiles"]) == (False, False, 0)
    assert (backend.graphs, compiles_so_far()) == (graphs, compiles)
    engine.close()
    # With both sizes declared, both are warm, and so is the symbolic shape between them.
    sizes = f"{width}x{height},{width // 2}x{height}"
    policy = resolved(spec, compile=True, warmup_sizes=sizes, new_shape="compile")
    engine = Engine(spec, policy, source=source, device="cpu", backend=backend)
    engine.prepare()
    with torch.compiler.set_stance("fail_on_recompile"):
        for side in (width, width // 2, width + width // 4):
            engine.render(planned(spec, num_inference_steps=4, width=side))
    engine.close()


def test_compiles_in_a_request_stand_on_its_record(tiny_spec: ModelSpec) -> None:
    """A worker that is not warmed up and may compile, so that there is something to count."""
    policy = resolved(tiny_spec, compile=True, warmup=False, new_shape="compile")
    backend = GraphCounter()
    engine = Engine(tiny_spec, policy, device="cpu", backend=backend)
    engine.prepare()
    assert backend.graphs == 0
    before = compiles_so_far()
    first = engine.render(planned(tiny_spec, num_inference_steps=8)).acceleration
    assert first["compiles"] == compiles_so_far() - before > 0
    assert engine.render(planned(tiny_spec, num_inference_steps=8)).acceleration["compiles"] == 0
    engine.close()


def test_compiles_are_counted_after_a_reset_and_beyond_dynamos_own_memory() -> None:
    before = compiles_so_far()
    compile_something(299)
    assert compiles_so_far() - before == 1
    torch._dynamo.reset()
    before = compiles_so_far()
    for number in range(70):
        compile_something(300 + number)
    assert compiles_so_far() - before == 70


def test_the_longest_prompt_of_the_warm_up_is_cut_to_what_a_request_may_have(tiny_spec: ModelSpec) -> None:
    short = tiny_spec.model_copy(
        update={"limits": tiny_spec.limits.model_copy(update={"prompt_characters": 9})}
    )
    plans = plan_warm_up(short, [(64, 64)], steps=3, compiled=True, cached=True).checks
    assert max(len(plan.prompt) for plan in plans) <= 9
    assert warmup.CACHED_STEPS == 3
