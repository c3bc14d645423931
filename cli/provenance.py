"""`renderq inspect`: how a file was made, read from the file itself."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from cli.exits import CliError
from cli.terminal import print_json, print_line, print_pairs

Pair = tuple[str, str]
FIRST = ("prompt", "seed", "width", "height", "num_inference_steps")
"""Of the plan: what stands at the top."""
LABELS = {"acceleration": "ran"}


def inspect(
    file: Annotated[Path, typer.Argument(help="A picture or video that renderq made.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show how a file was made: request, model, versions, what ran, and every option. Needs no server."""
    from pipeline.encode import ProvenanceMissing, read_provenance

    try:
        provenance = read_provenance(file)
    except ProvenanceMissing as error:
        raise CliError(f"{file}: {error}") from error
    if as_json:
        print_json(provenance)
    else:
        for at, group in enumerate(filter(None, grouped(provenance))):
            if at:
                print_line("")
            print_pairs(group)


def grouped(provenance: Mapping[str, object]) -> Iterator[list[Pair]]:
    """Rows in groups: the picture, the rest of the order, the model, versions, what ran, then the policy.

    A file can say anything: what is not as we write it comes last under its own name.
    """
    rest = dict(provenance)
    plan, request, policy = (_taken(rest, name) for name in ("plan", "request", "policy"))
    shown = plan | ({"seed": rest.pop("seed")} if "seed" in rest else {})
    yield _picture(shown)
    repeated = {name for name, value in request.items() if name in plan and plan[name] == value}
    asked = {name: value for name, value in request.items() if name not in repeated}
    yield [*flatten(_without(shown, FIRST)), *flatten(asked, "request")]
    for name in ("model", "versions", "acceleration"):
        yield list(flatten(_taken(rest, name), LABELS.get(name, name)))
    yield [(name, _option(value)) for name, value in policy.items()]
    yield list(flatten(rest))


def _taken(rest: dict[str, object], name: str) -> dict[str, object]:
    value = rest.get(name)
    if not isinstance(value, dict):
        return {}
    del rest[name]
    return value


def _picture(plan: Mapping[str, object]) -> list[Pair]:
    size = f"{words(plan['width'])} x {words(plan['height'])}" if {"width", "height"} <= plan.keys() else None
    found = {
        "prompt": plan.get("prompt"),
        "seed": plan.get("seed"),
        "size": size,
        "steps": plan.get("num_inference_steps"),
    }
    return [(name, words(value)) for name, value in found.items() if value is not None]


def _without(values: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in names and value is not None}


def _option(value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"value", "source"}:
        return f"{words(value['value'])} ({words(value['source'])})"
    return words(value)


def words(value: object) -> str:
    """A JSON value as a person reads it: text as it is, true and false, a list with commas."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(words, value)) or "-"
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def flatten(value: object, name: str = "") -> Iterator[Pair]:
    """Nested mappings as rows of dotted names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, words(value)
