"""What a caller may send: types, names, texts. Limits of a model are in test_request_limits.py."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import FieldError, InvalidRequest, UnknownModel
from policy.request import RenderRequest, parse_request
from tests.policy.parts import CATALOGUE, parsed, refused

FIELDS = tuple(RenderRequest.model_fields)


def test_the_shortest_request_names_a_model_and_a_prompt() -> None:
    request = parsed()
    assert (request.model, request.prompt, request.n, request.cache) == ("tiny", "a house", 1, "default")
    assert request.seed is None
    assert request.metadata == {}


def test_every_field_can_be_given_at_once() -> None:
    request = parsed(
        negative_prompt="snow",
        width=64,
        height=64,
        num_inference_steps=24,
        guidance_scale=2,
        seed=0,
        n=8,
        cache="fast",
        output_format="webp",
        priority="high",
        queue_timeout_s=1,
        run_timeout_s=0.5,
        metadata={"album": "7"},
    )
    assert request.guidance_scale == 2.0
    assert request.metadata == {"album": "7"}


@pytest.mark.parametrize("body", [None, [], "{}", 3, 3.5, True, [{"model": "tiny", "prompt": "x"}]])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidRequest, match="the body must be an object"):
        parse_request(body, CATALOGUE)


def test_what_is_missing_is_named() -> None:
    errors = refused({})
    assert set(errors) == {"model", "prompt"}
    assert errors["prompt"].message == "prompt is missing"


def test_an_unknown_model_is_answered_with_those_that_are_offered() -> None:
    with pytest.raises(
        UnknownModel, match=r"offered: flux\.1-dev.* and z-image-turbo; did you mean \"tiny\""
    ) as no:
        parse_request({"model": "tyny", "prompt": "x", "widht": 1}, CATALOGUE)
    fields = {error.field: error for error in no.value.errors}
    assert fields["model"].limit == list(CATALOGUE)
    assert fields["model"].nearest == "tiny"
    assert fields["widht"].nearest == "width"


def test_an_unknown_field_is_answered_with_the_nearest_known_one() -> None:
    assert refused(num_inferense_steps=4)["num_inferense_steps"].nearest == "num_inference_steps"
    assert "known: model, prompt" in refused(zzzzz=1)["zzzzz"].message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("n", value) for value in ("2", 2.5, True, None, [], {})],
        *[("width", value) for value in ("64", 64.5, False, [64])],
        *[("height", value) for value in ("64", 64.5, True)],
        *[("num_inference_steps", value) for value in ("24", 24.5, True)],
        *[("seed", value) for value in ("1", 1.5, True)],
        *[("guidance_scale", value) for value in ("1", True, [1.0])],
        *[("prompt", value) for value in (None, 3, ["x"], {})],
        *[("model", value) for value in (None, 3, ["tiny"], {})],
        ("negative_prompt", 3),
        ("num_frames", "9"),
        ("fps", True),
        ("output_format", 1),
        ("cache", None),
        ("cache", True),
        ("priority", 1),
        ("queue_timeout_s", "5"),
        ("run_timeout_s", True),
        ("metadata", None),
        ("metadata", ["a"]),
        ("metadata", "a"),
    ],
)
def test_a_wrong_type_is_refused_and_named(field: str, value: object) -> None:
    errors = refused(**{field: value})
    assert set(errors) == {field}
    assert f"{field} must be" in errors[field].message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["guidance_scale", "queue_timeout_s", "run_timeout_s"])
def test_what_is_not_finite_is_refused(field: str, value: float) -> None:
    assert "finite number" in refused(**{field: value})[field].message


@pytest.mark.parametrize(("field", "longest"), [("queue_timeout_s", 604800), ("run_timeout_s", 86400)])
def test_a_time_limit_is_above_zero_and_at_most_a_week_of_waiting_and_a_day_of_work(
    field: str, longest: int
) -> None:
    assert "more than 0" in refused(**{field: 0})[field].message
    assert f"at most {longest}" in refused(**{field: longest + 1})[field].message
    assert getattr(parsed(**{field: longest}), field) == longest


def test_words_are_checked_against_their_list() -> None:
    errors = refused(cache="fasst", priority="hihg")
    assert errors["cache"].limit == ["default", "off", "quality", "balanced", "fast"]
    assert errors["cache"].nearest == "fast"
    assert errors["priority"].nearest == "high"


@pytest.mark.parametrize("text", ["a\0b", "\0", "a\ud800", "\udfff", "\ud83c house"])
@pytest.mark.parametrize("field", ["prompt", "negative_prompt", "model", "output_format", "cache"])
def test_text_that_nothing_can_keep_is_refused(field: str, text: str) -> None:
    assert "must not contain" in refused(**{field: text})[field].message


@pytest.mark.parametrize("metadata", [{"a\0": "b"}, {"a": "b\0"}, {"\ud800": "b"}, {"a": "\udc00"}])
def test_metadata_is_held_to_the_same_texts(metadata: dict[str, str]) -> None:
    assert "must not contain" in refused(metadata=metadata)["metadata"].message


def test_a_flaw_in_one_field_does_not_hide_the_others() -> None:
    errors = refused(prompt="\0", n="2", metadata={"a\0": "x", "b": 1}, **{"wi\0dth": 3})
    assert {"prompt", "n", "metadata", "metadata.b"} < set(errors)
    assert len(errors) == 5


@pytest.mark.parametrize(
    "prompt",
    [
        "a house 🏠🌳",
        "בית לבן עם גג כחול",
        "👩‍👩‍👧‍👦",
        "ｆｕｌｌ width",
        "e\u0301",
        "line\nbreak\ttab",
        "\u202eabc",
        "\U0010ffff",
    ],
)
def test_emoji_right_to_left_and_line_breaks_are_text_like_any_other(prompt: str) -> None:
    assert parsed(prompt=prompt, metadata={prompt: prompt}).prompt == prompt


@pytest.mark.parametrize(("prompt", "words"), [("", "must not be empty"), (" \t\n", "visible character")])
def test_a_prompt_says_something(prompt: str, words: str) -> None:
    assert words in refused(prompt=prompt)["prompt"].message


def test_metadata_is_small() -> None:
    assert parsed(metadata={str(key): "v" * 512 for key in range(16)})
    assert "at most 16 entries" in refused(metadata={str(key): "" for key in range(17)})["metadata"].message
    assert "at most 512 characters, not 513" in refused(metadata={"k": "v" * 513})["metadata.k"].message
    assert any(field.startswith("metadata.kk") for field in refused(metadata={"k" * 513: "v"}))
    assert 'metadata."" must not be empty' in next(iter(refused(metadata={"": "v"}).values())).message


def test_every_problem_is_reported_at_once_in_the_order_of_the_fields() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(prompt="", width=63, n=0, seed=-1, cache="x", priority="x", output_format="gif", other=1)
    fields = [error.field for error in refusal.value.errors]
    assert fields == ["prompt", "width", "seed", "n", "cache", "output_format", "priority", "other"]


def test_a_million_wrong_fields_cost_little_and_are_not_all_listed() -> None:
    assert len(refused({f"field{index}": 0 for index in range(50_000)})) <= 52


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        parsed().n = 2  # type: ignore[misc]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(FIELDS) | st.text(max_size=8)


@settings(max_examples=300)
@given(st.dictionaries(names, json_values, max_size=8), st.sampled_from(list(CATALOGUE)))
def test_any_body_is_either_a_request_or_refused_with_errors_that_json_can_carry(
    body: dict[str, Any], model: str
) -> None:
    body["model"] = model
    errors = refused(body)
    for error in errors.values():
        carried(error)
    if not errors:
        request = parse_request(body, CATALOGUE)
        assert RenderRequest.model_validate(json.loads(request.model_dump_json())) == request


def carried(error: FieldError) -> None:
    text = json.dumps([error.field, error.message, error.value, error.limit, error.nearest], allow_nan=False)
    text.encode()
    error.message.encode()
    error.field.encode()
    assert len(text) < 3000
