"""Shows how a batch goes until it ends: a live table on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cli.batchwords import describe_batch, describe_eta, describe_window, ended, in_order, is_stopping
from cli.exits import CliError, ExitCode
from cli.interrupts import heard_once
from cli.terminal import err, print_json, printable, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.bulkcalls import Batch, Batches

RATE_OVER_S = 60.0
"""The shown rate is that of the last minute."""
LINE_EVERY_S = 30.0
"""Without a terminal a large batch says a line for each tenth of it, and at least this often."""
FAILURES_SHOWN = 5
LOST = ("failed", "expired")
"""States whose rows a retry orders again."""
OUTCOMES = {"completed": ExitCode.OK, "failed": ExitCode.FAILED, "canceled": ExitCode.NOT_RENDERED}
STYLES = {"completed": "green", "failed": "red", "canceled": "red", "paused": "yellow"}

Failures = list[dict[str, Any]]


@dataclass
class Pace:
    """Jobs that end in a minute, from looks at the number of those that have."""

    clock: Callable[[], float] = time.monotonic
    looks: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, count: int) -> float | None:
        """Remember a count and return jobs a minute; None before two looks differ in time."""
        now = self.clock()
        self.looks.append((now, count))
        while len(self.looks) > 2 and self.looks[1][0] <= now - RATE_OVER_S:
            self.looks.popleft()
        since, first = self.looks[0]
        return 60 * max(count - first, 0) / (now - since) if now > since else None


@dataclass
class LatestFailures:
    """The failures to show, read again only when the numbers of jobs in each state have changed.

    All numbers: after a retry as many may have failed as before, and others than before.
    """

    batches: "Batches"
    known: dict[str, int] = field(default_factory=dict)
    jobs: Failures = field(default_factory=list)

    def of(self, batch: "Batch") -> Failures:
        counts = batch.get("counts") or {}
        if counts != self.known:
            some = counts.get("failed", 0) + counts.get("expired", 0)
            self.jobs = self.batches.failures(batch["id"], FAILURES_SHOWN) if some else []
            self.known = counts
        return self.jobs


def conclude(batches: "Batches", batch: "Batch", *, as_json: bool) -> None:
    """Watch a batch to its end, show it, and end the command with its exit code."""
    from cli.lost import PATIENCE_S

    batches.client.patience_s = PATIENCE_S
    seen = Seen(batch)
    with heard_once():
        try:
            watch(batches, seen, quiet=as_json)
        except KeyboardInterrupt:
            say("\n" + "\n".join(how_to_go_on(seen.batch)))
            raise
    if as_json:
        print_json(seen.batch)
    end_with(seen.batch)
    if not as_json:
        say(f"`renderq batch download {printable(batch['id'])}` saves the pictures")


@dataclass
class Seen:
    """The batch as it was seen last."""

    batch: "Batch"

    def all_of(self, states: Iterable["Batch"]) -> Iterator["Batch"]:
        """Note each state and pass it on."""
        for self.batch in states:
            yield self.batch


def how_to_go_on(batch: "Batch") -> list[str]:
    """What a watcher who leaves can do with a batch in this state, a command a line."""
    shown = printable(batch["id"])
    if is_stopping(batch):
        return ["the batch is stopping.", f"  see the end:  renderq batch watch {shown}"]
    is_paused = batch["status"] == "paused"
    going, verb = ("go on", "resume") if is_paused else ("hold it", "pause")
    return [
        f"the batch {'is paused' if is_paused else 'goes on'}. See it: renderq batch watch {shown}",
        f"  {going + ':':<9} renderq batch {verb} {shown}",
        f"  stop it:  renderq batch cancel {shown}",
    ]


def watch(batches: "Batches", seen: Seen, *, quiet: bool) -> None:
    """Show the states of a batch until it ends; ``seen`` has the last."""
    states = seen.all_of(batches.follow(seen.batch["id"]))
    failures = LatestFailures(batches)
    if quiet:
        for _ in states:
            pass
    elif err().is_terminal:
        _live(states, failures)
    else:
        _lines(states, failures)


def end_with(batch: "Batch") -> None:
    """End the command with the code of a batch that has ended; return when it went well."""
    code = OUTCOMES.get(batch["status"], ExitCode.FAILED)
    if code == ExitCode.OK:
        return
    advice = advice_on_failures(batch) if code == ExitCode.FAILED else []
    raise CliError("\n".join([f"batch {printable(batch['id'])} {describe_batch(batch)}", *advice]), code)


def advice_on_failures(batch: "Batch") -> list[str]:
    """How to see the rows that failed or expired, and how to order them again; a command a line."""
    shown, counts = printable(batch["id"]), batch.get("counts") or {}
    seeing = [f"renderq list --batch {shown} --status {state}" for state in LOST if counts.get(state)]
    return [
        *(f"  see them:    {command}" for command in seeing),
        f"  order again: renderq batch retry {shown}",
    ]


def _lines(states: Iterable["Batch"], failures: LatestFailures) -> None:
    lines = Lines()
    for state in states:
        for line in lines.of(state, failures.of(state)):
            say(line)


@dataclass
class Lines:
    """Chooses what to say where nobody sees a table: each change of state, each tenth, each shown failure."""

    clock: Callable[[], float] = time.monotonic
    said: str = ""
    mark: tuple[object, ...] = ()
    at: float = 0.0
    told: set[str] = field(default_factory=set)

    def of(self, batch: "Batch", failures: Failures) -> list[str]:
        lines = self._once({text: printable(text) for text in batch.get("warnings") or []})
        lines += self._once({job["id"]: _failure_line(job) for job in reversed(failures)})
        words = describe_batch(batch)
        mark = (batch["status"], is_stopping(batch), 10 * ended(batch) // max(batch["total"], 1))
        late = self.clock() - self.at >= LINE_EVERY_S
        if words != self.said and (mark != self.mark or late):
            eta = describe_eta(batch.get("eta"), datetime.now(UTC))
            lines.append(f"{words}; expected end {eta}" if eta else words)
            self.said, self.mark, self.at = words, mark, self.clock()
        return lines

    def _once(self, lines: dict[str, str]) -> list[str]:
        new = {key: line for key, line in lines.items() if key not in self.told}
        self.told |= set(new)
        return list(new.values())


def _live(states: Iterable["Batch"], failures: LatestFailures) -> None:
    from rich.live import Live

    pace = Pace()
    with Live(console=err(), auto_refresh=False, vertical_overflow="crop") as live:
        for state in states:
            live.update(picture_of(state, pace.note(ended(state)), failures.of(state)), refresh=True)


def picture_of(
    batch: "Batch", per_minute: float | None, failures: Failures, now: datetime | None = None
) -> "RenderableType":
    """What a terminal shows: name and state, a bar, counts, rate, expected end and the latest failures."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text(f"{printable(batch.get('name') or 'batch')}  {printable(batch['id'])}", style="bold")
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(batch, per_minute, now or datetime.now(UTC)):
        facts.add_row(name, Text(value, style=STYLES.get(batch["status"], "") if name == "state" else ""))
    facts.add_row("", ProgressBar(total=max(batch["total"], 1), completed=ended(batch), width=40))
    parts: list[RenderableType] = [head, facts]
    if failures:
        parts.append(_failure_table(failures))
    return Group(*parts)


def _facts(batch: "Batch", per_minute: float | None, now: datetime) -> list[tuple[str, str]]:
    counts = "  ".join(
        f"{printable(state)} {printable(number)}" for state, number in in_order(batch.get("counts") or {})
    )
    rate = "-" if per_minute is None else f"{per_minute:.1f} jobs a minute"
    facts = [
        ("state", printable(batch["status"]) + (", stopping" if is_stopping(batch) else "")),
        ("ended", f"{ended(batch)} of {printable(batch['total'])}"),
        ("jobs", counts or "-"),
        ("rate", rate),
        ("expected end", describe_eta(batch.get("eta"), now) or "-"),
        ("window", printable(describe_window(batch.get("window")) or "-")),
    ]
    return [*facts, *(("note", printable(warning)) for warning in batch.get("warnings") or [])]


def _failure_table(failures: Failures) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(
        *("row", "job", "why"), title="latest failures", title_justify="left", box=None, pad_edge=False
    )
    for job in failures:
        table.add_row(*(Text(text) for text in (_row_number(job), printable(job["id"]), _reason(job))))
    return table


def _failure_line(job: dict[str, Any]) -> str:
    number = _row_number(job)
    who = f"job {printable(job['id'])}" if number == "-" else f"row {number}"
    return f"{who} {printable(job['status'])}" + (f": {_reason(job)}" if job.get("error") else "")


def _row_number(job: dict[str, Any]) -> str:
    row = job.get("batch_row")
    return "-" if row is None else printable(row)


def _reason(job: dict[str, Any]) -> str:
    error = job.get("error") or {}
    return printable(error.get("message") or error.get("code") or job.get("status"))
