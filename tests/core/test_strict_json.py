"""JSON is read so that no two readers can see two different things in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.strict_json import VALUES_LIMIT, BadJson, has_too_many_values, parse_json, parse_object

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_what_is_json_is_read_as_it_is(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) == value


@pytest.mark.parametrize(
    ("raw", "words", "code"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice", "duplicate_key"),
        ('{"b": {"a": 1, "a": 2}}', "stands twice", "duplicate_key"),
        ("NaN", "NaN is not JSON", "malformed_json"),
        ("[-Infinity]", "-Infinity is not JSON", "malformed_json"),
        ("1e999", "the number 1e999 is too large", "malformed_json"),
        ("9" * 5000, "a number that cannot be read", "malformed_json"),
        ("", "the row is not JSON", "malformed_json"),
        ("{} {}", "at column 4", "malformed_json"),
        ("{\n} {}", "at line 2, column 3", "malformed_json"),
        (b"\xff", "the row is not UTF-8: byte 0", "malformed_json"),
        (b'"\xed\xa0\x80"', "not UTF-8", "malformed_json"),
        ("[" * 17 + "]" * 17, "nested deeper than 16", "malformed_json"),
        ("[" * 100_000, "nested deeper than 16", "malformed_json"),
        (json.dumps({str(number): 0 for number in range(101)}), "has 101 keys", "malformed_json"),
    ],
)
def test_liberties_of_pythons_reader_are_refused(raw: str | bytes, words: str, code: str) -> None:
    with pytest.raises(BadJson, match=words) as refusal:
        parse_json(raw, "the row")
    assert refusal.value.code == code


def test_objects_are_counted_when_asked() -> None:
    assert parse_json("[{}, {}]", objects_limit=2) == [{}, {}]
    with pytest.raises(BadJson, match="more than 1 objects"):
        parse_json("[{}, {}]", objects_limit=1)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"12345", b'""', b'"\\\\"', b'"\\""'])
def test_more_values_than_a_table_can_have_are_refused_before_one_is_built(value: bytes) -> None:
    with pytest.raises(BadJson, match=f"the body has more than {VALUES_LIMIT} values"):
        parse_object(b'{"rows":[' + (value + b",") * VALUES_LIMIT)  # the end is not looked for


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    texts = b'["' + b"[a], {b}, " * 300_000 + b'", "' + b'\\", ' * 300_000 + b'"]'
    assert not has_too_many_values([texts])
    assert [len(text) for text in parse_json(texts)] == [3_000_000, 900_000]  # type: ignore[attr-defined]


def test_values_of_several_texts_are_counted_together_and_a_torn_one_hides_no_other() -> None:
    lists = b"[" + b"[]," * (VALUES_LIMIT // 3)
    assert not has_too_many_values([lists])
    assert has_too_many_values([b'"', lists, lists])


@pytest.mark.parametrize(
    ("raw", "kind"),
    [("[]", "a list"), ("1", "a number"), ('"a"', "a text"), ("null", "null"), ("true", "true or")],
)
def test_an_object_is_asked_for_by_name(raw: str, kind: str) -> None:
    with pytest.raises(BadJson, match=f"the body must be one JSON object, not {kind}"):
        parse_object(raw)
    assert parse_object(bytearray(b'{"a": 1}')) == {"a": 1}
