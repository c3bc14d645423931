"""One pass on each kind of pipeline: what it is called with, how it is watched, what comes out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.boundary import split_steps
from pipeline.engine import Engine
from pipeline.errors import StepsMismatch, Stopped, Unsupported
from pipeline.render import call_arguments
from policy.model_spec import ModelSpec
from tests.fixtures.models import pixels, planned

Prepared = Callable[..., Engine]


def test_every_argument_of_the_call_is_set_on_purpose(tiny_engine: Engine) -> None:
    plan = planned(tiny_engine.spec, guidance_scale=2.0, negative_prompt="a tree")
    arguments = call_arguments(tiny_engine.parts[0], tiny_engine.spec, plan, seed=5)
    generator = arguments.pop("generator")
    assert generator.device.type == "cpu"
    assert generator.initial_seed() == 5
    assert arguments == {
        "prompt": plan.prompt,
        "negative_prompt": "a tree",
        "width": 64,
        "height": 64,
        "num_inference_steps": 24,
        "true_cfg_scale": 2.0,
        "max_sequence_length": 16,
        "output_type": "np",
    }


def test_fixed_arguments_of_the_spec_are_passed_and_unknown_ones_refused(tiny_engine: Engine) -> None:
    plan = planned(tiny_engine.spec)
    spec = tiny_engine.spec.model_copy(update={"call": {"guidance_scale": 1.5}})
    assert call_arguments(tiny_engine.parts[0], spec, plan, 1)["guidance_scale"] == 1.5
    spec = tiny_engine.spec.model_copy(update={"call": {"flavour": 1, "colour": 2}})
    with pytest.raises(Unsupported, match="FluxPipeline takes no colour, flavour"):
        call_arguments(tiny_engine.parts[0], spec, plan, 1)


def test_a_video_has_its_frames_and_follows_the_request(miniature_engine: Prepared) -> None:
    engine = miniature_engine("ltx-video")
    assert engine.spec.frames is not None
    frames = engine.spec.frames.default + engine.spec.frames.multiple
    plan = planned(engine.spec, num_inference_steps=4, num_frames=frames, fps=20)
    (picture,) = engine.render(plan).pictures
    assert picture.image is None
    assert picture.frames is not None
    width, height = engine.spec.size.default
    assert picture.frames.shape == (frames, height, width, 3)
    assert picture.frames.dtype == np.uint8
    arguments = call_arguments(engine.parts[0], engine.spec, plan, 1)
    assert (arguments["num_frames"], arguments["frame_rate"]) == (frames, 20)


def test_a_pipeline_without_a_step_callback_reports_and_stops_all_the_same(
    miniature_engine: Prepared,
) -> None:
    engine = miniature_engine("pixart-sigma")
    scheduler: Any = engine.parts[0].scheduler
    seen: list[tuple[int, int]] = []

    def note(done: int, total: int) -> bool:
        seen.append((done, total))
        return done != 9

    expected = pixels(engine.render(planned(engine.spec, num_inference_steps=6)))
    with pytest.raises(Stopped, match="after step 9"):
        engine.render(planned(engine.spec, num_inference_steps=6, n=2), note)
    assert seen == [(done, 12) for done in range(1, 10)]
    assert not {"step", "set_timesteps"} & set(vars(scheduler))
    rendering = engine.render(planned(engine.spec, num_inference_steps=6))
    assert pixels(rendering) == expected
    assert all(value > 0 for value in rendering.timings_ms.values())


def test_a_sampler_that_runs_other_steps_than_planned_is_noticed(
    miniature_engine: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = miniature_engine("pixart-sigma")
    scheduler: Any = engine.parts[0].scheduler
    set_timesteps = scheduler.set_timesteps
    monkeypatch.setattr(
        type(scheduler), "set_timesteps", lambda _self, steps, **named: set_timesteps(steps + 1, **named)
    )
    with pytest.raises(StepsMismatch, match="7 steps were run, planned were 6"):
        engine.render(planned(engine.spec, num_inference_steps=6, cache="off"))


@pytest.mark.parametrize("steps", [8, 12, 20])
def test_two_transformers_share_the_steps_as_the_pipeline_does(
    miniature_engine: Prepared, steps: int
) -> None:
    engine = miniature_engine("wan2.2-t2v-a14b")
    pipe: Any = engine.parts[0]
    counts = dict.fromkeys(engine.spec.transformers, 0)

    def counter(name: str) -> Callable[..., None]:
        def count(*_: object) -> None:
            counts[name] += 1

        return count

    hooks = [getattr(pipe, name).register_forward_pre_hook(counter(name)) for name in counts]
    plan = planned(engine.spec, num_inference_steps=steps)
    engine.render(plan)
    for hook in hooks:
        hook.remove()
    split = split_steps(pipe, engine.spec, steps)
    calls = engine.spec.calls_per_step(plan)
    assert calls == 2
    assert [count // calls for count in counts.values()] == list(split)
    assert sum(split) == steps


@pytest.mark.parametrize("ratio", [0.02, 0.5, 0.95, 0.999])
def test_a_request_says_where_two_transformers_change_over(miniature_engine: Prepared, ratio: float) -> None:
    engine = miniature_engine("wan2.2-t2v-a14b", cache_preset="balanced")
    usual = planned(engine.spec, num_inference_steps=20)
    asked = usual.model_copy(update={"boundary_ratio": ratio})
    before = engine.render(usual)
    rendering = engine.render(asked)
    mounted: Any = engine.effective()["cache"]
    split = split_steps(engine.parts[0], engine.spec, 20, ratio)
    assert tuple(each["steps"] for each in mounted) == split
    assert split != split_steps(engine.parts[0], engine.spec, 20)
    assert pixels(rendering) != pixels(before)
    assert pixels(engine.render(usual)) == pixels(before)
    assert rendering.acceleration["cached_steps"] == sum(each["mask"].count(0) for each in mounted)


def test_each_of_two_transformers_has_its_own_mask_and_knobs(miniature_engine: Prepared) -> None:
    engine = miniature_engine("wan2.2-t2v-a14b", secondary_cache_preset="fast", secondary_cache_fn=2)
    rendering = engine.render(planned(engine.spec, num_inference_steps=30))
    mounted: Any = engine.effective()["cache"]
    first, second = mounted
    split = split_steps(engine.parts[0], engine.spec, 30)
    assert (first["steps"], second["steps"]) == split == (len(first["mask"]), len(second["mask"]))
    assert (first["fn"], second["fn"]) == (1, 2)
    assert first["mask"] != second["mask"][: len(first["mask"])]
    assert rendering.acceleration["cached_steps"] == first["mask"].count(0) + second["mask"].count(0)
    assert rendering.acceleration["cache"] == "balanced+fast"
    assert first["separate_cfg"] is second["separate_cfg"] is True
    unguided = engine.render(planned(engine.spec, num_inference_steps=30, guidance_scale=1.0))
    mounted = engine.effective()["cache"]
    assert mounted[0]["separate_cfg"] is mounted[1]["separate_cfg"] is False
    assert unguided.acceleration["cached_steps"] == rendering.acceleration["cached_steps"]


@pytest.mark.parametrize(
    "model_id", ["flux.1-dev", "qwen-image", "sd3.5-medium", "sana-1.6b", "wan2.1-t2v-1.3b"]
)
def test_a_mask_reuses_the_same_steps_on_every_family(miniature_engine: Prepared, model_id: str) -> None:
    engine = miniature_engine(model_id)
    record = engine.render(planned(engine.spec, num_inference_steps=12)).acceleration
    assert (record["cache"], record["cached_steps"], record["steps"]) == ("balanced", 3, 12)
    uncached = engine.render(planned(engine.spec, num_inference_steps=12, cache="off"))
    assert uncached.acceleration["cached_steps"] == 0


def test_gradients_are_never_kept(tiny_engine: Engine) -> None:
    kept: list[bool] = []
    pipe: Any = tiny_engine.parts[0]
    handle = pipe.transformer.register_forward_hook(lambda *_: kept.append(torch.is_grad_enabled()))
    tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=4))
    handle.remove()
    assert kept == [False] * 4


def test_a_spec_of_one_transformer_gives_it_all_steps(tiny_spec: ModelSpec) -> None:
    assert split_steps(None, tiny_spec, 17) == (17,)
