"""Names in a ZIP: filled from the row, safe everywhere, each only once."""

import pytest

from api.file_names import STEM_LIMIT_BYTES, BadName, FileNames, make_safe

ROW = {"row": 3, "index": 0, "id": "job-1", "seed": 7}


def give(names: FileNames, *, several: bool = False, media_type: str = "image/png", **values: object) -> str:
    return names.give({**ROW, **values}, several=several, media_type=media_type)


def test_without_a_template_a_file_is_called_by_its_row() -> None:
    assert give(FileNames()) == "3.png"


def test_the_files_of_one_row_are_told_apart_by_their_index() -> None:
    names = FileNames()
    assert [give(names, several=True, index=index) for index in range(3)] == ["3-0.png", "3-1.png", "3-2.png"]


def test_the_index_stands_where_the_template_puts_it() -> None:
    assert give(FileNames("{index}_{row}"), several=True) == "0_3.png"


def test_a_template_takes_what_the_row_said() -> None:
    names = FileNames("{row}-{sku}-{seed}-{id}")
    assert give(names, sku="A 4711") == "3-A 4711-7-job-1.png"
    assert names.own_names == {"sku"}


@pytest.mark.parametrize(
    ("value", "stem"), [(5, "5"), (True, "true"), (None, "row-3"), (["a", 1], '["a", 1]')]
)
def test_values_that_are_no_texts_are_written_as_json(value: object, stem: str) -> None:
    safe = stem.replace('"', "_")
    assert give(FileNames("{value}"), value=value) == f"{safe}.png"


@pytest.mark.parametrize(
    ("media_type", "ending"),
    [("image/jpeg", "jpg"), ("image/webp", "webp"), ("video/mp4", "mp4"), ("x/y", "bin")],
)
def test_the_ending_is_that_of_the_file_whatever_the_template_says(media_type: str, ending: str) -> None:
    assert give(FileNames("{row}.png"), media_type=media_type) == f"3.{ending}"


@pytest.mark.parametrize(
    ("value", "stem"),
    [
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "row-3"),
        (".hidden", "hidden"),
        ("...CON", "CON_"),
        ("a/b\\c", "a_b_c"),
        ("C:\\x", "C__x"),
        ("CON", "CON_"),
        ("nul.txt", "nul_.txt"),
        ("a\0b\nc\x7f", "a_b_c_"),
        ("gpj.\u202eexe", "gpj._exe"),
        ("\ufeffx\u200b", "_x_"),
        ("-rf", "_rf"),
        ("a. ", "a"),
        ("", "row-3"),
        (" ", "row-3"),
        ('a<b>c:"d|e?f*', "a_b_c__d_e_f_"),
        ("caf\u0065\u0301 日本 🏠", "café 日本 🏠"),
        ("{sku}", "{sku}"),
    ],
)
def test_a_name_is_safe_on_every_system(value: str, stem: str) -> None:
    assert give(FileNames("{value}"), value=value) == f"{stem}.png"


@pytest.mark.parametrize("letter", ["x", "é", "日", "🏠"])
def test_a_long_name_is_cut_between_letters(letter: str) -> None:
    name = give(FileNames("{value}"), value=letter * 1000)
    assert set(name.removesuffix(".png")) == {letter}
    assert STEM_LIMIT_BYTES - 4 < len(name.encode()) <= STEM_LIMIT_BYTES + 4


def test_names_that_differ_only_in_case_or_spelling_are_numbered() -> None:
    names = FileNames("{value}")
    values = ["Mug", "mug", "MUG", "cafe\u0301", "caf\u00e9", "mug-2", "Straße", "STRASSE"]
    given = [give(names, value=value) for value in values]
    assert given[:3] == ["Mug.png", "mug-2.png", "MUG-3.png"]
    assert given[3:5] == ["caf\u00e9.png", "caf\u00e9-2.png"]
    assert given[5:] == ["mug-2-2.png", "Straße.png", "STRASSE-2.png"]


def test_ten_thousand_equal_names_are_all_different() -> None:
    names = FileNames("same")
    assert len({give(names) for _ in range(10_000)}) == 10_000


def test_names_of_different_endings_are_numbered_too() -> None:
    names = FileNames("same")
    assert [give(names, media_type=media) for media in ("image/png", "video/mp4")] == [
        "same.png",
        "same-2.mp4",
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{0.__class__}",
        "{row.__class__}",
        "{row[0]}",
        "{row!r}",
        "{row:>9}",
        "{}",
        "{row",
        "row}",
        "{a/b}",
        "a/b",
        "a\\b",
        "x" * 201,
    ],
)
def test_a_template_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(BadName) as refused:
        FileNames(template)
    assert refused.value.error.field == "name"


def test_a_row_without_the_wanted_name_is_told_with_the_names_it_has() -> None:
    names = FileNames("{skuu}")
    with pytest.raises(BadName, match=r"row 5: it has no 'skuu'.*index, row, seed, sku") as refused:
        names.check(5, {"sku": "A"})
    assert refused.value.error.row == 5
    FileNames("{row}{sku}").check(5, {"sku": "A"})


def test_making_safe_twice_changes_nothing() -> None:
    for text in ("..a/b ", "CON", "-x-", "é" * 300):
        assert make_safe(make_safe(text)) == make_safe(text)
