"""Writes fitted step masks into the file beside the model's own."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policy.curve import Curve, Fit
    from policy.model_spec import ModelSpec


def curve_of(spec: "ModelSpec", found: Mapping[str, Any], command: str, date: dt.date) -> "Curve":
    """What was fitted now."""
    from policy.curve import Curve

    facts = {name: found[name] for name in ("device", "prompts", "check_prompts", "seed", "versions")}
    new = [
        {"steps": steps, "date": date, "command": command, **facts, "masks": list(masks)}
        for steps, masks in groupby(found["masks"], key=lambda mask: len(mask["mask"]))
    ]
    return Curve.model_validate({"model": spec.id, "revision": spec.revision, "fits": new})


def write_curve(curve: "Curve", folder: Path) -> Path:
    """Add the masks to the file of that folder, each in the place of one of its step count; return its path.

    Masks of the model in other folders stay there, and are read together with these.
    """
    from policy.curve import FOLDER, read_curve

    path = folder / FOLDER / f"{curve.model}.toml"
    path.parent.mkdir(exist_ok=True)
    kept = read_curve(path).with_fits(curve.fits) if path.exists() else curve
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(_lines(kept)) + "\n", encoding="utf-8")
    read_curve(fresh)
    fresh.replace(path)
    return path


def _lines(curve: "Curve") -> Iterator[str]:
    yield "# Made by `renderq bench cache --fit --write`. Decibels: PSNR against the same pictures uncached."
    yield f"model = {_text(curve.model)}"
    if curve.revision is not None:
        yield f"revision = {_text(curve.revision)}"
    for fit in curve.fits:
        yield from _fit_lines(fit)


def _fit_lines(fit: "Fit") -> Iterator[str]:
    versions = ", ".join(f"{_text(name)} = {_text(version)}" for name, version in fit.versions.items())
    yield from ("", "[[fits]]", f"steps = {fit.steps}", f"date = {fit.date.isoformat()}")
    yield from (f"command = {_text(fit.command)}", f"device = {_text(fit.device)}")
    yield from (f"prompts = {fit.prompts}", f"check_prompts = {fit.check_prompts}", f"seed = {fit.seed}")
    yield f"versions = {{ {versions} }}"
    for mask in fit.masks:
        yield from ("", f"[[fits.masks]] # reuses {mask.reused} of {fit.steps}")
        yield from (f"{name} = {json.dumps(value)}" for name, value in mask.model_dump().items())


def _text(value: str) -> str:
    """A basic string of TOML, which JSON's is, but for characters that no name or version has."""
    return json.dumps(value, ensure_ascii=False)
