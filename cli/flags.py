"""The flags of a worker's policy, made from the table in `policy.options`.

Texts are passed on as given, so that the resolver reports every mistake at once, unknown flags included; a
command line parser would stop at the first. A flag that is not on the command line is not in the result:
explicit means present.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from cli.exits import CliError
from policy.options import OPTIONS, SECONDARY, Option
from policy.values import text_of

PANEL = "Policy (also RENDERQ_<NAME>; `renderq policy explain` shows what comes out)"
LONGEST_METAVAR = 50
"""Characters of a list of values that fit beside a flag in 80 columns; a longer one is told in the help."""
ACCEPT_UNKNOWN = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context settings that a command with policy flags needs."""

Flags = dict[str, object]


def with_policy_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add every policy option to ``command``, which gets those given as its keyword argument ``flags``."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *(_parameter(option) for option in OPTIONS.values()),
    ]

    @functools.wraps(command)
    def run(ctx: typer.Context, **values: Any) -> None:  # noqa: ANN401 - typer's values
        flags = {name: value for name in OPTIONS if (value := values.pop(name)) is not None}
        for value in values.values():
            refuse_flag(value)
        command(**values, flags=flags | read_unknown(ctx.args))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(option: Option) -> inspect.Parameter:
    if option.type is bool:
        declared = typer.Option(
            f"{option.flag}/{option.negative_flag}",
            help=_help(option),
            rich_help_panel=PANEL,
            show_default=False,
            hidden=option.name.startswith(SECONDARY),
        )
        annotation: Any = Annotated[bool | None, declared]
    else:
        declared = typer.Option(
            option.flag,
            metavar=_metavar(option),
            help=_help(option),
            rich_help_panel=PANEL,
            show_default=False,
            hidden=option.name.startswith(SECONDARY),
        )
        annotation = Annotated[str | None, declared]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(option: Option) -> str:
    if option.allowed:
        listed = _listed(option, "|")
        return listed if len(listed) <= LONGEST_METAVAR else "NAME"
    return {int: "N", float: "X", tuple: "A,B,..."}.get(option.type, "TEXT")


def _listed(option: Option, between: str) -> str:
    return between.join(text_of(value) for value in option.allowed or ())


def _help(option: Option) -> str:
    text = f"{option.help} One of {_listed(option, ', ')}." if _metavar(option) == "NAME" else option.help
    return text if option.default in (None, ()) else f"{text} Default: {text_of(option.default)}."


def refuse_flag(value: object) -> None:
    """The parser takes a flag that it does not know for the value of what it waits for."""
    if isinstance(value, str) and value.startswith("--"):
        raise CliError(f"unknown option {value}")


def read_unknown(arguments: Sequence[str]) -> Flags:
    """What the parser did not know, as flags for the resolver to name; raise `CliError` for a stray word."""
    flags: Flags = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise CliError(f"unexpected argument {word!r}")
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        flags[name.replace("-", "_")] = value
    return flags


def as_arguments(flags: Mapping[str, object]) -> list[str]:
    """The same flags as words of a command line."""
    return [_argument(OPTIONS[name], value) for name, value in flags.items()]


def _argument(option: Option, value: object) -> str:
    if option.negative_flag:
        return option.flag if value else option.negative_flag
    return f"{option.flag}={value}"
