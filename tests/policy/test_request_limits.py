"""What each model takes: sizes, steps, guidance, seeds, lengths, frames, cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.model_spec import ModelSpec
from policy.options import STATIC_PRESETS
from policy.sizes import check_size, nearest_sides, parse_size
from policy.spec_tables import SizeLimits
from tests.policy.parts import CATALOGUE, FLUX, TINY, WAN2, parsed, planned, refused

SPECS = list(CATALOGUE.values())
IDS = list(CATALOGUE)
every_model = pytest.mark.parametrize("spec", SPECS, ids=IDS)


def asked(spec: ModelSpec, **fields: object) -> dict[str, object]:
    return refused(model=spec.id, **fields)  # type: ignore[return-value]


@every_model
def test_the_defaults_and_the_suggested_sizes_of_a_model_are_accepted(spec: ModelSpec) -> None:
    assert not asked(spec)
    for width, height in spec.size.sizes:
        assert not asked(spec, width=width, height=height)


@every_model
def test_a_size_that_is_no_multiple_names_the_multiple_and_the_nearest_sizes(spec: ModelSpec) -> None:
    width, height = spec.size.default
    off = width - 1 if spec.size.minimum < width else width + 1
    error = refused(model=spec.id, width=off, height=height)["width"]
    if spec.size.minimum == spec.size.maximum:
        assert error.message == f"width must be 64, not {off}; nearest: 64"
        return
    below, above = width - spec.size.multiple, width
    assert (
        error.message
        == f"width must be a multiple of {spec.size.multiple}, not {off}; nearest: {below} or {above}"
    )
    assert error.nearest == [below, above]


@every_model
def test_one_step_beyond_each_limit_is_refused_and_the_limit_itself_is_not(spec: ModelSpec) -> None:
    for field, minimum, maximum in (
        ("num_inference_steps", spec.steps.minimum, spec.steps.maximum),
        ("n", 1, spec.limits.n),
    ):
        assert not asked(spec, **{field: minimum})
        assert not asked(spec, **{field: maximum})
        assert refused(model=spec.id, **{field: minimum - 1})[field].nearest == minimum
        assert refused(model=spec.id, **{field: maximum + 1})[field].nearest == maximum


@every_model
def test_a_prompt_of_the_longest_length_is_taken_and_one_of_a_character_more_is_not(spec: ModelSpec) -> None:
    limit = spec.limits.prompt_characters
    assert not asked(spec, prompt="x" * limit)
    error = refused(model=spec.id, prompt="x" * (limit + 1))["prompt"]
    assert error.message == f"prompt must have at most {limit} characters, not {limit + 1}"
    assert len(str(refused(model=spec.id, prompt="x" * 50_000)["prompt"].value)) < 100


@every_model
def test_guidance_is_held_to_the_models_range_or_refused_where_it_has_no_effect(spec: ModelSpec) -> None:
    limits = spec.guidance
    assert not asked(spec, guidance_scale=limits.default)
    if limits.style == "none":
        error = refused(model=spec.id, guidance_scale=limits.default + 1)["guidance_scale"]
        assert "has no effect" in error.message
        assert error.nearest == limits.default
    else:
        assert not asked(spec, guidance_scale=limits.maximum)
        error = refused(model=spec.id, guidance_scale=limits.maximum + 0.5)["guidance_scale"]
        assert error.nearest == limits.maximum


@every_model
def test_a_boundary_is_taken_where_there_are_two_transformers(spec: ModelSpec) -> None:
    if len(spec.transformers) == 2:
        assert parsed(model=spec.id, boundary_ratio=0.5).boundary_ratio == 0.5
        assert planned(spec, boundary_ratio=0.5).boundary_ratio == 0.5
        assert planned(spec).boundary_ratio == spec.boundary_ratio
        for wrong, words in ((0, "more than 0"), (1, "less than 1"), (-0.1, "more than 0")):
            message = refused(model=spec.id, boundary_ratio=wrong)["boundary_ratio"].message
            assert message.startswith(f"boundary_ratio must be {words}")
    else:
        error = refused(model=spec.id, boundary_ratio=0.5)["boundary_ratio"]
        assert error.message == (
            f"boundary_ratio is for models with two transformers, and {spec.id} has one: leave it out"
        )
        assert planned(spec).boundary_ratio is None


@every_model
def test_a_negative_prompt_is_taken_exactly_where_it_has_an_effect(spec: ModelSpec) -> None:
    errors = asked(spec, negative_prompt="snow")
    if spec.limits.negative_prompt:
        assert not errors
        assert spec.guidance.steers(planned(spec, negative_prompt="snow").guidance_scale)
    else:
        assert "has no effect" in errors["negative_prompt"].message
    assert not asked(spec, negative_prompt="")
    assert not asked(spec, negative_prompt=None)


def test_a_negative_prompt_with_guidance_switched_off_is_a_contradiction() -> None:
    error = refused(negative_prompt="snow", guidance_scale=1)["negative_prompt"]
    assert error.message == "negative_prompt has no effect at guidance_scale 1: give more than 1.0"
    assert not refused(negative_prompt="snow", guidance_scale=1.1)


def test_tiny_draws_64_by_64_and_nothing_else() -> None:
    assert not refused(width=64, height=64)
    for side in (0, 32, 48, 63, 65, 80, 128, 10**30):
        assert refused(width=side)["width"].nearest == 64
        assert refused(height=side)["height"].nearest == 64


def test_too_many_pixels_are_refused_with_a_size_that_fits() -> None:
    error = refused(model="flux.1-dev", width=2048, height=2048)["width"]
    assert error.limit == FLUX.size.max_pixels
    assert error.value == "2048x2048"
    width, height = parse_size(str(error.nearest))
    assert FLUX.size.admits(width, height)


def test_one_side_alone_is_checked_with_the_other_at_its_default() -> None:
    sd = CATALOGUE["sd3.5-medium"]
    too_high = refused(model=sd.id, height=sd.size.maximum + sd.size.multiple)
    assert set(too_high) == {"height"}
    wan = refused(model="wan2.1-t2v-1.3b", height=832)
    assert set(wan) == {"height"}
    assert "832x832" in wan["height"].message


limits = st.builds(
    lambda multiple, least, span, pixels: SizeLimits.model_construct(
        default=(0, 0),
        multiple=multiple,
        minimum=least * multiple,
        maximum=(least + span) * multiple,
        max_pixels=(least * multiple) ** 2 + pixels,
        sizes=(),
    ),
    st.sampled_from([8, 16, 32]),
    st.integers(1, 30),
    st.integers(0, 200),
    st.integers(0, 10**7),
)


@given(limits, st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_size_is_refused_exactly_when_it_breaks_the_limits(
    rule: SizeLimits, width: int, height: int
) -> None:
    assert bool(list(check_size(width, height, rule))) == (not rule.admits(width, height))


@given(limits, st.integers(-5, 10_000))
def test_the_nearest_sides_are_valid_and_none_is_nearer(rule: SizeLimits, side: int) -> None:
    valid = range(rule.minimum, rule.maximum + 1, rule.multiple)
    nearest = nearest_sides(side, rule)
    assert all(near in valid for near in nearest)
    assert min(abs(near - side) for near in nearest) == min(abs(near - side) for near in valid)


@pytest.mark.parametrize(
    "text", ["64", "64x", "x64", "64*64", "064x64", "64x64x64", "-64x64", "64 x 64", "٦٤x٦٤", ""]
)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


def test_a_size_may_be_written_with_a_capital_x_and_spaces_around() -> None:
    assert parse_size(" 1024X768 ") == (1024, 768)


@pytest.mark.parametrize("seed", [-1, 2**53, 2**64, -(2**70)])
def test_a_seed_that_json_readers_would_round_is_refused(seed: int) -> None:
    assert refused(seed=seed)["seed"].nearest in (0, 2**53 - 1)


def test_the_seed_of_the_last_image_stays_below_the_limit_too() -> None:
    assert parsed(seed=2**53 - 1).seed == 2**53 - 1
    assert parsed(seed=2**53 - 8, n=8).seed == 2**53 - 8
    error = refused(seed=2**53 - 7, n=8)["seed"]
    assert error.nearest == 2**53 - 8


def test_output_formats_are_the_models() -> None:
    assert refused(output_format="jpg")["output_format"].nearest == "jpeg"
    assert refused(output_format="mp4")["output_format"].limit == ["png", "jpeg", "webp"]
    assert refused(model=WAN2.id, output_format="png")["output_format"].nearest == "mp4"


def test_frames_and_rate_belong_to_video_models() -> None:
    errors = refused(num_frames=81, fps=16)
    assert set(errors) == {"num_frames", "fps"}
    assert "tiny makes images" in errors["fps"].message


@pytest.mark.parametrize(
    ("model", "frames", "nearest"),
    [
        ("wan2.1-t2v-1.3b", 80, [77, 81]),
        ("wan2.2-t2v-a14b", 6, [5, 9]),
        ("wan2.2-t2v-a14b", 4, 5),
        ("wan2.1-t2v-1.3b", 85, 81),
        ("ltx-video", 160, [153, 161]),
        ("ltx-video", 1, 9),
        ("ltx-video", 265, 257),
    ],
)
def test_a_number_of_frames_that_the_video_autoencoder_cannot_make_is_refused(
    model: str, frames: int, nearest: object
) -> None:
    assert refused(model=model, num_frames=frames)["num_frames"].nearest == nearest


def test_the_frame_rate_has_limits() -> None:
    assert not refused(model="ltx-video", num_frames=9, fps=60)
    assert refused(model="ltx-video", fps=61)["fps"].nearest == 60
    assert refused(model="ltx-video", fps=0)["fps"].nearest == 1


@pytest.mark.parametrize("preset", STATIC_PRESETS)
@every_model
def test_a_cache_preset_needs_enough_steps_to_reuse_one(spec: ModelSpec, preset: str) -> None:
    least = spec.cache_minimum_steps(preset)
    if least <= spec.steps.maximum:
        assert not asked(spec, cache=preset, num_inference_steps=least)
    short = max(min(least - 1, spec.steps.maximum), spec.steps.minimum)
    error = refused(model=spec.id, cache=preset, num_inference_steps=short)["cache"]
    assert error.limit == least
    assert f"at least {least} num_inference_steps, not {short}" in error.message


def test_a_preset_is_checked_against_the_default_steps_when_none_are_given() -> None:
    assert "not 4: give at least 7" in refused(model="flux.1-schnell", cache="fast")["cache"].message
    assert not refused(model="flux.1-dev", cache="fast")
    for choice in ("default", "off"):
        assert not refused(num_inference_steps=4, cache=choice)


def test_two_transformers_need_twice_the_steps_because_they_share_them() -> None:
    assert WAN2.cache_minimum_steps("balanced") == 2 * TINY.cache_minimum_steps("balanced") == 14
