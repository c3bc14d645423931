"""A daily window of local times in which the jobs of a batch may run: 22:00 to 06:00 in Berlin, say.

The night on which the clocks change makes a window an hour shorter or longer; a time that is skipped or
repeated counts as `policy.local_time` says. A window that lies wholly in the skipped hour does not open that
day.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy.errors import FieldError, InvalidRequest
from policy.local_time import check_zone, instant_of
from policy.wording import closest, kind_of, listing, quote, show

_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_LOOSE_CLOCK = re.compile(r"([0-9]{1,2})[:.h]([0-9]{2})(?::00)?")
_DAY = timedelta(days=1)
Span = tuple[datetime, datetime]  # opens, closes; aware, UTC


class Window(BaseModel):
    """Opens and closes once a day. `end` before `start` is on the next day."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    start: str = Field(description="Local time at which it opens, HH:MM")
    end: str = Field(description="Local time at which it closes, HH:MM; earlier than start: on the next day")
    timezone: str = Field(description="IANA time zone, such as Europe/Berlin")

    @model_validator(mode="after")
    def _is_sound(self) -> "Window":
        if errors := list(_check_values(self.start, self.end, self.timezone)):
            raise ValueError("; ".join(error.message for error in errors))
        return self

    def is_open(self, at: datetime) -> bool:
        """Whether jobs may start at this moment; the moment of opening counts, that of closing does not."""
        opens, _ = next(self._spans(at))
        return opens <= at

    def closes_at(self, at: datetime) -> datetime:
        """Returns the next moment after `at` at which it closes, in UTC."""
        return next(self._spans(at))[1]

    def opens_at(self, at: datetime) -> datetime:
        """Returns the next moment after `at` at which it opens, in UTC."""
        return next(opens for opens, _ in self._spans(at) if opens > at)

    def advance(self, at: datetime, seconds: float) -> datetime:
        """Returns the moment, in UTC, at which `seconds` of open time will have passed since `at`.

        Raises:
            ValueError: `seconds` is negative or not a number, or `at` has no zone.
            OverflowError: The moment lies beyond the year 9999.
        """
        if not seconds >= 0:
            raise ValueError(f"seconds must be at least 0, not {seconds}")
        left = timedelta(seconds=seconds)
        if not left:
            return at.astimezone(UTC)
        for opens, closes in self._spans(at):
            begin = max(opens, at.astimezone(UTC))
            if left <= closes - begin:
                return begin + left
            left -= closes - begin
        raise OverflowError("the window does not open often enough")

    def _spans(self, at: datetime) -> Iterator[Span]:
        """Yields, in order, the spans of open time that end after `at`."""
        if at.tzinfo is None:
            raise ValueError(f"a time needs a zone: {at!r}")
        zone = ZoneInfo(self.timezone)
        day = at.astimezone(zone).date() - 2 * _DAY
        while True:
            opens, closes = self._span_of(day, zone)
            if opens < closes and closes > at:
                yield opens, closes
            day += _DAY

    def _span_of(self, day: date, zone: ZoneInfo) -> Span:
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        last = day if start < end else day + _DAY
        return (
            instant_of(datetime.combine(day, start), zone),
            instant_of(datetime.combine(last, end), zone),
        )


def check_window(body: object, timezone: str | None = None, field: str = "window") -> Window:
    """Returns the window that a caller describes as an object with `start`, `end` and `timezone`.

    Args:
        body: A decoded JSON value.
        timezone: The zone when the object names none, such as that of the schedule.
        field: What the caller calls it; stands before the names in the errors.

    Raises:
        InvalidRequest: With every problem.
    """
    wanted = "an object with start, end and timezone"
    if not isinstance(body, Mapping):
        message = f"{field} must be {wanted}, not {kind_of(body)}"
        raise InvalidRequest([FieldError(field, message, show(body), wanted)])
    told = {**({} if timezone is None else {"timezone": timezone}), **body}
    start, end, zone = (told.get(name) for name in _NAMES)
    errors = [*_check_names(told, field), *_check_values(start, end, zone, f"{field}.")]
    if errors:
        raise InvalidRequest(errors)
    return Window(**told)


_NAMES = tuple(Window.model_fields)


def _check_names(body: Mapping[str, object], field: str) -> Iterator[FieldError]:
    for name in list(body)[:50]:
        if name not in _NAMES:
            nearest = closest(name, _NAMES)
            hint = f'did you mean "{nearest}"?' if nearest else f"known: {listing(_NAMES, 'and')}"
            message = f"{quote(name)} is not a field of a window; {hint}"
            yield FieldError(f"{field}.{show(name)}", message, show(body[name]), list(_NAMES), nearest)


def _check_values(start: object, end: object, timezone: object, prefix: str = "") -> Iterator[FieldError]:
    clocks = {"start": start, "end": end}
    wrong = [error for name, value in clocks.items() for error in _check_clock(prefix + name, value)]
    yield from wrong
    if not wrong and start == end:
        hint = "leave the window out to run always"
        message = f"{prefix}end must differ from {prefix}start, not be {quote(end)} too; {hint}"
        yield FieldError(f"{prefix}end", message, show(end))
    field = f"{prefix}timezone"
    if timezone is None:
        yield FieldError(field, f"{field} is missing: local times need a zone", None, "required")
    elif error := check_zone(timezone, field):
        yield error


def _check_clock(field: str, value: object) -> Iterator[FieldError]:
    if value is None:
        yield FieldError(field, f"{field} is missing", None, "required")
    elif not isinstance(value, str) or not _CLOCK.fullmatch(value):
        nearest = _nearest_clock(value)
        near = f"; nearest: {nearest}" if nearest else ""
        wanted = "a time of day such as 22:00"
        yield FieldError(
            field, f"{field} must be {wanted}, not {quote(value)}{near}", show(value), wanted, nearest
        )


def _nearest_clock(value: object) -> str | None:
    found = _LOOSE_CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    hour, minute = int(found[1]), int(found[2])
    if (hour, minute) == (24, 0):
        return "00:00"
    return f"{min(hour, 23):02}:{min(minute, 59):02}"
