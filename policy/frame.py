"""The template of a batch, read once: what its fields are, what is wrong with it, how a row fills it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.catalogue import Catalogue
from policy.errors import FieldError, InvalidRequest
from policy.expansion import FIELDS, ROW, Row
from policy.request import RenderRequest, parse_request
from policy.request_shape import RANGE, check_shape, flaw_in
from policy.template import InvalidTemplate, Template, read_template
from policy.wording import quote, show

LONGEST_FILLED = 100_000  # characters; far above every model's limit, far below what fills the memory
STAND_IN = "?"
"""Takes the place of a text that is told to be wrong already, so that the rest of its row is seen too."""

Place = tuple[str, str | None]  # a field of the request, and the key in it for metadata
_TEXTS = ("prompt", "negative_prompt")


@dataclass(frozen=True, slots=True)
class Frame:
    """A template ready to be filled.

    Attributes:
        fields: The template's fields as far as their types are right; texts without names are final.
        texts: The texts with names, by their place.
        broken: Fields whose type or text is wrong whatever a row says.
        errors: What is wrong with the template alone, whatever the rows say.
        conflicts: (field, message) of what the model's limits say about the template; a row may cure it.
        absent: Names in texts for which no row has a value.
        unread: Whether a text could not be read.
    """

    fields: Mapping[str, Any]
    texts: Mapping[Place, Template]
    broken: frozenset[str] = frozenset()
    errors: tuple[FieldError, ...] = ()
    conflicts: frozenset[tuple[str, str]] = frozenset()
    absent: frozenset[str] = frozenset()
    unread: bool = False
    filled: frozenset[str] = field(init=False)
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Notes which fields have names in their texts, and which names those are."""
        object.__setattr__(self, "filled", frozenset(name for name, _ in self.texts))
        object.__setattr__(self, "names", frozenset().union(*(text.names for text in self.texts.values())))

    def used_in(self, name: str) -> str:
        """Says where `name` stands, for a message."""
        places = (place for place, text in self.texts.items() if name in text.names)
        return _written(next(places))

    def fill(self, row: Row) -> tuple[dict[str, Any], list[FieldError]]:
        """Returns the request of one row, and what is wrong with the values that its texts need."""
        given = row.fields
        body = {**self.fields, **{name: value for name, value in given.items() if name in FIELDS}}
        errors: list[FieldError] = []
        values: dict[str, str] = {ROW: str(row.number)}
        for place, text in self.texts.items():
            if place[0] not in given and place[0] in self.fields:
                errors += self._look_up(text, given, values)
                _put(body, place, _fill_one(place, text, values, errors))
        return body, errors

    def _look_up(self, text: Template, given: Mapping[str, Any], values: dict[str, str]) -> list[FieldError]:
        """Adds to `values` what `text` needs, a stand-in where the row has nothing that can be used."""
        errors: list[FieldError] = []
        for name in text.names.difference(values):
            flaw = None if name in self.absent else self._flaw_of(name, given)
            errors += [flaw] if flaw else []
            values[name] = STAND_IN if flaw or name in self.absent else _as_text(given[name])
        return errors

    def _flaw_of(self, name: str, given: Mapping[str, Any]) -> FieldError | None:
        if name in given:
            return _flaw_of_value(name, given[name])
        place = f"template.{self.used_in(name)}"
        return FieldError(name, f"{quote(name)} is missing, and {place} names it", None, "required")


def read_frame(template: Mapping[str, Any], catalogue: Catalogue, known: frozenset[str]) -> Frame:
    """Reads the template and finds what is wrong with it before any row is looked at.

    Args:
        template: Fields of a request.
        catalogue: The models that are offered.
        known: The names for which at least one row has a value.
    """
    texts: dict[Place, Template] = {}
    errors: list[FieldError] = []
    reader = _Reader(known, texts, errors)
    fields = {name: reader.read_field(name, value) for name, value in template.items()}
    unread = bool(errors)
    broken: set[str] = set()
    for kind, error in check_shape(fields, RenderRequest):
        if kind not in RANGE and kind != "missing":
            broken.add(error.field.partition(".")[0])
            errors.append(in_template(error))
    sound = {name: value for name, value in fields.items() if name in FIELDS and name not in broken}
    conflicts = frozenset(_conflicts(sound, catalogue))
    names = frozenset().union(*(text.names for text in texts.values()))
    return Frame(sound, texts, frozenset(broken), tuple(errors), conflicts, names - known - {ROW}, unread)


def in_template(error: FieldError) -> FieldError:
    """The same problem, told of the template."""
    told = error.message.startswith(error.field)
    message = f"template.{error.message}" if told else f"template: {error.message}"
    return FieldError(f"template.{error.field}", message, error.value, error.limit, error.nearest)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the fields of one template; `texts` and `errors` gather what it finds."""

    columns: frozenset[str]
    texts: dict[Place, Template]
    errors: list[FieldError]

    def read_field(self, name: str, value: object) -> object:
        """Returns the field with its plain texts final, and a stand-in for each that a row must fill."""
        if name in _TEXTS and isinstance(value, str):
            return self._read_text((name, None), value)
        if name == "metadata" and isinstance(value, Mapping):
            return {
                key: self._read_text((name, key), text) if isinstance(text, str) else text
                for key, text in value.items()
            }
        return value

    def _read_text(self, place: Place, text: str) -> str:
        try:
            read = read_template(text, self.columns)
        except InvalidTemplate as flaw:
            field = f"template.{_written(place)}"
            self.errors.append(FieldError(field, f"{field}: {flaw}", show(text), "plain {names} in braces"))
            return text
        if not read.names:
            return read.fill({})
        self.texts[place] = read
        return STAND_IN


def _conflicts(fields: Mapping[str, Any], catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    try:
        parse_request(fields, catalogue)
    except InvalidRequest as refusal:
        for error in refusal.errors:
            if error.field.partition(".")[0] in fields:
                yield error.field, error.message


def _flaw_of_value(name: str, value: object) -> FieldError | None:
    flaw = flaw_in(value)
    if flaw:
        return FieldError(name, f"{name} must not contain {flaw}", show(value), "Unicode text")
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value.bit_length() <= 128):
        return None
    wanted = "a text or a number"
    return FieldError(
        name, f"{name} must be {wanted} to stand in a text, not {quote(value)}", show(value), wanted
    )


def _as_text(value: str | float | bool) -> str:
    """A value as JSON writes it, a text without its quotation marks."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fill_one(place: Place, text: Template, values: Mapping[str, str], errors: list[FieldError]) -> str:
    length = text.length(values)
    if length <= LONGEST_FILLED:
        return text.fill(values)
    field = _written(place)
    message = f"{field} must have at most {LONGEST_FILLED} characters when filled, not {length}"
    errors.append(FieldError(field, message, length, LONGEST_FILLED, LONGEST_FILLED))
    return STAND_IN


def _put(body: dict[str, Any], place: Place, text: str) -> None:
    name, key = place
    body[name] = text if key is None else {**body[name], key: text}


def _written(place: Place) -> str:
    name, key = place
    return name if key is None else f"{name}.{show(key)}"
