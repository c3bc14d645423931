"""Texts with names in braces: `a {colour} mug`, filled from a row of a table.

`string.Formatter` reads the braces, so that `{{` and `}}` mean what they mean in Python. Nothing else of
Python's formatting is known: a name is looked up and nothing is reached through it, neither attribute nor
index, conversion, format or position. What is filled in is never read as a template again.
"""

import re
from collections.abc import Mapping
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


def read_template(text: str) -> Template:
    """Reads the braces of `text`.

    Raises:
        InvalidTemplate: A brace stands alone, or something other than a plain name stands in braces.
    """
    try:
        parsed = list(Formatter().parse(text))
    except ValueError:
        raise InvalidTemplate(_lone_brace(text)) from None
    return Template(tuple((literal, _plain(*field)) for literal, *field in parsed))


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


def _plain(name: str | None, form: str | None, conversion: str | None) -> str | None:
    """Returns the name if it is one and nothing more."""
    if name is None:
        return None
    written = "{" + name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
    if not name or name.isdigit():
        raise InvalidTemplate(
            f"{show(written)} has no name; write {{name}}, or {{{{ and }}}} for plain braces"
        )
    if form or conversion or _REACHING.search(name):
        raise InvalidTemplate(f"{show(written)} is more than a name; only a plain {{name}} can be filled in")
    if not is_name(name):
        raise InvalidTemplate(f"{show(written)} is not a name that a column can have")
    return name


def is_name(text: str) -> bool:
    """Whether a column may be called so: a short, visible text without the marks of templates."""
    return (
        0 < len(text) <= LONGEST_NAME
        and text == text.strip()
        and text.isprintable()
        and not text.isdigit()
        and not re.search(r"[{}\[\].!:]", text)
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
