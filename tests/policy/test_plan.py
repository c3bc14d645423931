"""Requests with every gap filled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.model_spec import ModelSpec
from policy.plan import RenderPlan, make_plan
from tests.policy.parts import CATALOGUE, QWEN, TINY, WAN2, parsed, planned


def test_what_is_left_out_follows_the_model() -> None:
    plan = planned(TINY)
    assert (plan.width, plan.height, plan.num_inference_steps, plan.guidance_scale) == (64, 64, 24, 1.0)
    assert (plan.n, plan.cache, plan.output_format, plan.num_frames, plan.fps) == (
        1,
        "default",
        "png",
        None,
        None,
    )
    video = planned(WAN2)
    assert (video.num_frames, video.fps, video.output_format, video.kind) == (81, 16, "mp4", "video")


def test_what_is_given_stays() -> None:
    plan = planned(
        TINY, num_inference_steps=9, guidance_scale=3, seed=0, n=2, cache="off", output_format="jpeg"
    )
    assert (plan.num_inference_steps, plan.guidance_scale, plan.seed, plan.n) == (9, 3.0, 0, 2)
    assert (plan.cache, plan.output_format) == ("off", "jpeg")


def test_each_image_has_a_seed_of_its_own() -> None:
    assert planned(TINY, seed=5, n=3).seeds == (5, 6, 7)


@given(st.integers(0, 2**80), st.integers(1, TINY.limits.n))
def test_a_drawn_seed_and_those_of_all_images_survive_a_spreadsheet(drawn: int, n: int) -> None:
    """Excel keeps 15 digits of a number."""
    plan = make_plan(parsed(n=n), TINY, lambda: drawn)
    assert plan.seed >= 0
    assert plan.seeds[-1] < 10**15


def test_a_seed_that_was_given_may_have_sixteen_digits() -> None:
    assert planned(TINY, seed=2**53 - 1).seed == 2**53 - 1


def test_a_seed_of_zero_is_a_seed() -> None:
    assert make_plan(parsed(seed=0), TINY, lambda: pytest.fail("drawn all the same")).seed == 0


def test_a_negative_prompt_turns_guidance_on_where_the_default_is_off() -> None:
    assert planned(TINY).guidance_scale == 1.0
    assert planned(TINY, negative_prompt="snow").guidance_scale == 2.5
    assert planned(TINY, negative_prompt="").guidance_scale == 1.0
    assert planned(TINY, negative_prompt="snow", guidance_scale=4).guidance_scale == 4.0


def test_true_guidance_gets_an_empty_negative_prompt_without_which_the_pipeline_would_not_guide() -> None:
    assert planned(QWEN).negative_prompt == ""
    assert planned(QWEN, guidance_scale=1).negative_prompt is None
    assert planned(TINY).negative_prompt is None
    assert planned(TINY, guidance_scale=2).negative_prompt == ""
    assert planned(WAN2).negative_prompt is None


@pytest.mark.parametrize(
    ("model", "fields", "calls"),
    [
        ("tiny", {}, 1),
        ("tiny", {"guidance_scale": 2.5}, 2),
        ("tiny", {"negative_prompt": "snow"}, 2),
        ("flux.1-dev", {}, 1),
        ("flux.1-dev", {"guidance_scale": 10}, 1),
        ("flux.1-schnell", {}, 1),
        ("flux.2-klein-4b", {}, 1),
        ("qwen-image", {}, 2),
        ("qwen-image", {"guidance_scale": 1}, 1),
        ("z-image-turbo", {}, 1),
        ("sd3.5-medium", {}, 1),
        ("sana-1.6b", {}, 1),
        ("pixart-sigma", {}, 1),
        ("wan2.1-t2v-1.3b", {}, 2),
        ("wan2.1-t2v-1.3b", {"guidance_scale": 1}, 1),
        ("wan2.2-t2v-a14b", {}, 2),
        ("ltx-video", {}, 1),
    ],
)
def test_the_number_of_transformer_calls_per_step_follows_the_request(
    model: str, fields: dict[str, object], calls: int
) -> None:
    spec = CATALOGUE[model]
    assert spec.calls_per_step(planned(spec, **fields)) == calls


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=CATALOGUE)
def test_a_plan_survives_json(spec: ModelSpec) -> None:
    plan = planned(spec)
    assert RenderPlan.model_validate_json(plan.model_dump_json()) == plan
