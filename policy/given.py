"""Collects what flags, environment and model file set, with every unknown name and bad value.

"Set" means present, also when equal to the default. A flag whose value is None was not given, which is how a
command line parser says it, and neither was an empty environment variable.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from policy.errors import FieldError
from policy.options import ENV_PREFIX, OPTIONS, Option
from policy.values import BadValueError, read_value, text_of
from policy.wording import closest, quote, show

# How alike a variable is that counts as a slip and not as somebody else's setting.
_NEAR_MISS = 0.8


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set, and how they wrote it."""

    value: object
    source: Literal["flag", "env", "model"]
    wording: str


@dataclass(slots=True)
class Collected:
    """The strongest setting of each option, all problems, and the options whose value could not be read."""

    given: dict[str, Given] = field(default_factory=dict)
    errors: list[FieldError] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)


def collect(
    model: Mapping[str, object],
    env: Mapping[str, str],
    flags: Mapping[str, object],
    other_settings: Collection[str] = (),
) -> Collected:
    """Reads the three sources; `other_settings` are environment variables that are known and not options."""
    collected = Collected()
    _add_all(collected, "model", model, {name: f"{name} in the model's file" for name in OPTIONS})
    options = {option.env: option for option in OPTIONS.values()}
    present = {name: value for name, value in env.items() if name.startswith(ENV_PREFIX) and value}
    set_in_env = {options[name].name: value for name, value in present.items() if name in options}
    _add_all(collected, "env", set_in_env, {option.name: option.env for option in OPTIONS.values()})
    slips = _slips(set(present) - set(options) - set(other_settings))
    collected.errors.extend(slips)
    set_by_flag = {name: value for name, value in flags.items() if value is not None}
    _add_all(collected, "flag", set_by_flag, {option.name: option.flag for option in OPTIONS.values()})
    return collected


def _add_all(
    collected: Collected,
    source: Literal["flag", "env", "model"],
    settings: Mapping[str, object],
    labels: Mapping[str, str],
) -> None:
    for name, raw in settings.items():
        if name not in OPTIONS:
            collected.errors.append(_unknown(source, name, raw))
            continue
        try:
            value = read_value(OPTIONS[name], raw)
        except BadValueError as problem:
            collected.errors.append(bad_value(name, labels[name], raw, problem))
            collected.unreadable.add(name)
        else:
            wording = _wording(source, OPTIONS[name], value, raw)
            collected.given[name] = _over(collected.given.get(name), Given(value, source, wording))


def _over(weaker: Given | None, stronger: Given) -> Given:
    if weaker is None or weaker.source == "model":
        return stronger
    return Given(
        stronger.value, stronger.source, f"{stronger.wording}, which is stronger than {weaker.wording}"
    )


def _wording(source: str, option: Option, value: object, raw: object) -> str:
    if source == "env":
        return f"{option.env}={show(raw)}"
    if source == "model":
        return "the model's file"
    if option.negative_flag:
        return option.flag if value else option.negative_flag
    return f"{option.flag} {show(text_of(value))}"


def bad_value(name: str, label: str, raw: object, problem: BadValueError) -> FieldError:
    """Returns the error of a value that could not be read; `label` is what the user wrote it behind."""
    near = "" if problem.nearest is None else f"; nearest: {text_of(problem.nearest)}"
    message = f"{label} must {problem.words}, not {quote(raw)}{near}"
    return FieldError(name, message, show(raw), problem.limit, problem.nearest)


def _unknown(source: str, name: str, raw: object) -> FieldError:
    nearest = closest(name, OPTIONS)
    if source == "flag":
        label, hint = f"--{name.replace('_', '-')}", nearest and OPTIONS[nearest].flag
    else:
        label, hint = f"{name} in the model's file", nearest
    suggestion = f"; did you mean {hint}?" if hint else ""
    return FieldError(name, f"{show(label)} is not an option{suggestion}", show(raw), None, nearest)


def _slips(names: Collection[str]) -> Iterator[FieldError]:
    for name in sorted(names):
        nearest = closest(name.removeprefix(ENV_PREFIX).lower(), OPTIONS, _NEAR_MISS)
        if nearest:
            message = f"{name} is not an option; did you mean {OPTIONS[nearest].env}?"
            yield FieldError(name, message, None, None, OPTIONS[nearest].env)
