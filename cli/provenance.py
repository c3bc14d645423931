"""`renderq inspect`: how a file was made, read from the file itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cli.exits import CliError
from cli.terminal import print_json, print_pairs


def inspect(
    file: Annotated[Path, typer.Argument(help="A picture or video that renderq made.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show how a file was made: job, model, plan, seed, acceleration. Needs no server."""
    from pipeline.encode import ProvenanceMissing, read_provenance

    try:
        provenance = read_provenance(file)
    except ProvenanceMissing as error:
        raise CliError(f"{file}: {error}") from error
    if as_json:
        print_json(provenance)
    else:
        print_pairs(flatten(provenance))


def flatten(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Nested mappings as rows of dotted names."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
