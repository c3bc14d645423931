"""`renderq policy explain`: every option of a worker, its value, where the value comes from, and why."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cli.flags import ACCEPT_UNKNOWN, Flags, with_policy_flags
from cli.policyhelp import PolicyCommand
from cli.table import print_wrapped
from cli.terminal import print_json, print_line, say, say_all
from policy.errors import PolicyError

if TYPE_CHECKING:
    from policy.catalogue import Catalogue
    from policy.model_spec import ModelSpec
    from policy.modes import Hardware
    from policy.resolve import Policy

VALUE = 24
"""Cells of the values on a terminal; only lists of sizes or components are longer."""

app = typer.Typer(help="How a worker would run.", no_args_is_help=True)


@app.command(cls=PolicyCommand, context_settings=ACCEPT_UNKNOWN)
@with_policy_flags
def explain(
    *,
    model: Annotated[str, typer.Argument(help="Id of a model of the catalogue.")],
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="GB", help="Answer for a card of this memory instead of what is in this machine."
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N", help="With --gpu: so many such cards. Default: 1.")
    ] = None,
    capability: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y", help="With --gpu: their compute capability. Default: 8.0 (bfloat16, no fp8)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    flags: Flags,
) -> None:
    """Show every option: value, source (flag, env, model, mode, default) and reason. Starts nothing."""
    from core.hardware import detect
    from policy.packages import installed
    from policy.stated import read_cards

    cards = read_cards({"gpu": gpu, "gpus": gpus, "capability": capability}, installed())
    hardware, catalogue = cards or detect(), load_catalogue()
    try:
        _spec, policy = resolve_policy(catalogue, model, flags, hardware)
    except PolicyError:
        tell_hardware(cards, say)
        raise
    if as_json:
        facts = {"stated": cards is not None, **asdict(hardware)}
        print_json({**policy.as_json(), "hardware": facts, "notes": catalogue.notes(model)})
        return
    tell_hardware(cards, print_line)
    show(policy)
    say_all(catalogue.notes(model))
    if hardware.device == "cpu" and sys.stdout.isatty():
        say("this is for a machine without a GPU; --gpu 24 answers for a card of 24 GB")


def show(policy: "Policy") -> None:
    """The options as a table."""
    from policy.explain import rows

    print_wrapped(("option", "value", "source", "reason"), rows(policy), narrow={"value": VALUE})


def tell_hardware(cards: "Hardware | None", tell: Callable[[str], None]) -> None:
    """Say what the answer is for, where that is not this machine."""
    from policy.stated import describe

    if cards is not None:
        tell(describe(cards))


def resolve_policy(
    catalogue: "Catalogue", model: str, flags: Flags, hardware: "Hardware | None" = None
) -> tuple["ModelSpec", "Policy"]:
    """The spec and the policy that a worker would get, here by default; mistakes are reported together."""
    from core.hardware import detect
    from policy.resolve import resolve

    spec = catalogue.get_model(model)
    known = known_variables()
    policy = resolve(spec, flags=flags, env=os.environ, hardware=hardware or detect(), other_settings=known)
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
