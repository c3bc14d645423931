"""What resolving gives: the options of one worker, each with its source and reason."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from policy.options import OPTIONS

Source = Literal["flag", "env", "model", "mode", "default"]
GIVEN: tuple[Source, ...] = ("flag", "env", "model")


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

    def is_given(self, name: str) -> bool:
        """Tells whether somebody set this option: flag, environment or model file."""
        return self.options[name].source in GIVEN

    def as_json(self) -> dict[str, Any]:
        """Returns `{"model": ..., "options": {NAME: {"value", "source", "reason"}}}`; lists for tuples."""
        options = {name: asdict(resolved) for name, resolved in self.options.items()}
        for option in options.values():
            if isinstance(option["value"], tuple):
                option["value"] = list(option["value"])
        return {"model": self.model, "options": options}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Policy":
        """Returns the policy that `as_json` wrote; one of another version, with other options, is refused."""
        if set(body["options"]) != set(OPTIONS):
            raise ValueError("this policy was written by another version: its options differ")
        return cls(body["model"], {name: _resolved(body["options"][name]) for name in OPTIONS})


def _resolved(item: Mapping[str, Any]) -> Resolved:
    if item["source"] not in get_args(Source):
        raise ValueError(f"{item['source']!r} is no source of an option")
    value = item["value"]
    return Resolved(tuple(value) if isinstance(value, list) else value, item["source"], item["reason"])
