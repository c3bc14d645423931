"""Local times and moments over both changes of 2027 in two zones, and names of zones."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.local_time import check_zone, instant_of, known_zones

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


@pytest.mark.parametrize(
    ("zone", "local", "moment"),
    [
        # skipped: 02:00 to 03:00, which is the moment 01:00 UTC
        (BERLIN, "2027-03-28T01:59", "2027-03-28T00:59"),
        (BERLIN, "2027-03-28T02:00", "2027-03-28T01:00"),
        (BERLIN, "2027-03-28T02:30", "2027-03-28T01:00"),
        (BERLIN, "2027-03-28T02:59:59.999999", "2027-03-28T01:00"),
        (BERLIN, "2027-03-28T03:00", "2027-03-28T01:00"),
        (BERLIN, "2027-03-28T03:30", "2027-03-28T01:30"),
        # repeated: 02:00 to 03:00; the first is summer time
        (BERLIN, "2027-10-31T01:30", "2027-10-30T23:30"),
        (BERLIN, "2027-10-31T02:00", "2027-10-31T00:00"),
        (BERLIN, "2027-10-31T02:30", "2027-10-31T00:30"),
        (BERLIN, "2027-10-31T03:00", "2027-10-31T02:00"),
        (NEW_YORK, "2027-03-14T02:30", "2027-03-14T07:00"),
        (NEW_YORK, "2027-03-14T03:00", "2027-03-14T07:00"),
        (NEW_YORK, "2027-11-07T01:30", "2027-11-07T05:30"),
        (NEW_YORK, "2027-11-07T02:00", "2027-11-07T07:00"),
        # half an hour, at midnight, and a whole day
        ("Australia/Lord_Howe", "2027-10-03T02:15", "2027-10-02T15:30"),
        ("Africa/Cairo", "2027-04-30T00:30", "2027-04-29T22:00"),
        ("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00"),
    ],
)
def test_a_skipped_time_is_the_jump_and_a_repeated_one_the_first(zone: str, local: str, moment: str) -> None:
    expected = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert instant_of(datetime.fromisoformat(local), ZoneInfo(zone)) == expected


@settings(deadline=None)
@given(st.sampled_from([BERLIN, NEW_YORK]), st.data())
def test_later_local_times_never_stand_for_earlier_moments(zone: str, data: st.DataObject) -> None:
    times = st.datetimes(datetime(2027, 1, 1), datetime(2028, 1, 1))  # noqa: DTZ001 - local times
    earlier, later = sorted([data.draw(times), data.draw(times)])
    repeated = ZoneInfo(zone)
    first, second = instant_of(earlier, repeated), instant_of(later, repeated)
    assert first <= second
    shown = second.astimezone(repeated).replace(tzinfo=None)
    assert shown >= later


def test_the_zones_of_the_database_are_known_and_those_of_this_machine_are_not() -> None:
    assert {BERLIN, NEW_YORK, "UTC", "Asia/Kolkata"} < known_zones()
    assert check_zone("Europe/Berlin") is None
    assert check_zone("localtime") is not None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Europe/Berln", BERLIN),
        ("europe/berlin", BERLIN),
        ("Berlin", BERLIN),
        (" new york ", NEW_YORK),
        ("CEST", None),
        ("+02:00", None),
        ("", None),
        ("../../etc/passwd", None),
        ("/etc/localtime", None),
        ("x" * 100_000, None),
        ("Europe/Berlin\0", BERLIN),
        ("\ud800", None),
    ],
)
def test_an_unknown_zone_is_answered_with_the_nearest(name: str, nearest: str | None) -> None:
    error = check_zone(name, "window.timezone")
    assert error is not None
    assert (error.field, error.nearest) == ("window.timezone", nearest)
    error.message.encode()
    assert "window.timezone must be an IANA time zone such as Europe/Berlin or UTC" in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize("name", [None, 3, [], True])
def test_a_zone_is_a_text(name: object) -> None:
    error = check_zone(name)
    assert error is not None
    assert "must be an IANA time zone" in error.message
