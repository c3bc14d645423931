"""The contact sheet as a picture: places, labels, letters, and its bounds."""

import io

import pytest
from PIL import Image, ImageFont

from api.sheet import (
    FONT_SIZE,
    LARGEST_TILE,
    WIDEST,
    draw_sheet,
    fit,
    make_drawable,
)
from api.tiles import MOST_COLUMNS, ROWS_PER_PAGE, Tile
from core.errors import StoreUnavailable

RED = (200, 0, 0)


def picture(kind: str = "PNG", size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, RED).convert(mode).save(written, kind)
    return written.getvalue()


def drawn(tiles: list[Tile], columns: int) -> Image.Image:
    sheet = Image.open(io.BytesIO(draw_sheet(tiles, columns)))
    assert sheet.format == "PNG"
    return sheet


def colours(image: Image.Image) -> set[tuple[int, int, int]]:
    found = image.getcolors(1 << 24)
    assert found is not None
    return {colour for _, colour in found}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_stands_in_its_place(kind: str) -> None:
    data = picture(kind)
    sheet = drawn([Tile("1", "", "queued"), Tile("2", "", "completed", lambda: data)], 2)
    middle = sheet.height // 2 - 20
    left, right = (sheet.getpixel((x, middle)) for x in (sheet.width // 4, sheet.width * 3 // 4))
    assert isinstance(right, tuple)
    assert max(abs(a - b) for a, b in zip(right, RED, strict=True)) < 8
    assert left != right


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16", "CMYK"])
def test_a_picture_of_any_kind_is_taken(mode: str) -> None:
    kind = "TIFF" if mode == "CMYK" else "PNG"
    data = picture(kind, mode=mode) if mode != "I;16" else _grey16()
    assert drawn([Tile("1", "", "completed", lambda: data)], 1).mode == "RGB"


def _grey16() -> bytes:
    written = io.BytesIO()
    Image.new("I;16", (8, 8), 1000).save(written, "PNG")
    return written.getvalue()


def test_a_sheet_is_no_wider_than_its_tiles() -> None:
    assert drawn([Tile("1", "", "queued")] * 2, 8).width < drawn([Tile("1", "", "queued")] * 8, 8).width // 3


@pytest.mark.parametrize("size", [(1000, 500), (20, 10)])
def test_a_picture_fills_its_place_and_keeps_its_form(size: tuple[int, int]) -> None:
    data = picture(size=size)
    sheet = drawn([Tile("1", "", "completed", lambda: data)], 1)
    assert sheet.width < 2 * LARGEST_TILE
    row = [sheet.getpixel((sheet.width // 2, y)) for y in range(sheet.height)]
    assert LARGEST_TILE // 2 - 2 <= row.count(RED) <= LARGEST_TILE // 2 + 2


@pytest.mark.parametrize("state", ["queued", "in_progress", "failed", "canceled", "expired", "completed"])
def test_a_row_without_a_picture_has_a_tile_that_says_why(state: str) -> None:
    with_words = colours(drawn([Tile("1", "words", state, note="no room")], 1))
    assert len(with_words) > 3, "paper, tile, and letters"


@pytest.mark.parametrize(
    "data", [b"", b"no picture", picture()[:70], b"\xff\xd8\xff\xe0" + b"0" * 50, b"GIF89a"]
)
def test_a_file_that_is_no_picture_becomes_a_tile(data: bytes) -> None:
    assert RED not in colours(drawn([Tile("1", "", "completed", lambda: data)], 1))


def test_a_store_that_fails_is_not_drawn_over() -> None:
    def read() -> bytes:
        raise StoreUnavailable

    with pytest.raises(StoreUnavailable):
        draw_sheet([Tile("1", "", "completed", read)], 1)


@pytest.mark.parametrize("columns", [1, 8, 20])
def test_a_full_sheet_is_bounded_whatever_its_columns(columns: int) -> None:
    sheet = drawn([Tile(str(number), "words", "queued") for number in range(ROWS_PER_PAGE)], columns)
    assert sheet.width <= WIDEST + 10
    assert sheet.width * sheet.height < 11_000_000
    assert columns <= MOST_COLUMNS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café Übergröße", "cafe Ubergrosse"),
        ("日本 house 🏠", "?? house ?"),
        ("a\nb\tc\0d", "a b c d"),
        ("\u202ea", "a"),
        ("½ ﬁ", "1?2 fi"),
        ("", ""),
    ],
)
def test_letters_that_the_font_lacks_do_no_harm(text: str, shown: str) -> None:
    assert make_drawable(text) == shown
    draw_sheet([Tile(text, text, "failed", note=text)], 20)


def test_the_font_has_every_letter_that_is_drawn() -> None:
    font = ImageFont.load_default(FONT_SIZE)
    missing = bytes(font.getmask("\uffff"))
    assert [chr(code) for code in range(33, 127) if bytes(font.getmask(chr(code))) == missing] == []


def test_a_long_text_is_cut_to_the_width() -> None:
    font = ImageFont.load_default(FONT_SIZE)
    cut = fit("a white house with a red roof " * 9, 100, font)
    assert cut.endswith("...")
    assert 50 < font.getlength(cut) <= 100
    assert fit("short", 100, font) == "short"
    assert fit("wide", 1, font) == ""
