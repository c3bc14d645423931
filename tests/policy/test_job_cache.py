"""The field `cache` of a job: words and knobs, at the door, in the plan and in the decision."""

from typing import Any

import pytest

from policy.bulk import make_orders
from policy.cache import CacheConfig, CacheDecision, decide_cache
from policy.cells import typed_cells
from policy.errors import InvalidRequest
from policy.job_cache import CacheKnobs, read_text
from policy.mask import choose_mask, step_mask
from policy.model_spec import ModelSpec
from policy.options import OPTIONS
from policy.plan import RenderPlan
from tests.policy.parts import CATALOGUE, CPU, FLUX, TINY, WAN2, gpu, parsed, planned, refused, resolved


def decided(
    knobs: object, flags: dict[str, object] | None = None, spec: ModelSpec = TINY, **fields: Any
) -> CacheDecision:
    plan = planned(spec, **fields).model_copy(update={"cache": parsed(cache=knobs).cache})
    policy = resolved(spec, flags or {}, hardware=CPU if spec is TINY else gpu())
    return decide_cache(plan, spec, policy, (plan.num_inference_steps,))


def only(decision: CacheDecision) -> CacheConfig:
    assert decision.configs is not None
    (config,) = decision.configs
    return config


# At the door -----------------------------------------------------------------------------------------


def test_knobs_are_named_and_bounded_as_the_options_of_a_worker() -> None:
    properties = CacheKnobs.model_json_schema()["properties"]
    for name in CacheKnobs.model_fields:
        option, shown = OPTIONS[f"cache_{name}"], properties[name]["anyOf"][0]
        if option.type is int:
            least, *_, most = option.allowed or (option.minimum, option.maximum)
            assert (shown["minimum"], shown["maximum"]) == (least, most)
    assert {"threshold", "max_consecutive"}.isdisjoint(CacheKnobs.model_fields)


@pytest.mark.parametrize(
    ("cache", "field", "words", "limit", "nearest"),
    [
        ({"fnn": 2}, "cache.fnn", 'did you mean "cache.fn"?', list(CacheKnobs.model_fields), "fn"),
        ({"cache_scm": "4:1:1"}, "cache.cache_scm", 'did you mean "cache.scm"?', None, "scm"),
        ({"threshold": 0.2}, "cache.threshold", "not a knob that a job may set", None, None),
        ({"fn": 0}, "cache.fn", "at least 1, not 0; nearest: 1", 1, 1),
        ({"fn": 65}, "cache.fn", "at most 64", 64, 64),
        ({"bn": -1}, "cache.bn", "at least 0", 0, 0),
        ({"fn": "2"}, "cache.fn", "an integer", "an integer", None),
        ({"taylorseer": 3}, "cache.taylorseer", "at most 2", 2, 2),
        ({"preset": "fastt"}, "cache.preset", "quality, balanced or fast", None, "fast"),
        ({"preset": "adaptive"}, "cache.preset", "quality, balanced or fast", None, None),
        ({}, "cache", "names no knob", None, "default"),
        ({"scm": ""}, "cache.scm", "must not be empty", 1, None),
        ({"scm": "4;1;1"}, "cache.scm", "must be a step mask", None, None),
        ({"scm": "1101"}, "cache.scm", "has 4 digits, and the job runs 24 steps", 24, "4:2:1"),
        ({"scm": "40:1:1"}, "cache.scm", "reuses none of the 24", 24, None),
        ({"preset": "fast", "scm": "4:1:1"}, "cache.preset", "both say which steps", None, None),
        ({"scm": "4:1:1", "warmup_steps": 6}, "cache.warmup_steps", "both set the lead-in", None, None),
        ({"warmup_steps": 22}, "cache.warmup_steps", "leaves nothing to reuse of 24 steps", 21, 21),
        ({"preset": "fast", "warmup_steps": 23}, "cache.warmup_steps", "leaves nothing", 21, 21),
        (5, "cache", "or an object of knobs, not 5", None, None),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_knob_the_limit_and_the_nearest(
    cache: object, field: str, words: str, limit: object, nearest: object
) -> None:
    errors = refused(cache=cache)
    assert list(errors) == [field]
    assert words in errors[field].message
    assert errors[field].nearest == nearest
    if limit is not None:
        assert errors[field].limit == limit


def test_steps_that_are_too_few_are_refused_where_the_knob_is() -> None:
    errors = refused(cache={"preset": "fast", "taylorseer": 2}, num_inference_steps=5)
    assert list(errors) == ["cache.preset", "cache.taylorseer"]
    assert errors["cache.preset"].limit == TINY.cache_minimum_steps("fast")
    assert errors["cache.taylorseer"].nearest == 0
    assert not refused(cache={"scm": "1101"}, num_inference_steps=4)


def test_a_fitted_mask_is_refused_where_there_is_none_and_digits_where_two_share_the_steps() -> None:
    assert not refused(cache={"scm": "fit:40"})
    error = refused(model=FLUX.id, cache={"scm": "fit:40"})["cache.scm"]
    assert "none was fitted to flux.1-dev" in error.message
    assert error.nearest == "4:1:1"
    digits = "1" * 20 + "0" * 19 + "1"
    error = refused(model=WAN2.id, cache={"scm": digits}, num_inference_steps=40)["cache.scm"]
    assert (error.limit, error.nearest) == ("LEAD:COMPUTED:REUSED", "4:1:1")


def test_a_job_that_starts_from_a_picture_has_only_the_steps_that_are_run() -> None:
    quarter: dict[str, Any] = {"image": f"sha256:{'0' * 64}", "strength": 0.25}
    errors = refused(cache={"scm": "1" * 20 + "0001"}, **quarter)
    assert errors["cache.scm"].limit == 6
    assert not refused(cache={"scm": "110101"}, **quarter)
    assert (
        "not 6 of 24: give more strength"
        in refused(cache={"preset": "fast"}, **quarter)["cache.preset"].message
    )


@pytest.mark.parametrize(
    ("model", "cache", "limits"),
    [
        (FLUX.id, {"fn": 56}, {}),
        (FLUX.id, {"fn": 57}, {"cache.fn": 56}),
        (FLUX.id, {"fn": 50, "bn": 7}, {"cache.bn": 6}),
        (FLUX.id, {"bn": 56}, {"cache.bn": 55}),
        (TINY.id, {"fn": 11, "bn": 1}, {"cache.fn": 9, "cache.bn": 0}),
        (WAN2.id, {"fn": 41}, {"cache.fn": 39}),
    ],
)
def test_a_block_is_left_to_reuse(model: str, cache: dict[str, int], limits: dict[str, int]) -> None:
    errors = refused(model=model, cache=cache)
    assert {field: error.limit for field, error in errors.items()} == limits
    assert {field: error.nearest for field, error in errors.items()} == limits


def test_blocks_that_are_too_many_only_together_with_the_workers_are_told_on_the_job() -> None:
    assert decided({"fn": 8}, {"cache_bn": 1}).configs is not None
    decision = decided({"fn": 8}, {"cache_bn": 2})
    assert decision.configs is None
    assert "fn 8 and bn 2, the job's and the worker's, leave none of the 10 blocks" in decision.reason


def test_a_knob_that_is_given_twice_is_no_knob() -> None:
    assert read_text("fn=2, bn=1") == {"fn": 2, "bn": 1}
    assert read_text("fn=2, fn=3") == "fn=2, fn=3"
    assert "fn=2, fn=3" in refused(cache=read_text("fn=2, fn=3"))["cache"].message


def test_a_mask_of_ones_is_told_to_reuse_and_not_to_run_longer() -> None:
    assert "set a digit to 0" in refused(cache={"scm": "1" * 24})["cache.scm"].message


def test_every_problem_is_told_at_once() -> None:
    errors = refused(cache={"fn": 0, "bn": "x", "other": 1}, width=63)
    assert set(errors) == {"width", "cache.fn", "cache.bn", "cache.other"}


# In tables, templates and plans ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" fast ", "fast"),
        ("preset=fast,fn=2", {"preset": "fast", "fn": 2}),
        ("scm=4:1:2; taylorseer = 1", {"scm": "4:1:2", "taylorseer": 1}),
        ("scm=1101 fn=2", {"scm": "1101", "fn": 2}),
        ("fn=two", {"fn": "two"}),
        ("fn=", "fn="),
        ("=2", "=2"),
        ("fn=2 and more", "fn=2 and more"),
    ],
)
def test_a_cell_or_a_flag_says_knobs_as_pairs(text: str, value: object) -> None:
    assert read_text(text) == value
    assert typed_cells({"cache": text}) == {"cache": value}


def test_knobs_come_through_a_batch_from_cells_template_and_grid() -> None:
    template: dict[str, Any] = {"model": "tiny", "prompt": "a house", "cache": {"scm": "4:1:2"}}
    rows: list[dict[str, Any]] = [{"cache": "preset=quality,fn=2"}, {"cache": ""}]
    first, second = make_orders({"template": template, "rows": rows}, CATALOGUE, lambda: 1, text_cells=True)
    assert first.plan.cache == CacheKnobs(preset="quality", fn=2)
    assert second.plan.cache == CacheKnobs(scm="4:1:2")
    grid = {"cache": ["off", {"fn": 3}]}
    del template["cache"]
    orders = make_orders({"template": template, "grid": grid}, CATALOGUE, lambda: 1)
    assert [order.plan.cache for order in orders] == ["off", CacheKnobs(fn=3)]


def test_a_wrong_knob_in_a_row_is_told_of_that_row() -> None:
    body = {"template": {"model": "tiny", "prompt": "x"}, "rows": [{}, {"cache": {"fn": 0}}]}
    with pytest.raises(InvalidRequest) as refusal:
        make_orders(body, CATALOGUE, lambda: 1)
    assert [(error.row, error.field) for error in refusal.value.errors] == [(2, "cache.fn")]


def test_a_plan_keeps_the_knobs_that_were_given_and_no_others() -> None:
    plan = planned(TINY, cache={"scm": "4:1:2", "fn": 2})
    kept = plan.model_dump(mode="json")
    assert kept["cache"] == {"fn": 2, "scm": "4:1:2"}
    assert RenderPlan.model_validate(kept) == plan


# In the decision -------------------------------------------------------------------------------------


def test_an_own_mask_replaces_the_workers_and_the_rest_stays_the_workers() -> None:
    decision = decided({"scm": "6:1:3"}, {"cache_fn": 2, "cache_bn": 1, "cache_taylorseer": 2})
    config = only(decision)
    assert config.mask == step_mask("6:1:3", 24)
    assert (config.fn, config.bn, config.warmup_steps, config.taylorseer) == (2, 1, 6, 2)
    assert (decision.preset, "as the job asks" in decision.reason) == ("custom", True)


def test_knobs_alone_change_the_workers_cache_and_nothing_else() -> None:
    worker, asked = only(decided("default")), only(decided({"fn": 3, "taylorseer": 0}))
    assert (asked.mask, asked.fn, asked.taylorseer) == (worker.mask, 3, 0)
    assert decided({"fn": 3}).preset == "balanced"


def test_a_preset_with_knobs_is_that_preset_with_those_knobs() -> None:
    config = only(decided({"preset": "fast", "bn": 2}, {"cache_preset": "adaptive", "cache_fn": 2}))
    assert config.mask == only(decided("fast")).mask
    assert (config.fn, config.bn) == (2, 2)


def test_a_lead_in_of_the_job_moves_a_rule_and_cuts_a_fitted_mask() -> None:
    assert only(decided({"preset": "fast", "warmup_steps": 10}, spec=FLUX)).mask == step_mask("10:1:2", 28)
    config = only(decided({"preset": "fast", "warmup_steps": 10}))
    assert config.mask == choose_mask("fit:58", 24, TINY.curve, 10).mask
    assert config.mask[:10] == (1,) * 10
    assert config.warmup_steps == 10


def test_knobs_are_used_where_the_workers_cache_is_off_and_under_a_threshold() -> None:
    decision = decided({"scm": "4:1:2"}, {"cache": False})
    assert "outranks the worker's cache=false" in decision.reason
    assert only(decision).mask == step_mask("4:1:2", 24)
    adaptive = only(decided({"fn": 2}, {"cache_preset": "adaptive"}))
    assert (adaptive.mask, adaptive.threshold, adaptive.fn) == (None, 0.12, 2)
    assert only(decided({"scm": "4:1:2"}, {"cache_preset": "adaptive"})).taylorseer == 1


def test_any_knob_makes_another_key() -> None:
    asked: list[dict[str, Any]] = [
        {"fn": 2},
        {"bn": 1},
        {"taylorseer": 0},
        {"warmup_steps": 9},
        {"scm": "4:1:2"},
    ]
    keys = {only(decided("default")), *(only(decided(knobs)) for knobs in asked)}
    assert len(keys) == 6
    assert only(decided({"preset": "balanced"})) == only(decided("balanced")) == only(decided("default"))
