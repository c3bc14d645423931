"""What the rules on combinations look at, and what they find."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from policy.errors import FieldError
from policy.model_spec import ModelSpec
from policy.modes import Hardware
from policy.values import text_of
from policy.wording import show


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rules look at: the values in effect, and which of them a flag or the environment set."""

    spec: ModelSpec
    hardware: Hardware
    values: Mapping[str, object]
    explicit: Collection[str]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A problem, and the options it is about."""

    names: frozenset[str]
    error: FieldError


def conflict(
    setting: Setting, message: str, *names: str, limit: object = None, nearest: object = None
) -> Conflict:
    """Returns the conflict that `message` tells of; the first of the names is the field of the error."""
    value = setting.values[names[0]]
    shown = show(value) if not isinstance(value, tuple) else text_of(value)
    return Conflict(frozenset(names), FieldError(names[0], message, shown, limit, nearest))
