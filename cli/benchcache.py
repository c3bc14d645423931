"""`renderq bench cache`: the step masks that were fitted to a checkpoint, and fitting them."""

import datetime as dt
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.exits import CliError, ExitCode
from cli.fitask import Asked
from cli.leash import run_held
from cli.maskfile import curve_of, write_curve
from cli.places import places
from cli.terminal import print_json, print_table, say, say_all

if TYPE_CHECKING:
    from policy.curve import Curve
    from policy.model_spec import ModelSpec

Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...",
        help="Step counts to fit, within the model's limits. Default: 20,28,50, as far as it takes them.",
    ),
]
Prompts = Annotated[
    Path | None, typer.Option(help="File with a prompt a line. Default: those that come with the model.")
]
FitPrompts = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="How many, from the first, to fit on; the others are for the check. Default: 32."
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(metavar="N", help="Of the first prompt's picture; the next ones count up. Default: 5000."),
]
Orders = Annotated[
    str | None,
    typer.Option(metavar="N,N", help="Orders of the Taylor predictor to try, 0 to 2. Default: 1,2."),
]
Beam = Annotated[
    str | None, typer.Option(metavar="N", help="Ways kept to each state of the search. Default: 1.")
]
HEADER = ("steps", "reused", "share", "order", "mean dB", "worst dB", "mask")


def bench_cache(
    model: Annotated[str, typer.Argument(help="Model.")] = "tiny",
    *,
    fit: Annotated[bool, typer.Option("--fit", help="Fit masks; takes minutes to hours.")] = False,
    steps: Steps = None,
    prompts: Prompts = None,
    fit_prompts: FitPrompts = None,
    seed: Seed = None,
    orders: Orders = None,
    beam: Beam = None,
    write: Annotated[
        bool, typer.Option("--write", help="Keep them: in RENDERQ_CATALOGUE_DIR, else in the package.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show how much each fitted step mask reuses and how far it leads from uncached pictures; or fit masks.

    Decibels are PSNR against the same picture uncached, on prompts that the masks were not fitted on.
    """
    from cli.explain import load_catalogue

    catalogue = load_catalogue()
    spec = catalogue.get_model(model)
    say_all(catalogue.notes(model))
    if write and not fit:
        raise CliError("--write keeps what --fit finds: give both")
    asked = Asked(steps, prompts, fit_prompts, seed, orders, beam)
    if not fit:
        asked.refuse_without_fit()
        show(spec.curve, model, as_json=as_json)
        return
    words = asked.words(spec)
    folder = choose_folder()
    if write:
        say(f"what is found will be kept in {check_folder(folder)}")
    else:
        say("what is found is shown and not kept: --write keeps it")
    found = run_fit(model, words)
    curve = keep(spec, found, words, folder if write else None)
    show(spec.curve.with_fits(curve.fits) if spec.curve else curve, model, as_json=as_json)


def keep(
    spec: "ModelSpec", found: Mapping[str, Any], words: Mapping[str, str], folder: Path | None
) -> "Curve":
    """The fits that were found, written into the folder if there is one, and told."""
    require_masks(found, words["--steps"])
    curve = curve_of(spec, found, command_of(spec.id, words), dt.datetime.now(dt.UTC).date())
    say("not kept: --write was not given" if folder is None else f"kept in {write_curve(curve, folder)}")
    return curve


def run_fit(model: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Fit in a process of its own, whose words about its progress are passed on."""
    words = [word for pair in asked.items() for word in pair]
    command = (sys.executable, "-P", "-m", "pipeline.fit", "--model", model, *words, *places(model))
    done = run_held([*command], stdout=subprocess.PIPE)
    if done.returncode:
        raise CliError(f"no masks could be fitted to {model}; the reason stands above", ExitCode.FAILED)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def require_masks(found: Mapping[str, Any], steps: str) -> None:
    """Raise `CliError` where the search came back without a mask for one of the step counts."""
    fitted = {len(mask["mask"]) for mask in found["masks"]}
    missing = [count for count in steps.split(",") if int(count) not in fitted]
    if missing:
        raise CliError(f"no mask was found for {', '.join(missing)} steps; try another beam", ExitCode.FAILED)


def command_of(model: str, asked: Mapping[str, str]) -> str:
    """What to type to repeat it."""
    return shlex.join(
        ["renderq", "bench", "cache", model, "--fit", *(w for pair in asked.items() for w in pair)]
    )


def choose_folder() -> Path:
    """The folder of the catalogue that takes what is found: the operator's if there is one, else ours."""
    from core.settings import get_settings
    from policy.catalogue import BUNDLED

    return get_settings().catalogue_dir or BUNDLED


def check_folder(folder: Path) -> Path:
    """Return where masks are kept in it; refuse before hours of fitting what could not be written then."""
    from policy.curve import FOLDER

    place = folder / FOLDER
    if not os.access(place if place.exists() else folder, os.W_OK | os.X_OK):
        raise CliError(
            f"no masks can be kept in {place}: it takes no files; name a folder of your own in "
            "RENDERQ_CATALOGUE_DIR",
            ExitCode.USAGE,
        )
    return place


def show(curve: "Curve | None", model: str, *, as_json: bool) -> None:
    """Print the curve."""
    if as_json:
        print_json(None if curve is None else curve.model_dump(mode="json"))
    elif curve is None:
        print(f"no masks were fitted to {model}; its presets are the evenly spaced rules")
    else:
        print_table(HEADER, rows(curve))


def rows(curve: "Curve") -> Sequence[tuple[str, ...]]:
    """One row per mask."""
    return [
        (
            *(str(fit.steps), str(mask.reused), f"{mask.reused / fit.steps:.0%}", str(mask.order)),
            *(f"{mask.check_mean_db:.1f}", f"{mask.check_worst_db:.1f}", mask.mask),
        )
        for fit in curve.fits
        for mask in fit.masks
    ]
