"""Values of options, as flags, environment and files spell them."""

import math

import pytest

from policy.options import OPTIONS
from policy.platforms import CUDA_GRAPH_MODES
from policy.values import BadValueError, read_value, text_of


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_default_can_be_written_and_read_back(option: object) -> None:
    option = OPTIONS[option.name]  # type: ignore[attr-defined]
    if option.default is not None:
        assert read_value(option, option.default) == option.default
        assert read_value(option, text_of(option.default)) == option.default


@pytest.mark.parametrize(
    ("raw", "value"), [("true", True), ("TRUE", True), (" on ", True), ("1", True), (True, True)]
)
def test_a_switch_is_on(raw: object, value: bool) -> None:
    assert read_value(OPTIONS["compile"], raw) is value


@pytest.mark.parametrize("raw", ["false", "No", "off", "0", False])
def test_a_switch_is_off(raw: object) -> None:
    assert read_value(OPTIONS["compile"], raw) is False


@pytest.mark.parametrize("raw", ["", "maybe", "2", 1, 0, None, 1.0, []])
def test_what_is_no_switch_is_refused(raw: object) -> None:
    with pytest.raises(BadValueError, match="true or false"):
        read_value(OPTIONS["compile"], raw)


@pytest.mark.parametrize("raw", ["", "x", "1.5", "0x1", 1.0, True, None, "1" * 30, "١", "1 2"])
def test_what_is_no_integer_is_refused(raw: object) -> None:
    with pytest.raises(BadValueError, match="be an integer"):
        read_value(OPTIONS["cache_fn"], raw)


@pytest.mark.parametrize("raw", ["", "x", "nan", "inf", math.nan, True, None, 10**400])
def test_what_is_no_number_is_refused(raw: object) -> None:
    with pytest.raises(BadValueError, match="be a number"):
        read_value(OPTIONS["cache_threshold"], raw)


def test_numbers_keep_to_their_limits() -> None:
    assert read_value(OPTIONS["cache_fn"], " 8 ") == 8
    assert read_value(OPTIONS["cache_threshold"], "0.2") == 0.2
    assert read_value(OPTIONS["cache_threshold"], 1) == 1.0
    with pytest.raises(BadValueError, match="at least 1") as low:
        read_value(OPTIONS["cache_fn"], "0")
    assert low.value.nearest == 1
    with pytest.raises(BadValueError, match="at most 64"):
        read_value(OPTIONS["cache_fn"], 65)
    with pytest.raises(BadValueError, match="0, 1 or 2") as order:
        read_value(OPTIONS["cache_taylorseer"], 7)
    assert order.value.nearest == 2
    with pytest.raises(BadValueError, match=r"at least 0\.001"):
        read_value(OPTIONS["cache_threshold"], 0)


def test_a_word_is_read_in_any_case_and_a_near_miss_is_named() -> None:
    assert read_value(OPTIONS["performance_mode"], " SPEED ") == "speed"
    with pytest.raises(BadValueError, match="manual, auto, speed or memory") as miss:
        read_value(OPTIONS["performance_mode"], "sped")
    assert miss.value.nearest == "speed"
    for raw in (None, 3, True, ""):
        with pytest.raises(BadValueError):
            read_value(OPTIONS["performance_mode"], raw)


def test_a_choice_of_auto_true_and_false_gives_booleans() -> None:
    for name in ("compile_dynamic", "vae_tiling"):
        assert read_value(OPTIONS[name], "auto") == "auto"
        assert read_value(OPTIONS[name], "True") is True
        assert read_value(OPTIONS[name], False) is False


def test_a_list_is_split_trimmed_and_freed_of_repeats() -> None:
    assert read_value(OPTIONS["keep_resident"], " vae, transformer ,,vae") == ("vae", "transformer")
    assert read_value(OPTIONS["keep_resident"], ["vae"]) == ("vae",)
    assert read_value(OPTIONS["keep_resident"], "") == ()
    for raw in (3, [3], None, {"vae": 1}):
        with pytest.raises(BadValueError, match="comma-separated list"):
            read_value(OPTIONS["keep_resident"], raw)


def test_a_mask_is_read_or_answered_with_its_syntax() -> None:
    assert read_value(OPTIONS["cache_scm"], " 4:1:1 ") == "4:1:1"
    assert read_value(OPTIONS["secondary_cache_scm"], "11011") == "11011"
    for raw in ("balanced?", "4:1", 4, None):
        with pytest.raises(BadValueError):
            read_value(OPTIONS["cache_scm"], raw)


def test_names_of_flags_and_variables_follow_from_the_options_name() -> None:
    option = OPTIONS["cache_max_consecutive"]
    assert (option.flag, option.negative_flag, option.env) == (
        "--cache-max-consecutive",
        None,
        "RENDERQ_CACHE_MAX_CONSECUTIVE",
    )
    assert OPTIONS["compile"].negative_flag == "--no-compile"


def test_every_option_says_what_it_does() -> None:
    assert all(option.help.endswith(".") for option in OPTIONS.values())
    assert set(CUDA_GRAPH_MODES) <= set(OPTIONS["compile_mode"].allowed or ())
