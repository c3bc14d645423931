"""`renderq policy explain`: every option of a worker, its value, where the value comes from, and why."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cli.exits import CliError
from cli.flags import ACCEPT_UNKNOWN, Flags, with_policy_flags
from cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from policy.catalogue import Catalogue
    from policy.model_spec import ModelSpec
    from policy.resolve import Policy

app = typer.Typer(help="How a worker would run.", no_args_is_help=True)


@app.command(context_settings=ACCEPT_UNKNOWN)
@with_policy_flags
def explain(
    *,
    model: Annotated[str, typer.Argument(help="Id of a model of the catalogue.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    flags: Flags,
) -> None:
    """Show every option: value, source (flag, env, model, mode, default) and reason. Starts nothing."""
    _spec, policy = resolve_policy(model, flags)
    if as_json:
        print_json(policy.as_json())
        return
    rows = [
        (name, _shown(resolved.value), resolved.source, resolved.reason)
        for name, resolved in policy.options.items()
    ]
    print_table(("option", "value", "source", "reason"), rows)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def resolve_policy(model: str, flags: Flags) -> tuple["ModelSpec", "Policy"]:
    """The spec and the policy that a worker would get here; every mistake is reported together."""
    from core.hardware import detect
    from policy.resolve import resolve

    if model.startswith("-"):
        raise CliError(f"unknown option {model}; the model comes first")
    spec = load_catalogue().get_model(model)
    return spec, resolve(spec, flags=flags, env=os.environ, hardware=detect())


def load_catalogue() -> "Catalogue":
    """The models of this installation and of the operator's folder."""
    from core.settings import get_settings
    from policy.catalogue import Catalogue

    folder = get_settings().catalogue_dir
    return Catalogue.load(*([folder] if folder else []))
