"""When a schedule comes due: by a cron expression, at one time, or every so many seconds.

The rule for the nights on which clocks change, in the zone of the schedule:

- A fixed time (minute and hour are both written without a leading `*`) that is skipped comes due once, at the
  moment the clocks jump to: `30 2 * * *` in Berlin at 03:00 on the last Sunday of March. Several fixed times
  in the skipped hour come due there together, once.
- A fixed time that is repeated comes due once, the first time.
- When minute or hour begins with `*` (`*/30 * * * *`, `0 */6 * * *`, `*/10 2 * * *`) real time counts: what
  is skipped does not come due, what is repeated comes due both times.
- `every_s` is real time and knows no clock change. `at` follows the rule for fixed times.

This is what Debian's cron does; cronsim computes it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from policy.errors import FieldError, InvalidRequest
from policy.local_time import check_zone, instant_of
from policy.wording import listing, quote, show

SHORTEST_S = 60
LONGEST_S = 366 * 24 * 3600
LONGEST_CRON = 100  # characters
FARTHEST = timedelta(days=10 * 366)
KINDS = ("cron", "at", "every_s")

_PARTS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)
_EXAMPLE_TIME = "2027-03-28T22:00 with a timezone, or 2027-03-28T22:00+02:00"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A rule that was checked by `check_recurrence`; exactly one of `cron`, `at` and `every_s` is set.

    Attributes:
        cron: Five fields with single spaces between them.
        at: The one time, aware, UTC.
        every_s: Seconds from one slot to the next.
        timezone: IANA name; always set with `cron`.
        start: The first slot of `every_s`, aware; later ones are counted from it.
    """

    cron: str | None
    at: datetime | None
    every_s: int | None
    timezone: str | None
    start: datetime

    def next_after(self, at: datetime) -> datetime | None:
        """Returns the first slot that is later than `at`, in UTC, or None when there is none."""
        return next(self._from(at), None)

    def slots(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yields the slots later than `after` and not later than `until`, in order, in UTC."""
        return takewhile(lambda slot: slot <= until, self._from(after))

    def count_between(self, after: datetime, until: datetime) -> int:
        """Returns how many slots are later than `after` and not later than `until`."""
        if self.every_s is not None:
            return max(self._number(until) - self._number(after), 0)
        return sum(1 for _ in self.slots(after, until))

    def _from(self, after: datetime) -> Iterator[datetime]:
        if after.tzinfo is None:
            raise ValueError(f"a time needs a zone: {after!r}")
        if self.cron is not None:
            yield from self._cron_slots(self.cron, after)
        elif self.every_s is not None:
            yield from self._steps(after)
        elif self.at is not None and self.at > after:
            yield self.at.astimezone(UTC)

    def _cron_slots(self, cron: str, after: datetime) -> Iterator[datetime]:
        """Begun in the repeated hour, cronsim may start with a time of its first pass; that is over."""
        last = after.astimezone(UTC)
        for slot in CronSim(cron, after.astimezone(ZoneInfo(self.timezone or "UTC"))):
            moment = slot.astimezone(UTC)
            if moment > last:
                yield moment
                last = moment

    def _number(self, at: datetime) -> int:
        """How many slots of `every_s` are not later than `at`."""
        if at < self.start:
            return 0
        return (at - self.start) // timedelta(seconds=self.every_s or 1) + 1

    def _steps(self, after: datetime) -> Iterator[datetime]:
        number = self._number(after)
        step = timedelta(seconds=self.every_s or 1)
        while True:
            yield (self.start + number * step).astimezone(UTC)
            number += 1


def check_recurrence(fields: Mapping[str, object], now: datetime | None = None) -> Recurrence:
    """Returns the rule in `cron`, `at`, `every_s`, `timezone` and `start`; other fields are not looked at.

    Args:
        fields: As a caller sends them; None counts as not given. `at` may also be an aware datetime; `start`
            is one, by default `now`.
        now: What the past is measured from; by default the time of this machine.

    Raises:
        InvalidRequest: With every problem.
    """
    now = now or datetime.now(UTC)
    start = fields.get("start") or now
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise _refuse("start", f"start must be a time with a zone, not {quote(start)}", show(start))
    given = [kind for kind in KINDS if fields.get(kind) is not None]
    zone = fields.get("timezone")
    errors = [*_check_kinds(given), *_check_timezone(zone, given)]
    sound_zone = zone if isinstance(zone, str) and not check_zone(zone) else None
    checks: dict[str, Callable[[], object]] = {
        "cron": lambda: _read_cron(fields["cron"], sound_zone, now),
        "at": lambda: _read_at(fields["at"], zone, sound_zone, now),
        "every_s": lambda: _read_interval(fields["every_s"]),
    }
    read: dict[str, Any] = {}
    for kind in given:
        try:
            read[kind] = checks[kind]()
        except InvalidRequest as refusal:
            errors += refusal.errors
    if errors:
        raise InvalidRequest(errors)
    return Recurrence(timezone=sound_zone, start=start, **{kind: read.get(kind) for kind in KINDS})


def _check_kinds(given: list[str]) -> Iterator[FieldError]:
    if not given:
        yield FieldError("cron", f"give one of {listing(KINDS)}", None, "required")
    elif len(given) > 1:
        message = f"give one of {listing(KINDS)}, not {listing(given, 'and')} together"
        yield FieldError(given[1], message, None, list(KINDS), given[0])


def _check_timezone(zone: object, given: list[str]) -> Iterator[FieldError]:
    if zone is not None:
        if error := check_zone(zone):
            yield error
    elif "cron" in given:
        message = (
            "timezone is missing: a cron expression is in local time, such as that of Europe/Berlin or UTC"
        )
        yield FieldError("timezone", message, None, "required")


def _refuse(
    field: str, message: str, value: object, limit: object = None, nearest: object = None
) -> InvalidRequest:
    return InvalidRequest([FieldError(field, message, value, limit, nearest)])


# --- cron ---


def _read_cron(cron: object, zone: str | None, now: datetime) -> str:
    if not isinstance(cron, str):
        raise _refuse("cron", f"cron must be a text of five fields, not {quote(cron)}", show(cron), "a text")
    parts = cron.split()
    if len(parts) != len(_PARTS):
        raise _wrong_number(cron, parts)
    if len(cron) > LONGEST_CRON:
        message = f"cron must have at most {LONGEST_CRON} characters, not {len(cron)}"
        raise _refuse("cron", message, show(cron), LONGEST_CRON)
    if errors := [error for place in range(len(parts)) for error in _check_part(parts, place)]:
        raise InvalidRequest(errors)
    if not _comes(" ".join(parts), zone, now):
        message = f"cron {quote(cron)} never comes: no month named in it has such a day"
        raise _refuse("cron", message, show(cron), "a day that exists")
    return " ".join(parts)


def _wrong_number(cron: str, parts: list[str]) -> InvalidRequest:
    names = listing((name for name, *_ in _PARTS), "and")
    nearest = _SHORTHANDS.get(cron.strip().lower())
    if len(parts) == len(_PARTS) + 1:
        nearest = " ".join(parts[1:])  # with seconds in front
    near = f"; nearest: {show(nearest)}" if nearest else ""
    message = f"cron must have five fields ({names}), not {len(parts)}{near}"
    return _refuse("cron", message, show(cron), "five fields", nearest and show(nearest))


def _check_part(parts: list[str], place: int) -> Iterator[FieldError]:
    """Tries one field alone, so that every bad one is told."""
    alone = ["*"] * len(parts)
    alone[place] = parts[place]
    if _is_cron(" ".join(alone)):
        yield from _check_steps(parts[place], place)
        return
    name, low, high = _PARTS[place]
    number = int(parts[place]) if re.fullmatch("[0-9]{1,9}", parts[place]) else None
    nearest = None if number is None else min(max(number, low), high)
    near = "" if nearest is None else f"; nearest: {nearest}"
    span = f"{low} to {high}"
    message = f"cron: {name} {show(parts[place])} is not {span}, *, a list, a range or a step of these{near}"
    yield FieldError("cron", message, show(parts[place]), span, nearest)


def _check_steps(part: str, place: int) -> Iterator[FieldError]:
    """A step past the end of its field comes once, at the beginning, and not as often as it says."""
    name, low, high = _PARTS[place]
    longest = 7 if name == "day of week" else high - low + 1
    for step in re.findall(r"/([0-9]+)", part):
        if int(step) > longest:
            message = f"cron: {name} {show(part)} must have a step of at most {longest}; nearest: {longest}"
            yield FieldError("cron", message, show(part), longest, longest)


def _is_cron(cron: str) -> bool:
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError:
        return False
    return True


def _comes(cron: str, zone: str | None, now: datetime) -> bool:
    if not _is_cron(cron):
        return False  # each field is right, and the days are not in the months
    return Recurrence(cron, None, None, zone or "UTC", now).next_after(now) is not None


# --- one time, and an interval ---


def _read_at(at: object, zone: object, sound_zone: str | None, now: datetime) -> datetime:
    moment = at if isinstance(at, datetime) else _parse_time(at)
    if moment.tzinfo is None:
        if zone is None:
            message = f"at {quote(at)} needs a timezone beside it, or an offset such as +02:00"
            raise _refuse("at", message, show(at), "a time with a zone")
        moment = _instant(moment, ZoneInfo(sound_zone or "UTC"))
    if not now < moment <= now + FARTHEST:
        last = (now + FARTHEST).replace(microsecond=0).isoformat()
        limit, nearest = ("in the future", None) if moment <= now else (f"at most {last}", last)
        raise _refuse("at", f"at must be {limit}, not {quote(at)}", show(at), limit, nearest)
    return moment.astimezone(UTC)


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    """At the ends of the calendar no zone can be applied, and it does not matter which one it is."""
    try:
        return instant_of(local, zone)
    except OverflowError:
        return local.replace(tzinfo=UTC)


def _parse_time(at: object) -> datetime:
    """The pattern leaves out what Python reads beside it: dates alone, weeks, times without separators."""
    if isinstance(at, str) and _TIME.fullmatch(at):
        try:
            return datetime.fromisoformat(at.upper())
        except ValueError:
            pass
    message = f"at must be a date and time such as {_EXAMPLE_TIME}, not {quote(at)}"
    raise _refuse("at", message, show(at), "a date and time")


def _read_interval(every_s: object) -> int:
    if not isinstance(every_s, int) or isinstance(every_s, bool):
        message = f"every_s must be an integer of seconds, not {quote(every_s)}"
        raise _refuse("every_s", message, show(every_s), "an integer")
    if SHORTEST_S <= every_s <= LONGEST_S:
        return every_s
    nearest = min(max(every_s, SHORTEST_S), LONGEST_S)
    message = f"every_s must be {SHORTEST_S} to {LONGEST_S}, not {show(every_s)}; nearest: {nearest}"
    raise _refuse("every_s", message, show(every_s), nearest, nearest)
