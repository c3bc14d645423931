"""When a schedule comes due, over both clock changes of 2027 in two zones, and which rules are refused."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.recurrence import LONGEST_S, Recurrence, check_recurrence
from policy.errors import FieldError, InvalidRequest

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
# Of 2027: in Berlin 02:00 to 03:00 is skipped and repeated; in New York 02:00 to 03:00 is skipped, and 01:00
# to 02:00 repeated. The two halves of a repeated hour are told apart by the offset.
SPRING = {BERLIN: "2027-03-28", NEW_YORK: "2027-03-14"}
AUTUMN = {BERLIN: "2027-10-31", NEW_YORK: "2027-11-07"}


def cron(expression: str, zone: str = BERLIN) -> Recurrence:
    return check_recurrence({"cron": expression, "timezone": zone}, NOW)


def slots_of_day(expression: str, zone: str, day: str) -> list[str]:
    """The slots of one local day as clocks show them, with the offset in hours."""
    local = ZoneInfo(zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=local)
    begin, end = (moment.astimezone(UTC) for moment in (midnight, midnight + timedelta(days=1)))
    tick = timedelta(microseconds=1)
    slots = list(cron(expression, zone).slots(begin - tick, end - tick))
    assert all(slot.tzinfo is UTC for slot in slots)
    return [f"{slot.astimezone(local):%H:%M%z}".removesuffix("00") for slot in slots]


# --- clock changes ---


@pytest.mark.parametrize(
    ("expression", "zone", "slots"),
    [
        ("30 2 * * *", BERLIN, ["03:00+02"]),
        ("0 2 * * *", BERLIN, ["03:00+02"]),
        ("0,15,45 2 * * *", BERLIN, ["03:00+02"]),
        ("30 2 * * *", NEW_YORK, ["03:00-04"]),
        ("0 2 * * *", NEW_YORK, ["03:00-04"]),
        ("30 2 28 3 *", BERLIN, ["03:00+02"]),
        ("30 1-3 * * *", BERLIN, ["01:30+01", "03:00+02", "03:30+02"]),
        ("0 2,3 * * *", BERLIN, ["03:00+02"]),
    ],
)
def test_a_fixed_time_that_is_skipped_comes_due_once_at_the_jump(
    expression: str, zone: str, slots: list[str]
) -> None:
    assert slots_of_day(expression, zone, SPRING[zone]) == slots


@pytest.mark.parametrize(
    ("expression", "zone", "slots"),
    [
        ("30 2 * * *", BERLIN, ["02:30+02"]),
        ("0,45 2 * * *", BERLIN, ["02:00+02", "02:45+02"]),
        ("30 1 * * *", NEW_YORK, ["01:30-04"]),
        ("0 1,2 * * *", NEW_YORK, ["01:00-04", "02:00-05"]),
        ("30 1-3 * * *", BERLIN, ["01:30+02", "02:30+02", "03:30+01"]),
    ],
)
def test_a_fixed_time_that_is_repeated_comes_due_once_the_first_time(
    expression: str, zone: str, slots: list[str]
) -> None:
    assert slots_of_day(expression, zone, AUTUMN[zone]) == slots


@pytest.mark.parametrize(
    ("zone", "day", "slot"),
    [
        (BERLIN, "2027-03-28", "09:00+02"),
        (BERLIN, "2027-10-31", "09:00+01"),
        (NEW_YORK, "2027-03-14", "09:00-04"),
        (NEW_YORK, "2027-11-07", "09:00-05"),
    ],
)
def test_nine_in_the_morning_is_nine_in_the_morning(zone: str, day: str, slot: str) -> None:
    assert slots_of_day("0 9 * * *", zone, day) == [slot]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
def test_every_half_hour_is_every_half_hour_of_real_time(zone: str) -> None:
    for day, hours in ((SPRING[zone], 23), (AUTUMN[zone], 25)):
        assert len(slots_of_day("*/30 * * * *", zone, day)) == 2 * hours
        midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        slots = cron("*/30 * * * *", zone).slots(midnight, midnight + timedelta(hours=hours))
        assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(minutes=30)}


@pytest.mark.parametrize(
    ("expression", "zone", "spring", "autumn"),
    [
        ("*/30 2 * * *", BERLIN, [], ["02:00+02", "02:30+02", "02:00+01", "02:30+01"]),
        (
            "*/30 1 * * *",
            NEW_YORK,
            ["01:00-05", "01:30-05"],
            ["01:00-04", "01:30-04", "01:00-05", "01:30-05"],
        ),
        ("30 */6 * * *", BERLIN, ["00:30+01", "06:30+02", "12:30+02", "18:30+02"], None),
        ("15 */2 * * *", BERLIN, None, ["00:15+02", "02:15+02", "02:15+01", "04:15+01", "06:15+01"]),
    ],
)
def test_a_star_in_minute_or_hour_means_real_time(
    expression: str, zone: str, spring: list[str] | None, autumn: list[str] | None
) -> None:
    if spring is not None:
        assert slots_of_day(expression, zone, SPRING[zone]) == spring
    if autumn is not None:
        assert slots_of_day(expression, zone, AUTUMN[zone])[: len(autumn)] == autumn


@pytest.mark.parametrize("minutes", range(0, 60, 7))
def test_from_within_the_second_pass_the_first_is_over(minutes: int) -> None:
    second_pass = datetime(2027, 10, 31, 1, minutes, tzinfo=UTC)  # clocks show 02:00 to 03:00 once more
    assert cron("30 2 * * *").next_after(second_pass) == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "moment"),
    [
        ({"at": "2027-03-28T02:30", "timezone": BERLIN}, "2027-03-28T01:00"),
        ({"at": "2027-10-31T02:30", "timezone": BERLIN}, "2027-10-31T00:30"),
        ({"at": "2027-11-07T01:30", "timezone": NEW_YORK}, "2027-11-07T05:30"),
        ({"at": "2027-10-31T02:30+01:00", "timezone": BERLIN}, "2027-10-31T01:30"),
        ({"at": "2027-10-31T02:30:15Z"}, "2027-10-31T02:30:15"),
        ({"at": "2027-10-31t02:30:15.5z"}, "2027-10-31T02:30:15.5"),
        ({"at": datetime(2027, 1, 1, tzinfo=UTC)}, "2027-01-01T00:00"),
    ],
)
def test_one_time_comes_due_once(fields: dict[str, Any], moment: str) -> None:
    expected = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    rule = check_recurrence(fields, NOW)
    assert rule.at == expected
    assert rule.next_after(NOW) == expected
    assert rule.next_after(expected - timedelta(microseconds=1)) == expected
    assert rule.next_after(expected) is None
    assert rule.count_between(NOW, expected) == 1


# --- the rules ---


@pytest.mark.parametrize(
    ("expression", "slots"),
    [
        ("0 22 * * *", ["2026-11-30T21:00", "2026-12-01T21:00"]),
        ("0 9 * * MON-FRI", ["2026-12-01T08:00", "2026-12-02T08:00"]),
        ("0 0 29 2 *", ["2028-02-28T23:00", "2032-02-28T23:00"]),
        ("0  0  L  *  *", ["2026-12-30T23:00", "2027-01-30T23:00"]),
        ("0 0 * jan,jul mon#1", ["2027-01-03T23:00", "2027-07-04T22:00"]),
    ],
)
def test_a_cron_expression_is_read_in_its_zone(expression: str, slots: list[str]) -> None:
    found = islice(cron(expression).slots(NOW, NOW + timedelta(days=3000)), 2)
    assert [f"{slot:%Y-%m-%dT%H:%M}" for slot in found] == slots
    assert cron(expression).cron == " ".join(expression.split())


def test_an_interval_is_counted_from_its_start_in_real_time() -> None:
    rule = check_recurrence({"every_s": 3600}, NOW)
    assert rule.start == NOW
    assert rule.next_after(NOW) == NOW + timedelta(hours=1)
    assert rule.next_after(NOW + timedelta(minutes=59)) == NOW + timedelta(hours=1)
    assert rule.next_after(NOW - timedelta(days=9)) == NOW
    assert rule.count_between(NOW, NOW + timedelta(days=365)) == 365 * 24
    assert rule.count_between(NOW + timedelta(days=1), NOW) == 0
    later = check_recurrence({"every_s": 90, "start": NOW + timedelta(days=1)}, NOW)
    assert later.next_after(NOW) == NOW + timedelta(days=1)


def test_both_ends_of_a_count_are_told_apart() -> None:
    rule = cron("0 * * * *", "UTC")
    noon = datetime(2027, 1, 1, 12, tzinfo=UTC)
    assert rule.count_between(noon, noon + timedelta(hours=3)) == 3
    assert list(rule.slots(noon, noon)) == []
    assert rule.count_between(noon + timedelta(hours=3), noon) == 0


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a zone"):
        cron("0 * * * *").next_after(datetime(2027, 1, 1))  # noqa: DTZ001 - that is the point


minutes = st.sampled_from(["0", "30", "0,45", "*/20", "*", "59", "5-15/5"])
hours = st.sampled_from(["*", "2", "1-3", "*/6", "0,23", "3", "1"])
days = st.sampled_from(["*", "L", "13", "28-31", "*/7"])
weekdays = st.sampled_from(["*", "*", "SUN", "1-5", "0#1"])
expressions = st.tuples(minutes, hours, days, st.just("*"), weekdays).map(" ".join)
near_changes = st.sampled_from(
    [datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (*SPRING.values(), *AUTUMN.values())]
)
moments = st.tuples(near_changes, st.integers(-2 * 86400 * 10**6, 2 * 86400 * 10**6)).map(
    lambda pair: pair[0] + timedelta(microseconds=pair[1])
)
rules = st.one_of(
    st.builds(cron, expressions, st.sampled_from([BERLIN, NEW_YORK])),
    st.integers(60, 90_000).map(lambda every_s: check_recurrence({"every_s": every_s}, NOW)),
)


@settings(deadline=None, max_examples=150)
@given(rules, moments)
def test_the_next_slot_is_strictly_later_and_asking_again_is_the_same_as_going_on(
    rule: Recurrence, begin: datetime
) -> None:
    until = begin + timedelta(days=40)
    going_on = list(islice(rule.slots(begin, until), 60))
    asked, at = [], begin
    for _ in going_on:
        slot = rule.next_after(at)
        assert slot is not None
        assert slot > at
        asked.append(slot)
        at = slot
    assert asked == going_on
    if going_on:
        assert rule.count_between(begin, going_on[-1]) == len(going_on)
        middle = going_on[len(going_on) // 2]
        assert rule.count_between(begin, middle) + rule.count_between(middle, going_on[-1]) == len(going_on)


@settings(deadline=None, max_examples=100)
@given(rules, moments, st.integers(1, 86400))
def test_where_one_begins_does_not_change_what_comes(rule: Recurrence, begin: datetime, seconds: int) -> None:
    later = begin + timedelta(seconds=seconds)
    until = later + timedelta(days=3)
    assert [slot for slot in rule.slots(begin, until) if slot > later] == list(rule.slots(later, until))


# --- what is refused ---


def errors_of(**fields: Any) -> list[FieldError]:
    with pytest.raises(InvalidRequest) as refusal:
        check_recurrence(fields, NOW)
    return list(refusal.value.errors)


@pytest.mark.parametrize(
    ("expression", "words", "nearest"),
    [
        ("61 * * * *", "cron: minute 61 is not 0 to 59", 59),
        ("* 24 * * *", "cron: hour 24 is not 0 to 23", 23),
        ("* * 0 * *", "cron: day of month 0 is not 1 to 31", 1),
        ("* * * 13 *", "cron: month 13 is not 1 to 12", 12),
        ("* * * * 8", "cron: day of week 8 is not 0 to 7", 7),
        ("*/0 * * * *", "cron: minute */0 is not", None),
        ("*/1000000000 * * * *", "cron: minute */1000000000 must have a step of at most 60", 60),
        ("* 1,5-20/25 * * *", "cron: hour 1,5-20/25 must have a step of at most 24; nearest: 24", 24),
        ("0 0 */32 * *", "cron: day of month */32 must have a step of at most 31", 31),
        ("0 0 1 */13 *", "cron: month */13 must have a step of at most 12", 12),
        ("0 0 * * */8", "cron: day of week */8 must have a step of at most 7", 7),
        ("5-1 * * * *", "cron: minute 5-1 is not", None),
        ("1,,2 * * * *", "cron: minute 1,,2 is not", None),
        ("a\0 * * * *", r"cron: minute a\x00 is not", None),
        ("٣ * * * *", "cron: minute ٣ is not", None),
        ("* * * * MON#6", "cron: day of week MON#6 is not", None),
        ("* * ? * *", "cron: day of month ? is not", None),
        (
            "0 * * * * *",
            "cron must have five fields (minute, hour, day of month, month and day of week), not 6",
            "* * * * *",
        ),
        ("* * * *", "not 4", None),
        ("", "not 0", None),
        ("@daily", "not 1; nearest: 0 0 * * *", "0 0 * * *"),
        ("0 0 30 2 *", 'cron "0 0 30 2 *" never comes', None),
        ("0 0 31 4,6,9,11 *", "never comes", None),
        ("0" * 5000 + " * * * *", "at most 100 characters, not 5008", None),
    ],
)
def test_a_bad_cron_expression_is_answered_with_the_field_and_the_nearest(
    expression: str, words: str, nearest: object
) -> None:
    (error,) = errors_of(cron=expression, timezone=BERLIN)
    assert error.field == "cron"
    assert words in error.message
    assert error.nearest == nearest


def test_every_bad_field_of_an_expression_is_told_at_once() -> None:
    errors = errors_of(cron="61 24 * 13 *", timezone="Europe/Berln")
    assert [error.field for error in errors] == ["timezone", "cron", "cron", "cron"]
    assert errors[0].nearest == BERLIN


def test_a_step_as_long_as_its_field_is_taken() -> None:
    assert cron("*/60 */24 * * *").cron == "*/60 */24 * * *"


def test_a_cron_expression_needs_a_zone() -> None:
    (error,) = errors_of(cron="0 9 * * *")
    assert (error.field, error.limit) == ("timezone", "required")


@pytest.mark.parametrize(
    ("value", "nearest"), [(0, 60), (59, 60), (-1, 60), (LONGEST_S + 1, LONGEST_S), (10**400, LONGEST_S)]
)
def test_an_interval_is_between_a_minute_and_a_year(value: int, nearest: int) -> None:
    (error,) = errors_of(every_s=value)
    assert (error.field, error.nearest) == ("every_s", nearest)
    assert "every_s must be 60 to 31622400" in error.message
    assert check_recurrence({"every_s": nearest}, NOW).every_s == nearest


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({}, "cron", "give one of cron, at or every_s"),
        ({"cron": None}, "cron", "give one of cron, at or every_s"),
        ({"every_s": 60, "at": "2027-01-01T00:00Z"}, "every_s", "not at and every_s together"),
        ({"every_s": "60"}, "every_s", 'an integer of seconds, not "60"'),
        ({"every_s": 60.0}, "every_s", "an integer of seconds"),
        ({"every_s": True}, "every_s", "an integer of seconds"),
        ({"every_s": 60, "timezone": "Mars/Olympus"}, "timezone", "must be an IANA time zone"),
        ({"every_s": 60, "start": datetime(2027, 1, 1)}, "start", "a time with a zone"),  # noqa: DTZ001
        ({"cron": 5, "timezone": BERLIN}, "cron", "a text of five fields"),
        ({"at": "2027-01-01T00:00"}, "at", "needs a timezone beside it"),
        ({"at": datetime(2027, 1, 1)}, "at", "needs a timezone beside it"),  # noqa: DTZ001
        ({"at": "2027-01-01"}, "at", "a date and time"),
        ({"at": "2027-W01-1T00:00Z"}, "at", "a date and time"),
        ({"at": "2027-02-30T00:00Z"}, "at", "a date and time"),
        ({"at": "tomorrow"}, "at", "a date and time"),
        ({"at": 1830000000}, "at", "a date and time"),
        ({"at": "2026-11-30T12:00Z"}, "at", "in the future"),
        ({"at": "2026-11-30T13:00", "timezone": BERLIN}, "at", "in the future"),
        ({"at": "0001-01-01T00:00", "timezone": BERLIN}, "at", "in the future"),
        ({"at": "0001-01-01T00:00+14:00"}, "at", "in the future"),
        ({"at": "9999-12-31T23:59", "timezone": NEW_YORK}, "at", "at most 2036"),
        ({"at": "9999-12-31T23:59-14:00"}, "at", "at most 2036"),
    ],
)
def test_anything_else_is_refused_with_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    (error,) = errors_of(**fields)
    assert error.field == field
    assert words in error.message


@settings(deadline=None)
@given(st.text(st.sampled_from("0123456789*/,-#L @MON\0٣²"), max_size=20) | st.text(max_size=10))
def test_any_text_is_a_rule_or_refused_in_words(expression: str) -> None:
    try:
        rule = check_recurrence({"cron": expression, "timezone": BERLIN}, NOW)
    except InvalidRequest as refusal:
        assert all(error.field == "cron" for error in refusal.errors)  # noqa: PT017 - both outcomes are right
    else:
        slot = rule.next_after(NOW)
        assert slot is not None
        assert slot > NOW
