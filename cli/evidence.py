"""`renderq policy evidence`: what was measured, whether compiling won, and whether that still counts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.evidencefile import folders
from cli.exits import ExitCode
from cli.terminal import print_json, print_table, say_all

if TYPE_CHECKING:
    from policy.evidence import Comparison, Evidence
    from policy.model_spec import ModelSpec

COLUMNS = ("model", "opts in", "device", "date", "way", "first", "steady", "compiling", "counts")
NONE = (None,) * 6
UNCOMPARED: tuple[str | None, ...] = (None,) * 4
"""Cells of a row that has no compiled way beside its uncompiled counterpart."""


def show_evidence(
    model: Annotated[str | None, typer.Argument(help="Model; default: all.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show which models opt in to compile, what was measured, who won by how much, and whether it counts.

    "first" and "steady" are compiled against uncompiled with the same cache; -10 % is a tenth faster. A row
    counts, that is, may back an opt-in, when it is of a GPU, of this checkpoint, of the minor versions of
    torch, diffusers and cache-dit that are installed here, has 3 rounds and measured what the model's file
    asks for. Ends with 1 when a model opts in without such a row, or one in which compiling does not win.
    """
    from cli.explain import load_catalogue
    from pipeline.versions import collect
    from policy.evidence import find_unbacked, load_evidence

    catalogue = load_catalogue()
    specs = [catalogue.get_model(model)] if model else list(catalogue.values())
    rows, versions, weights = load_evidence(*folders()), collect(), known_weights(specs)
    told = [Told(spec, rows, versions, weights) for spec in specs]
    unbacked = find_unbacked(specs, rows, versions, weights)
    if as_json:
        print_json({"models": [item.as_json() for item in told], "unbacked": unbacked, "versions": versions})
    else:
        print_table(COLUMNS, [line for item in told for line in item.lines()])
        say_all(unbacked)
    if unbacked:
        raise typer.Exit(ExitCode.FAILED)


def known_weights(specs: Sequence["ModelSpec"]) -> dict[str, str]:
    """Hashes of the weights that come with renderq; others are too large to be read at each look."""
    from pipeline.fingerprint import hash_bundled

    found = {spec.id: hash_bundled(spec.source) for spec in specs}
    return {model: weights for model, weights in found.items() if weights is not None}


class Told:
    """What is known of one model."""

    def __init__(
        self,
        spec: "ModelSpec",
        rows: Sequence["Evidence"],
        versions: Mapping[str, str],
        weights: Mapping[str, str],
    ) -> None:
        from policy.evidence import opts_in, why_not_counted

        self.model = spec.id
        self.opts_in = opts_in(spec)
        own = sorted((row for row in rows if row.model == spec.id), key=lambda row: row.date)
        self.rows = [(row, why_not_counted(row, spec, versions, weights)) for row in own]

    def lines(self) -> list[tuple[object, ...]]:
        """Its lines of the table: one for each compiled way of each row."""
        opted = "yes" if self.opts_in else "no"
        lines: list[tuple[object, ...]] = [
            (self.model, opted, row.device_name, row.date, *cells, _verdict(doubt))
            for row, doubt in self.rows
            for cells in list(map(_cells, row.comparisons())) or [UNCOMPARED]
        ]
        return lines or [(self.model, opted, *NONE, "nothing measured")]

    def as_json(self) -> dict[str, Any]:
        """All that the rows say, for scripts."""
        return {
            "model": self.model,
            "opts_in": self.opts_in,
            "rows": [
                {
                    **row.model_dump(mode="json"),
                    "does_not_count": doubt,
                    "comparisons": [_as_json(pair) for pair in row.comparisons()],
                }
                for row, doubt in self.rows
            ],
        }


def _verdict(doubt: str | None) -> str:
    return "yes" if doubt is None else f"no: {doubt}"


def _cells(pair: "Comparison") -> tuple[str | None, ...]:
    return (
        f"{pair.compiled.scope}/{pair.compiled.cache}",
        f"{pair.first_percent:+.1f} %",
        f"{pair.steady_percent:+.1f} %",
        "wins" if pair.wins else "does not win",
    )


def _as_json(pair: "Comparison") -> dict[str, object]:
    return {
        "scope": pair.compiled.scope,
        "cache": pair.compiled.cache,
        "first_percent": pair.first_percent,
        "steady_percent": pair.steady_percent,
        "wins": pair.wins,
    }
