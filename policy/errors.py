"""What the policy layer raises.

An error carries every problem found, not the first one, and each problem says in words which field is
wrong, which value it had, what the limit is and which valid value is nearest. Values in a `FieldError` are
short and can be written as JSON, whatever the caller sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One problem with one field.

    Attributes:
        field: The field's name as the caller wrote it (`metadata.key` for one entry of a mapping).
        message: A sentence that already names field, value, limit and nearest.
        value: The value, shortened, safe to write as JSON.
        limit: What the value breaks: a number, a list of allowed values, or None.
        nearest: The closest valid value or values, or None.
        row: In a table of orders: the row, counted from 1; the message then begins with it. None elsewhere.
    """

    field: str
    message: str
    value: object = None
    limit: object = None
    nearest: object = None
    row: int | None = None


class PolicyError(Exception):
    """Base of everything this package raises on purpose."""


class _FieldErrors(PolicyError):
    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(error.message for error in self.errors))

    def __reduce__(self) -> tuple[type["_FieldErrors"], tuple[tuple[FieldError, ...]]]:
        return type(self), (self.errors,)


class InvalidRequest(_FieldErrors):
    """A caller's request breaks its model's rules; `errors` holds every problem."""


class UnknownModel(InvalidRequest):
    """The request names a model that is not offered; the message lists those that are."""


class InvalidOptions(_FieldErrors):
    """Options of a worker: unknown names, bad values and conflicts, all together."""


class InvalidCatalogue(PolicyError):
    """A model's file cannot be used; the message names the file and each problem in it."""
