"""`renderq schedule edit`: change what is given and leave the rest."""

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
from cli.bulkorder import parse_every, parse_object, parse_template, parse_window, with_model
from cli.exits import CliError
from cli.jobs import AsJson
from cli.rowerrors import explaining
from cli.scheduleshow import connected, show
from cli.submit import require_text

RULES = ("cron", "at", "every_s")


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
    no_window: Annotated[bool, typer.Option("--no-window", help="Render at any time of day.")] = False,
    misfire: Misfire = None,
    misfire_grace: Grace = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule. What is not given stays; batches that it has ordered are not touched."""
    require_text(dict(locals()))
    if window is not None and no_window:
        raise CliError("--window and --no-window disagree: leave one out")
    schedules = connected()
    with explaining(as_json=as_json):
        current = schedules.get(schedule_id)
        timing = timing_of(cron, at, every, timezone or _zone(current, window), window)
        timing["timezone"] = timezone
        fields = {"name": name, "misfire": misfire, "misfire_grace_s": misfire_grace} | timing
        fields |= {"grid": None if grid is None else parse_object("--grid", grid)}
        fields |= {"template": new_template(current.get("template") or {}, template, model)}
        changes = {field: value for field, value in fields.items() if value is not None}
        changes |= {"window": None} if no_window else {}
        if not changes:
            raise CliError("nothing to change was given; `renderq schedule edit --help` lists what there is")
        changed = schedules.edit(schedule_id, one_rule(changes))
    show(changed, as_json=as_json)


def _zone(current: dict[str, Any], window: str | None) -> str | None:
    """The zone in which a new window is meant where none is given: that of the schedule."""
    return current.get("timezone") if window is not None else None


def new_template(current: dict[str, Any], template: str | None, model: str | None) -> dict[str, Any] | None:
    """The whole new template: the text of a prompt and a model change these alone; None for no change."""
    if template is None and model is None:
        return None
    given = parse_template(template) if template is not None else {}
    if set(given) <= {"prompt"}:  # a plain text
        given = {**current, **given} if model is None else {**current, **given, "model": model}
    return with_model(given, model)


def one_rule(changes: dict[str, Any]) -> dict[str, Any]:
    """A new rule takes the place of the old one; several are for the server to refuse."""
    given = [rule for rule in RULES if rule in changes]
    return {**dict.fromkeys(RULES), **changes} if len(given) == 1 else changes
