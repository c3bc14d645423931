"""Shows a schedule: after it was added, in a list, alone."""

from typing import TYPE_CHECKING

from cli.batchwords import describe_rule, describe_window
from cli.schedulewords import last_outcome, times_table
from cli.terminal import print_json, print_line, print_pairs, printable, say, say_all
from cli.times import shown_time

if TYPE_CHECKING:
    from cli.bulkcalls import Schedule, Schedules

SHOWN_NEXT = 5
LIST_COLUMNS = ("id", "on", "next firing", "window", "last outcome", "when", "name")
LIST_DROP = ("window", "last outcome", "when")
NAME_CELLS = 10
"""What a terminal of 80 columns leaves for the name beside id, state and next firing."""


def connected() -> "Schedules":
    """The schedules of the server at RENDERQ_URL."""
    from cli.bulkcalls import Schedules
    from cli.client import connect

    return Schedules(connect())


def show_added(schedules: "Schedules", schedule: "Schedule", *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    print_line(printable(schedule["id"]))
    say_all(schedule.get("warnings"))
    times = schedules.next(schedule["id"], SHOWN_NEXT)["data"]
    say("\n".join(["next firings:", *times_table(times, schedule.get("timezone"))]))
    if not schedule.get("enabled", True):
        say(f"it is disabled: `renderq schedule enable {printable(schedule['id'])}` lets it fire")


def list_row(schedule: "Schedule") -> tuple[object, ...]:
    """The cells under `LIST_COLUMNS`."""
    return (
        schedule["id"],
        "yes" if schedule.get("enabled") else "no",
        shown_time(schedule.get("next_at"), schedule.get("timezone")),
        describe_window(schedule.get("window")),
        last_outcome(schedule),
        describe_rule(schedule),
        schedule.get("name"),
    )


def show(schedule: "Schedule", *, as_json: bool) -> None:
    """Print a schedule, one fact a line."""
    if as_json:
        print_json(schedule)
        return
    template = schedule.get("template") or {}
    print_pairs(
        [
            ("id", schedule["id"]),
            ("name", schedule.get("name")),
            ("when", describe_rule(schedule)),
            ("next firing", shown_time(schedule.get("next_at"), schedule.get("timezone"))),
            ("window", describe_window(schedule.get("window"))),
            ("enabled", "yes" if schedule.get("enabled") else "no"),
            ("misfire", f"{schedule.get('misfire')}, after {schedule.get('misfire_grace_s')} s"),
            ("jobs", schedule.get("total")),
            ("model", template.get("model")),
            ("prompt", template.get("prompt")),
            ("last outcome", last_outcome(schedule)),
            *(("note", warning) for warning in schedule.get("warnings") or []),
        ]
    )
