"""The daily window: when it is open, what the clock changes do to it, and how it is described."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from policy.errors import FieldError, InvalidRequest
from policy.windows import Window, check_window

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
NIGHT = Window(start="22:00", end="06:00", timezone=BERLIN)
OFFICE = Window(start="09:00", end="17:00", timezone=NEW_YORK)


def local(text: str, zone: str = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        ("2027-01-10T21:59:59", False),
        ("2027-01-10T22:00", True),
        ("2027-01-10T23:59", True),
        ("2027-01-11T00:00", True),
        ("2027-01-11T05:59:59.999999", True),
        ("2027-01-11T06:00", False),
        ("2027-01-11T12:00", False),
    ],
)
def test_a_window_over_midnight_is_open_from_start_to_end(at: str, is_open: bool) -> None:
    assert NIGHT.is_open(local(at)) is is_open


def test_a_window_within_a_day_is_open_from_start_to_end() -> None:
    seen = [OFFICE.is_open(local(f"2027-01-10T{hour:02}:00", NEW_YORK)) for hour in range(24)]
    assert [hour for hour, is_open in enumerate(seen) if is_open] == list(range(9, 17))


def test_the_next_changes_are_later_than_the_moment_and_in_utc() -> None:
    closed, opened = local("2027-01-10T12:00"), local("2027-01-10T22:00")
    assert NIGHT.opens_at(closed) == local("2027-01-10T22:00")
    assert NIGHT.closes_at(closed) == local("2027-01-11T06:00")
    assert NIGHT.opens_at(opened) == local("2027-01-11T22:00")
    assert NIGHT.closes_at(opened) == local("2027-01-11T06:00")
    assert NIGHT.closes_at(local("2027-01-11T06:00")) == local("2027-01-12T06:00")
    assert {NIGHT.opens_at(closed).tzinfo, NIGHT.closes_at(closed).tzinfo} == {UTC}


@pytest.mark.parametrize(
    ("zone", "evening", "hours"),
    [
        (BERLIN, "2027-03-26T22:00", 8),
        (BERLIN, "2027-03-27T22:00", 7),
        (BERLIN, "2027-10-30T22:00", 9),
        (NEW_YORK, "2027-03-13T22:00", 7),
        (NEW_YORK, "2027-11-06T22:00", 9),
    ],
)
def test_the_night_of_a_change_is_an_hour_shorter_or_longer(zone: str, evening: str, hours: int) -> None:
    window = Window(start="22:00", end="06:00", timezone=zone)
    opens = local(evening, zone).astimezone(UTC)
    length = timedelta(hours=hours)
    assert window.is_open(opens)
    assert not window.is_open(opens - timedelta(microseconds=1))
    assert window.closes_at(opens) - opens == length
    assert window.advance(opens, length.total_seconds()) == opens + length
    next_evening = window.opens_at(opens)
    assert window.advance(opens, length.total_seconds() + 60) == next_evening + timedelta(minutes=1)
    assert all(window.is_open(opens + timedelta(minutes=30 * step)) for step in range(2 * hours))


@pytest.mark.parametrize(
    ("zone", "day", "skipped"), [(BERLIN, "2027-03-28", "02:30"), (NEW_YORK, "2027-03-14", "02:30")]
)
def test_a_window_that_begins_or_ends_in_the_skipped_hour_does_so_at_the_jump(
    zone: str, day: str, skipped: str
) -> None:
    jump = local(f"{day}T03:00", zone)
    starting = Window(start=skipped, end="04:00", timezone=zone)
    assert starting.opens_at(local(f"{day}T00:00", zone)) == jump
    assert starting.closes_at(jump) - jump.astimezone(UTC) == timedelta(hours=1)
    ending = Window(start="01:00", end=skipped, timezone=zone)
    assert ending.closes_at(local(f"{day}T00:00", zone)) == jump
    assert not ending.is_open(jump)


@pytest.mark.parametrize(
    ("zone", "day", "hour"), [(BERLIN, "2027-10-31", "02"), (NEW_YORK, "2027-11-07", "01")]
)
def test_a_window_that_begins_or_ends_in_the_repeated_hour_does_so_the_first_time(
    zone: str, day: str, hour: str
) -> None:
    first, second = (local(f"{day}T{hour}:30", zone, fold).astimezone(UTC) for fold in (0, 1))
    assert second - first == timedelta(hours=1)
    starting = Window(start=f"{hour}:30", end="05:00", timezone=zone)
    assert starting.opens_at(first - timedelta(hours=1)) == first
    assert starting.is_open(first + timedelta(minutes=40))  # clocks show an earlier time than the start
    assert starting.opens_at(first) > second + timedelta(hours=20)
    ending = Window(start="00:00", end=f"{hour}:30", timezone=zone)
    assert ending.closes_at(first - timedelta(minutes=1)) == first
    assert not ending.is_open(first + timedelta(minutes=40))
    assert not ending.is_open(second)


def test_a_window_within_the_skipped_hour_does_not_open_that_day() -> None:
    window = Window(start="02:00", end="02:59", timezone=BERLIN)
    assert window.opens_at(local("2027-03-27T12:00")) == local("2027-03-29T02:00")


def test_advancing_from_a_closed_moment_starts_at_the_opening() -> None:
    noon = local("2027-01-10T12:00")
    assert NIGHT.advance(noon, 3600) == local("2027-01-10T23:00")
    assert NIGHT.advance(noon, 8 * 3600) == local("2027-01-11T06:00")
    assert NIGHT.advance(noon, 20 * 3600) == local("2027-01-13T02:00")
    assert NIGHT.advance(noon, 0) == noon


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_advancing_goes_forward_only(seconds: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        NIGHT.advance(local("2027-01-10T12:00"), seconds)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a zone"):
        NIGHT.is_open(datetime(2027, 1, 1, 12))  # noqa: DTZ001 - that is the point


clocks = st.times().map(lambda clock: clock.strftime("%H:%M"))
moments = st.datetimes(datetime(2027, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@settings(deadline=None)
@given(clocks, clocks, st.sampled_from([BERLIN, NEW_YORK]), moments, st.floats(0, 10 * 86400))
def test_opening_closing_and_advancing_agree(
    start: str, end: str, zone: str, at: datetime, seconds: float
) -> None:
    if start == end:
        return
    window = Window(start=start, end=end, timezone=zone)
    opens, closes = window.opens_at(at), window.closes_at(at)
    assert min(opens, closes) > at
    assert (closes < opens) is window.is_open(at) or closes == opens
    assert window.is_open(opens)
    there = window.advance(at, seconds)
    assert there >= at + timedelta(seconds=seconds) - timedelta(microseconds=1)
    # Two steps lead to the same place as one.
    halfway = window.advance(at, seconds / 2)
    assert abs(window.advance(halfway, seconds / 2) - there) <= timedelta(microseconds=2) or not (
        window.is_open(there)
    )


def errors_of(body: object, timezone: str | None = None) -> dict[str, FieldError]:
    with pytest.raises(InvalidRequest) as refusal:
        check_window(body, timezone)
    return {error.field: error for error in refusal.value.errors}


def test_a_window_is_described_by_three_fields_and_survives_json() -> None:
    window = check_window({"start": "22:00", "end": "06:00", "timezone": BERLIN})
    assert window == NIGHT
    assert Window.model_validate(json.loads(window.model_dump_json())) == window


def test_the_zone_of_the_schedule_stands_in_for_a_missing_one() -> None:
    assert check_window({"start": "22:00", "end": "06:00"}, BERLIN) == NIGHT
    assert check_window({"start": "09:00", "end": "17:00", "timezone": NEW_YORK}, BERLIN) == OFFICE
    assert (
        "local times need a zone" in errors_of({"start": "22:00", "end": "06:00"})["window.timezone"].message
    )


@pytest.mark.parametrize(
    ("body", "field", "nearest"),
    [
        ({"start": "6:00"}, "window.start", "06:00"),
        ({"start": "24:00"}, "window.start", "00:00"),
        ({"start": "25:00"}, "window.start", "23:00"),
        ({"end": "22.30"}, "window.end", "22:30"),
        ({"end": "22:30:00"}, "window.end", "22:30"),
        ({"end": "٠٦:٠٠"}, "window.end", None),
        ({"end": "06:00\n"}, "window.end", "06:00"),
        ({"end": 6}, "window.end", None),
        ({"end": None}, "window.end", None),
        ({"end": "22:00"}, "window.end", None),
        ({"timezone": "Europe/Berln"}, "window.timezone", BERLIN),
        ({"timezone": 1}, "window.timezone", None),
        ({"until": "07:00"}, "window.until", None),
        ({"timezones": BERLIN}, "window.timezones", "timezone"),
    ],
)
def test_a_fault_is_told_with_the_nearest_valid_value(
    body: dict[str, Any], field: str, nearest: object
) -> None:
    errors = errors_of({"start": "22:00", "end": "06:00", "timezone": BERLIN, **body})
    assert list(errors) == [field]
    assert errors[field].nearest == nearest


def test_every_fault_is_told_at_once() -> None:
    assert list(errors_of({"x": 1, "start": "a", "timezone": "b"})) == [
        "window.x",
        "window.start",
        "window.end",
        "window.timezone",
    ]


@pytest.mark.parametrize("body", [None, "22:00-06:00", [], 3])
def test_a_window_is_an_object(body: object) -> None:
    assert "must be an object with start, end and timezone" in errors_of(body)["window"].message


def test_a_window_cannot_be_made_wrong_from_within() -> None:
    with pytest.raises(ValidationError, match="end must differ from start"):
        Window(start="22:00", end="22:00", timezone=BERLIN)
