"""`renderq schedule edit`: change what is given and leave the rest."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.bulkflags import (
    At,
    Cron,
    Every,
    Grace,
    Grid,
    Misfire,
    Model,
    ScheduleId,
    Template,
    WindowOption,
    Zone,
)
from cli.bulkorder import (
    given,
    parse_every,
    parse_object,
    parse_template,
    parse_window,
    read_table,
    with_model,
)
from cli.exits import CliError
from cli.jobs import AsJson
from cli.rowerrors import explaining
from cli.scheduleshow import connected, show
from cli.submit import require_text


def timing_of(
    cron: str | None, at: str | None, every: str | None, timezone: str | None, window: str | None
) -> dict[str, Any]:
    """The fields that say when, from the words of the command line; None where nothing was said."""
    return {
        "cron": cron,
        "at": at,
        "every_s": None if every is None else parse_every(every),
        "timezone": timezone,
        "window": None if window is None else parse_window(window, timezone),
    }


def edit(
    schedule_id: ScheduleId,
    *,
    name: Annotated[str | None, typer.Option(help="What to call it.", show_default=False)] = None,
    cron: Cron = None,
    at: At = None,
    every: Every = None,
    timezone: Zone = None,
    model: Model = None,
    template: Template = None,
    grid: Grid = None,
    window: WindowOption = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A table whose rows replace the old ones.", show_default=False),
    ] = None,
    no_window: Annotated[bool, typer.Option("--no-window", help="Render at any time of day.")] = False,
    misfire: Misfire = None,
    misfire_grace: Grace = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule. What is not given stays; batches that it has ordered are not touched."""
    require_text({name: value for name, value in locals().items() if name != "file"})
    if window is not None and no_window:
        raise CliError("--window and --no-window disagree: leave one out")
    table = None if file is None else read_table(file)
    schedules = connected()
    with explaining(as_json=as_json):
        current = schedules.get(schedule_id)
        timing = timing_of(cron, at, every, timezone or _zone(current, window), window)
        timing["timezone"] = timezone
        fields = {"name": name, "misfire": misfire, "misfire_grace_s": misfire_grace} | timing
        fields |= {"grid": None if grid is None else parse_object("--grid", grid)}
        fields |= {"template": new_template(current.get("template") or {}, template, model)}
        changes = given(fields) | ({"window": None} if no_window else {})
        if not changes and table is None:
            raise CliError("nothing to change was given; `renderq schedule edit --help` lists what there is")
        changed = schedules.edit(schedule_id, changes, table)
    show(changed, as_json=as_json)


def _zone(current: dict[str, Any], window: str | None) -> str | None:
    """The zone in which a new window is meant where none is given: that of the schedule."""
    return current.get("timezone") if window is not None else None


def new_template(current: dict[str, Any], template: str | None, model: str | None) -> dict[str, Any] | None:
    """The whole new template: the text of a prompt or a model changes that field; None for no change."""
    if template is None and model is None:
        return None
    new = {} if template is None else parse_template(template)
    if set(new) <= {"prompt"}:
        return {**current, **new} if model is None else {**current, **new, "model": model}
    return with_model(new, model)
