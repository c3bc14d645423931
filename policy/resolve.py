"""Resolves the options of a worker: flag > environment > model config > performance mode > default.

A source counts when the option is present in it, also when the value equals the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["flag", "env", "model", "mode", "default"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """An option's value, where it came from, and one sentence why."""

    value: object
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The resolved options of one worker; `policy["compile"]` is the value in effect."""

    model: str
    options: Mapping[str, Resolved]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # the type is the option's own
        return self.options[name].value
