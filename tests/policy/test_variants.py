"""Which ways of running a model are measured beside each other."""

import pytest

from policy.errors import InvalidOptions
from policy.variants import PLAIN, parse_axes, plan_variants
from tests.policy.parts import FLUX, SCHNELL, with_policy

CACHED = with_policy(FLUX)


def names(text: str, spec: object = CACHED) -> list[str]:
    return [variant.name for variant in plan_variants(spec, parse_axes(text))]  # type: ignore[arg-type]


def test_the_whole_matrix_has_the_plain_way_first_and_none_twice() -> None:
    assert names("compile,cache,scope") == [
        *("eager/off", "eager/balanced", "regional/off", "regional/balanced"),
        *("whole/off", "whole/balanced"),
    ]


def test_what_is_no_axis_is_as_the_models_file_has_it_and_the_plain_way_is_always_there() -> None:
    assert names("cache") == ["eager/off", "eager/balanced"]
    assert names("compile") == ["eager/off", "eager/balanced", "regional/balanced"]
    own = with_policy(FLUX, compile=True, compile_scope="whole", cache_preset="fast")
    assert names("cache", own) == ["eager/off", "whole/off", "whole/fast"]
    assert names("compile,cache", SCHNELL) == ["eager/off", "regional/off"]


def test_each_way_sets_all_its_options() -> None:
    assert PLAIN.flags() == {"compile": False, "cache": False}
    compiled = plan_variants(CACHED, ["compile"])[-1]
    assert compiled.flags() == {
        "compile": True,
        "compile_scope": "regional",
        "cache": True,
        "cache_preset": "balanced",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "compil,cache",
            'matrix: "compil" is no axis; there are compile, cache and scope; did you mean compile?',
        ),
        ("", 'matrix: "" is no axis'),
        ("cache,scope", "scope has no effect without compile"),
    ],
)
def test_an_axis_that_is_none_is_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(InvalidOptions) as refusal:
        parse_axes(text)
    assert told in str(refusal.value)
