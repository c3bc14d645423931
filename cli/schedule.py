"""`renderq schedule`: batches that are ordered again and again, on the server at RENDERQ_URL."""

from typing import Annotated

import typer

from cli import scheduleedit
from cli.batch import choose_model, order_of, require_rows
from cli.bulkflags import (
    At,
    Cron,
    Every,
    File,
    Grace,
    Grid,
    Keep,
    Misfire,
    Model,
    ScheduleId,
    Template,
    Watch,
    WindowOption,
    Zone,
)
from cli.bulkorder import read_table
from cli.exits import CliError, ExitCode
from cli.jobs import AsJson
from cli.paging import PAGE, say_more
from cli.rowerrors import explaining
from cli.scheduleedit import timing_of
from cli.scheduleshow import (
    LIST_COLUMNS,
    LIST_DROP,
    NAME_CELLS,
    SHOWN_NEXT,
    connected,
    list_row,
    show,
    show_added,
)
from cli.schedulewords import FIRING_COLUMNS, FIRING_DROP, ID_CELLS, firing_row, times_table
from cli.submit import require_text
from cli.table import print_fitted
from cli.terminal import print_json, print_line, printable, say, say_all
from cli.times import shown_time

app = typer.Typer(help="Batches at given times: nightly, every few hours, once.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Batches at given times."""


@app.command()
def add(
    file: File = None,
    *,
    name: Annotated[str, typer.Option(help="What to call it.", show_default=False)],
    cron: Cron = None,
    at: At = None,
    every: Every = None,
    timezone: Zone = None,
    model: Model = None,
    template: Template = None,
    keep: Keep = None,
    grid: Grid = None,
    window: WindowOption = None,
    misfire: Misfire = None,
    misfire_grace: Grace = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Fire by hand only, until enabled.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a file and order its rows whenever the time comes. One of --cron, --at and --every says when.

    All rows are checked now, with the model's rules as they are; the next five firings are shown.
    """
    require_text({name: value for name, value in locals().items() if name != "file"})
    order = order_of(template, model, keep, grid)
    order |= timing_of(cron, at, every, timezone, window)
    if sum(order[field] is not None for field in ("cron", "at", "every_s")) != 1:
        raise CliError("give one of --cron, --at and --every")
    order |= {"name": name, "misfire": misfire, "misfire_grace_s": misfire_grace}
    order["enabled"] = False if disabled else None
    table = None if file is None else read_table(file)
    require_rows(table is not None, order["grid"])
    schedules = connected()
    order["template"] = choose_model(schedules.client, order["template"])
    with explaining(as_json=as_json):
        twin = None if disabled else schedules.enabled_named(name)
        schedule = schedules.add(order, table)
    if twin:
        say(f"note: {printable(twin['id'])} is enabled and has the same name; both fire")
    show_added(schedules, schedule, as_json=as_json)


@app.command("list")
def list_schedules(
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most this many.")] = PAGE,
    after: Annotated[
        str | None, typer.Option(help="Id of the last one of the page before.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules: next firing, window, whether enabled, and what came of the last firing."""
    page = connected().page(limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    rows = [list_row(schedule) for schedule in page["data"]]
    print_fitted(LIST_COLUMNS, rows, drop=LIST_DROP, least=NAME_CELLS)
    say_more("renderq schedule list", page, limit=limit)


@app.command()
def get(schedule_id: ScheduleId, *, as_json: AsJson = False) -> None:
    """Show a schedule."""
    show(connected().get(schedule_id), as_json=as_json)


@app.command("next")
def next_firings(
    schedule_id: ScheduleId,
    *,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = SHOWN_NEXT,
    as_json: AsJson = False,
) -> None:
    """Show when it fires next, in its zone and in UTC."""
    answer = connected().next(schedule_id, count)
    if as_json:
        print_json(answer)
        return
    if answer["data"]:
        print_line("\n".join(times_table(answer["data"], answer.get("timezone"))))
    else:
        say("it will not fire any more")
    if not answer.get("enabled", True):
        say(f"it is disabled: `renderq schedule enable {printable(schedule_id)}` lets it fire")


@app.command()
def fire(schedule_id: ScheduleId, *, watch: Watch = False, as_json: AsJson = False) -> None:
    """Order its rows now, whatever the time is. The times to come stay as they are."""
    schedules = connected()
    firing = schedules.act(schedule_id, "fire")
    batch_id = firing.get("batch_id")
    if as_json and not (watch and batch_id):
        print_json(firing)
    if not batch_id:
        raise CliError(f"nothing was ordered: {printable(firing.get('error'))}", ExitCode.FAILED)
    if not as_json:
        print_line(printable(batch_id))
        say_all((firing.get("batch") or {}).get("warnings"))
    if watch:
        from cli.batch import batches_of
        from cli.batchwatch import conclude

        batches = batches_of(schedules.client)
        conclude(batches, batches.get(batch_id), as_json=as_json)
    elif not as_json:
        say(f"`renderq batch watch {printable(batch_id)}` shows how it goes")


app.command()(scheduleedit.edit)


@app.command()
def enable(schedule_id: ScheduleId, *, as_json: AsJson = False) -> None:
    """Let it fire again, from the next time on."""
    _act(schedule_id, "enable", as_json=as_json)


@app.command()
def disable(schedule_id: ScheduleId, *, as_json: AsJson = False) -> None:
    """Keep it without firing; batches that it ordered go on."""
    _act(schedule_id, "disable", as_json=as_json)


def _act(schedule_id: str, verb: str, *, as_json: bool) -> None:
    schedule = connected().act(schedule_id, verb)
    if as_json:
        print_json(schedule)
        return
    when = shown_time(schedule.get("next_at"), schedule.get("timezone"))
    print_line(f"enabled, next firing {printable(when)}" if schedule.get("enabled") else "disabled")


@app.command()
def firings(
    schedule_id: ScheduleId,
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most this many.")] = PAGE,
    after: Annotated[
        str | None, typer.Option(help="Id of the last one of the page before.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what came of each time it fired or was due, newest first."""
    page = connected().firings(schedule_id, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    rows = [firing_row(firing) for firing in page["data"]]
    print_fitted(FIRING_COLUMNS, rows, drop=FIRING_DROP, least=ID_CELLS)
    say_more(f"renderq schedule firings {printable(schedule_id)}", page, limit=limit)


@app.command()
def remove(schedule_id: ScheduleId) -> None:
    """Delete a schedule. Batches that it ordered stay and go on."""
    connected().remove(schedule_id)
    print_line("removed")
