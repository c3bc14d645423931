"""Texts with names in braces: what is filled, and what is refused with its place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.template import InvalidTemplate, fill, is_name, names_in, read_template

plain_names = st.text(st.sampled_from("aäß_-日 0"), min_size=1, max_size=6).filter(is_name)
plain_texts = st.text(max_size=8)


def test_names_are_filled_wherever_they_stand() -> None:
    text = "a {colour} mug, {colour} as {what you like}"
    assert names_in(text) == {"colour", "what you like"}
    assert fill(text, {"colour": "red", "what you like": "blood", "spare": "x"}) == "a red mug, red as blood"


def test_double_braces_are_plain_ones() -> None:
    assert names_in("{{colour}} }}{{") == frozenset()
    assert fill('{{"sku": "{sku}"}}', {"sku": "7"}) == '{"sku": "7"}'


def test_what_is_filled_in_is_never_read_as_a_template() -> None:
    assert fill("{a} {b}", {"a": "{b}", "b": "{{}} {a.__class__}"}) == "{b} {{}} {a.__class__}"


def test_a_text_without_names_stays_as_it_is() -> None:
    assert fill("", {}) == ""
    assert fill("a house", {"a": "x"}) == "a house"


@pytest.mark.parametrize(
    "column",
    [
        "Art.-Nr.",
        "Preis (EUR)",
        "a.b",
        "a[0]",
        "Size: cm",
        "a!r",
        "0.__class__",
        "x:>30",
        "a.__class__.__mro__",
    ],
)
def test_a_column_may_have_any_marks_in_its_name_and_nothing_is_reached_through_it(column: str) -> None:
    text = read_template(f"<{{{column}}}>", {column, "a", "x", "0"})
    assert text.names == {column}
    assert text.fill({column: "1", "a": "2", "x": "3", "0": "4"}) == "<1>"


@pytest.mark.parametrize(
    "text", ["{Art.-Nr}", "{a.b.c}", "{a.__class__}", "{0.__class__}", "{a.b!r}", "{a.b:>3}"]
)
def test_what_is_not_exactly_a_column_stays_refused(text: str) -> None:
    with pytest.raises(InvalidTemplate, match="is more than a name"):
        read_template(text, {"Art.-Nr.", "a.b", "a", "0"})


@pytest.mark.parametrize("column", ["", "0", " a ", "a:{b}", "a\nb", "x" * 101])
def test_a_column_that_is_no_name_at_all_cannot_be_named(column: str) -> None:
    with pytest.raises(InvalidTemplate):
        read_template(f"{{{column}}}", {column})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{0.__class__}", r"\{0\.__class__\} is more than a name"),
        ("{colour.__class__.__mro__}", "is more than a name"),
        ("{colour[0]}", "is more than a name"),
        ("{colour[}]}", "is more than a name"),
        ("{colour!r}", r"\{colour!r\} is more than a name"),
        ("{colour:>30}", r"\{colour:>30\} is more than a name"),
        ("{colour:{width}}", "is more than a name"),
        ("{}", "has no name"),
        ("{0}", "has no name"),
        ("{٣}", "has no name"),
        ("{ colour }", "not a name that a column can have"),
        ("{a\nb}", r"\{a\\nb\} is not a name"),
        ("{" + "x" * 101 + "}", "not a name that a column can have"),
        ("{colour!}", "cannot be read"),
    ],
)
def test_only_a_plain_name_may_stand_in_braces(text: str, words: str) -> None:
    with pytest.raises(InvalidTemplate, match=words):
        names_in(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a {colour mug", r'"\{" at character 3 is never closed \(in "a \{colour mug"\)'),
        ("{", '"{" at character 1 is never closed'),
        ("{{{", '"{" at character 3 is never closed'),
        ("{a{b}", '"{" at character 1 is never closed'),
        ("a colour} mug", '"}" at character 9 closes nothing'),
        ("{a}}", '"}" at character 4 closes nothing'),
    ],
)
def test_a_lone_brace_is_named_with_its_place_and_the_way_to_write_it(text: str, words: str) -> None:
    with pytest.raises(InvalidTemplate, match=words) as refusal:
        read_template(text)
    assert "a plain brace is written" in str(refusal.value)


def test_a_name_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidTemplate, match=r"\{colour\} has no value"):
        fill("a {colour} mug", {"color": "red"})


def test_the_length_is_known_before_the_text_is_built() -> None:
    text, values = read_template("{a}{{{a}-{b}"), {"a": "xyz", "b": ""}
    assert text.length(values) == len(text.fill(values)) == 8


@settings(deadline=None)
@given(st.lists(st.tuples(plain_texts, plain_names), max_size=4), plain_texts, st.data())
def test_filling_leaves_no_brace_of_the_template_over(
    pieces: list[tuple[str, str]], tail: str, data: st.DataObject
) -> None:
    """With values and texts free of braces the result has none but those that were written double."""
    values = {name: data.draw(st.text(st.characters(exclude_characters="{}"))) for _, name in pieces}
    escaped = [(text.replace("{", "{{").replace("}", "}}"), name) for text, name in pieces]
    template = "".join(f"{text}{{{name}}}" for text, name in escaped)
    expected = "".join(text + values[name] for text, name in pieces)
    filled = fill(template + tail.replace("{", "").replace("}", ""), values)
    assert filled == expected + tail.replace("{", "").replace("}", "")
    assert names_in(template) == set(values)
    assert filled.count("{") == sum(text.count("{") for text, _ in pieces)
    assert filled.count("}") == sum(text.count("}") for text, _ in pieces)


@settings(deadline=None)
@given(st.text(st.sampled_from("{}ab.[]!:0 "), max_size=12))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        names = names_in(text)
    except InvalidTemplate as refusal:
        assert str(refusal)  # noqa: PT017 - both outcomes are right
    else:
        assert all(is_name(name) for name in names)
        assert "\0" not in fill(text, dict.fromkeys(names, ""))
