"""Texts with names in braces: `a {colour} mug`, filled from a row of a table.

`string.Formatter` reads the braces, so that `{{` and `}}` mean what they mean in Python. Nothing else of
Python's formatting is known: a name is looked up and nothing is reached through it, neither attribute nor
index, conversion, format or position. What is filled in is never read as a template again.

Headers of tables have dots and colons in them (`Art.-Nr.`). So a name may be anything that is exactly the
name of a column; it is then looked up as a whole, like any other.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter

from policy.errors import PolicyError
from policy.wording import quote, show

LONGEST_NAME = 100  # characters
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|(?P<alone>[{}])")
_REACHING = re.compile(r"[.\[\]]")


class InvalidTemplate(PolicyError):
    """A text cannot be read as a template, or a name in it has no value; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text that was read once and can be filled many times: pairs of literal text and the name after it."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def names(self) -> frozenset[str]:
        """The names in the text, each once."""
        return frozenset(name for _, name in self.pieces if name is not None)

    def length(self, values: Mapping[str, str]) -> int:
        """How many characters `fill` would return; so that a text grown too long is never built."""
        return sum(
            len(text) + (0 if name is None else len(_look_up(name, values))) for text, name in self.pieces
        )

    def fill(self, values: Mapping[str, str]) -> str:
        """Returns the text with each name's value in its place.

        Raises:
            InvalidTemplate: A name has no value.
        """
        return "".join(text if name is None else text + _look_up(name, values) for text, name in self.pieces)


def read_template(text: str, columns: Collection[str] = ()) -> Template:
    """Reads the braces of `text`; `columns` are names that may stand in them whatever marks they have.

    Raises:
        InvalidTemplate: A brace stands alone, or something other than a plain name stands in braces.
    """
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        raise InvalidTemplate(_lone_brace(text)) from None
    return Template(
        tuple(
            (literal, _name_in(name, form, conversion, columns)) for literal, name, form, conversion in parsed
        )
    )


def names_in(text: str) -> frozenset[str]:
    """Returns the names in `text`, or raises InvalidTemplate."""
    return read_template(text).names


def fill(text: str, values: Mapping[str, str]) -> str:
    """Returns `text` with each name's value in its place, or raises InvalidTemplate."""
    return read_template(text).fill(values)


def _look_up(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise InvalidTemplate(f"{{{name}}} has no value")
    return values[name]


def _name_in(
    name: str | None, form: str | None, conversion: str | None, columns: Collection[str]
) -> str | None:
    """Returns what stands in braces if it is a column, or a name and nothing more; None without braces."""
    if name is None:
        return None
    whole = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
    return whole if whole in columns and _may_be_named(whole) else _plain(name, form, conversion, whole)


def _plain(name: str, form: str | None, conversion: str | None, whole: str) -> str:
    written = "{" + whole + "}"
    if not name or name.isdigit():
        raise InvalidTemplate(
            f"{show(written)} has no name; write {{name}}, or {{{{ and }}}} for plain braces"
        )
    if form or conversion or _REACHING.search(name):
        allowed = "only a plain {name} or the exact name of a column can be filled in"
        raise InvalidTemplate(f"{show(written)} is more than a name; {allowed}")
    if not is_name(name):
        raise InvalidTemplate(f"{show(written)} is not a name that a column can have")
    return name


def is_name(text: str) -> bool:
    """Whether any template may name it: a short, visible text without the marks of templates."""
    return _may_be_named(text) and not re.search(r"[\[\].!:]", text)


def _may_be_named(text: str) -> bool:
    """Whether a template may name it when it is a column."""
    return (
        0 < len(text) <= LONGEST_NAME
        and text == text.strip()
        and text.isprintable()
        and not text.isdigit()
        and not re.search(r"[{}]", text)
    )


def _lone_brace(text: str) -> str:
    found = next((match for match in _BRACES.finditer(text) if match["alone"]), None)
    if found is None:
        return f"the braces of {quote(text)} cannot be read"
    brace, place = found["alone"], found.start()
    excerpt = quote(text[max(0, place - 10) : place + 20])
    state = "is never closed" if brace == "{" else "closes nothing"
    hint = f'a plain brace is written "{brace}{brace}"'
    return f'"{brace}" at character {place + 1} {state} (in {excerpt}); {hint}'
