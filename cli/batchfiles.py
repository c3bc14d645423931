"""`renderq batch download | results | sheet`: what a batch made, saved as one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.batchwords import describe_batch
from cli.bulkflags import BatchId, Force, Output
from cli.download import check_target, download
from cli.jobs import AsJson
from cli.saving import SHORT
from cli.terminal import say


def download_pictures(
    batch_id: BatchId,
    *,
    output: Output = None,
    name: Annotated[
        str | None,
        typer.Option(help="Names inside, from columns of the file: '{row}-{sku}'.", show_default=False),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Save the pictures that are done as a ZIP file."""
    _save(batch_id, "content", ".zip", output, force=force, as_json=as_json, query={"name": name})


def results(
    batch_id: BatchId,
    *,
    output: Output = None,
    separator: Annotated[
        str | None,
        typer.Option(help="Between the cells, such as ';' for a spreadsheet.", show_default=False),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Save a CSV table of every row: what it asked for, what became of it, and its files."""
    query = {"separator": separator}
    _save(batch_id, "results", ".csv", output, force=force, as_json=as_json, query=query)


def sheet(
    batch_id: BatchId,
    *,
    output: Output = None,
    columns: Annotated[int | None, typer.Option(help="Pictures in a line.", show_default=False)] = None,
    page: Annotated[
        int | None, typer.Option(help="Page of a large batch, from 1.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Save a contact sheet: small pictures of all rows on one PNG; a large batch has several pages."""
    query = {"columns": columns, "page": page}
    headers = _save(batch_id, "sheet", ".png", output, force=force, as_json=as_json, query=query)
    if 'rel="next"' in headers.get("Link", ""):
        say(f"there is more: --page {(page or 1) + 1}")


def _save(
    batch_id: str,
    what: str,
    suffix: str,
    output: Path | None,
    *,
    force: bool,
    as_json: bool,
    query: dict[str, Any] | None = None,
) -> Mapping[str, str]:
    from cli.bulkcalls import Batches, path_of
    from cli.client import connect

    target = output or Path(f"renderq-{_safe_end(batch_id)}{suffix}")
    check_target(target, force=force)
    batches = Batches(connect())
    batch = batches.get(batch_id)
    if batch["status"] in ("running", "paused"):
        say(f"{describe_batch(batch)}; the rest is not in the file yet")
    path = path_of("batches", batch_id, what)
    return download(batches.client, path, target, query=query, force=force, as_json=as_json)


def _safe_end(batch_id: str) -> str:
    """The last characters of an id, by which a file is told from others; what no id holds is left out."""
    kept = "".join(character for character in batch_id if character.isalnum() or character == "-")
    return kept[-SHORT:] or "batch"
