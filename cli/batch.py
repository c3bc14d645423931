"""`renderq batch`: many pictures from one file, on the server at RENDERQ_URL."""

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import batchfiles
from cli.batchwords import describe_batch, describe_eta, describe_window, ended
from cli.bulkflags import BatchId, File, Grid, Keep, Model, Template, Watch, WindowOption, Zone
from cli.bulkorder import parse_object, parse_template, parse_window, read_table, with_kept, with_model
from cli.exits import CliError
from cli.jobs import AsJson
from cli.paging import PAGE, say_more
from cli.rowerrors import explaining
from cli.submit import require_text, served_model
from cli.table import print_fitted
from cli.terminal import print_json, print_line, print_pairs, printable, say, say_all
from cli.times import shown_time

if TYPE_CHECKING:
    from cli.bulkcalls import Batch, Batches
    from cli.client import Client

app = typer.Typer(help="Many pictures from one file: CSV, TSV or JSONL.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Many pictures from one file."""


@app.command()
def submit(
    file: File = None,
    *,
    model: Model = None,
    template: Template = None,
    keep: Keep = None,
    grid: Grid = None,
    name: Annotated[str | None, typer.Option(help="A name to find it by.", show_default=False)] = None,
    window: WindowOption = None,
    timezone: Zone = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            help="Sent again with this key, it is the same batch. Default: drawn.", show_default=False
        ),
    ] = None,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Order a picture for each row. All rows are checked first; nothing is ordered if one is wrong.

    With --watch the exit code tells the outcome: 0 all completed, 1 some failed, 4 canceled.
    """
    from cli.client import connect

    require_text({name: value for name, value in locals().items() if name not in ("connect", "file")})
    if timezone is not None and window is None:
        raise CliError("--timezone says where --window is meant; give both")
    order = order_of(template, model, keep, grid)
    order |= {"name": name, "window": window and parse_window(window, timezone)}
    table = None if file is None else read_table(file)
    require_rows(table is not None, order["grid"])
    batches = batches_of(client := connect())
    order["template"] = choose_model(client, order["template"])
    with explaining(as_json=as_json):
        batch = batches.submit(order, table, idempotency_key or str(uuid.uuid4()))
    show_sent(batches, batch, watch=watch, as_json=as_json)


def order_of(
    template: str | None, model: str | None, keep: list[str] | None, grid: str | None
) -> dict[str, Any]:
    """Template and grid from the words of the command line."""
    fields = with_model(None if template is None else parse_template(template), model)
    return {
        "template": with_kept(fields, keep),
        "grid": None if grid is None else parse_object("--grid", grid),
    }


def require_rows(has_file: bool, grid: object) -> None:
    if not has_file and not grid:
        raise CliError("give a FILE with rows, or --grid")


def choose_model(client: "Client", template: dict[str, Any] | None) -> dict[str, Any] | None:
    """The template with a model; without a prompt a file of whole jobs may name it in each row."""
    if template is not None and "model" in template:
        return template
    try:
        return {**(template or {}), "model": served_model(client)}
    except CliError:
        if "prompt" in (template or {}):
            raise
        return template


def batches_of(client: "Client") -> "Batches":
    from cli.bulkcalls import Batches

    return Batches(client)


def connected() -> "Batches":
    """The batches of the server at RENDERQ_URL."""
    from cli.client import connect

    return batches_of(connect())


def show_sent(batches: "Batches", batch: "Batch", *, watch: bool, as_json: bool) -> None:
    """Print the id of a batch that has begun, and follow it where asked."""
    if not as_json:
        print_line(printable(batch["id"]))
    if watch:
        from cli.batchwatch import conclude

        conclude(batches, batch, as_json=as_json)
    elif as_json:
        print_json(batch)
    else:
        say_all(batch.get("warnings"))
        say(f"{batch['total']} jobs. `renderq batch watch {printable(batch['id'])}` shows how it goes")


@app.command()
def get(batch_id: BatchId, *, as_json: AsJson = False) -> None:
    """Show a batch. The exit code tells how it ended."""
    from cli.batchwatch import end_with
    from cli.client import TERMINAL

    batch = connected().get(batch_id)
    if as_json:
        print_json(batch)
    else:
        show_batch(batch)
    if batch["status"] in TERMINAL:
        end_with(batch)


def show_batch(batch: "Batch") -> None:
    """Print a batch, one fact a line."""
    from datetime import UTC, datetime

    print_pairs(
        [
            ("id", batch["id"]),
            ("name", batch.get("name") or None),
            ("status", describe_batch(batch)),
            ("window", describe_window(batch.get("window"))),
            ("schedule", batch.get("schedule_id")),
            ("created", shown_time(batch["created_at"])),
            ("finished", shown_time(batch.get("finished_at"))),
            ("expected end", describe_eta(batch.get("eta"), datetime.now(UTC))),
            *(("note", warning) for warning in batch.get("warnings") or []),
        ]
    )


@app.command("list")
def list_batches(
    *,
    status: Annotated[
        str | None, typer.Option(help="running, paused, completed, failed, canceled.", show_default=False)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Only batches of this schedule.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most this many.")] = PAGE,
    after: Annotated[
        str | None, typer.Option(help="Id of the last batch of the page before.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first."""
    page = connected().page(status=status, schedule=schedule, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    rows = [_row(batch) for batch in page["data"]]
    print_fitted(
        ("id", "status", "ended", "failed", "created", "name"), rows, drop=("created", "failed", "ended")
    )
    say_more("renderq batch list", page, status=status, schedule=schedule, limit=limit)


def _row(batch: "Batch") -> tuple[object, ...]:
    counts = batch.get("counts") or {}
    failed = counts.get("failed", 0) + counts.get("expired", 0)
    progress = f"{ended(batch)} of {batch['total']}"
    created = shown_time(batch["created_at"])
    return batch["id"], batch["status"], progress, failed, created, batch.get("name") or None


@app.command()
def watch(batch_id: BatchId, *, as_json: AsJson = False) -> None:
    """Show how a batch goes until it ends. Ctrl-C leaves it alone. The exit code tells the outcome."""
    from cli.batchwatch import conclude

    batches = connected()
    conclude(batches, batches.get(batch_id), as_json=as_json)


@app.command()
def pause(batch_id: BatchId, *, as_json: AsJson = False) -> None:
    """Start no more of its jobs; those that render come to their end."""
    _act(batch_id, "pause", as_json=as_json)


@app.command()
def resume(batch_id: BatchId, *, as_json: AsJson = False) -> None:
    """Go on with a paused batch."""
    _act(batch_id, "resume", as_json=as_json)


@app.command()
def cancel(batch_id: BatchId, *, as_json: AsJson = False) -> None:
    """Stop a batch: waiting jobs at once, rendering ones at their next step."""
    _act(batch_id, "cancel", as_json=as_json)


def _act(batch_id: str, verb: str, *, as_json: bool) -> None:
    batch = connected().act(batch_id, verb)
    if as_json:
        print_json(batch)
    else:
        print_line(describe_batch(batch))


@app.command()
def retry(batch_id: BatchId, *, watch: Watch = False, as_json: AsJson = False) -> None:
    """Order the failed and expired rows again."""
    batches = connected()
    batch = batches.act(batch_id, "retry")
    if not as_json:
        print_line(describe_batch(batch))
    if watch:
        from cli.batchwatch import conclude

        conclude(batches, batch, as_json=as_json)
    elif as_json:
        print_json(batch)


app.command("download")(batchfiles.download_pictures)
app.command()(batchfiles.results)
app.command()(batchfiles.sheet)
