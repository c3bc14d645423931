"""`renderq policy explain`: every option of a worker, its value, where the value comes from, and why."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from cli.flags import ACCEPT_UNKNOWN, Flags, with_policy_flags
from cli.policyhelp import PolicyCommand
from cli.table import print_wrapped
from cli.terminal import print_json

if TYPE_CHECKING:
    from policy.catalogue import Catalogue
    from policy.model_spec import ModelSpec
    from policy.resolve import Policy

VALUE = 24
"""Cells of the values on a terminal; only lists of sizes or components are longer."""

app = typer.Typer(help="How a worker would run.", no_args_is_help=True)


@app.command(cls=PolicyCommand, context_settings=ACCEPT_UNKNOWN)
@with_policy_flags
def explain(
    *,
    model: Annotated[str, typer.Argument(help="Id of a model of the catalogue.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    flags: Flags,
) -> None:
    """Show every option: value, source (flag, env, model, mode, default) and reason. Starts nothing."""
    from policy.explain import rows

    _spec, policy = resolve_policy(model, flags)
    if as_json:
        print_json(policy.as_json())
        return
    print_wrapped(("option", "value", "source", "reason"), rows(policy), narrow={"value": VALUE})


def resolve_policy(model: str, flags: Flags) -> tuple["ModelSpec", "Policy"]:
    """The spec and the policy that a worker would get here; every mistake is reported together."""
    from core.hardware import detect
    from policy.resolve import resolve

    spec = load_catalogue().get_model(model)
    policy = resolve(spec, flags=flags, env=os.environ, hardware=detect(), other_settings=known_variables())
    return spec, policy


def known_variables() -> set[str]:
    """Variables with our prefix that are no options: a name near one of these is no slip."""
    from core.settings import PREFIX, Settings

    return {PREFIX + name.upper() for name in Settings.model_fields} | {"RENDERQ_URL", "RENDERQ_DEBUG"}


def load_catalogue() -> "Catalogue":
    """The models of this installation and of the operator's folder."""
    from core.settings import get_settings
    from policy.catalogue import Catalogue

    folder = get_settings().catalogue_dir
    return Catalogue.load(*([folder] if folder else []))
