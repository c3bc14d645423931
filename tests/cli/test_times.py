"""Times for people: one form, local, with its distance from UTC."""

import os
import time
from collections.abc import Iterator

import pytest

from cli.times import shown_time

UTC_TEXT = "2026-11-30T21:51:07.123456Z"


@pytest.fixture(autouse=True)
def two_hours_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(os.environ, "TZ", "Etc/GMT-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_is_local_with_its_year_and_offset_and_without_microseconds() -> None:
    assert shown_time(UTC_TEXT) == "2026-11-30 23:51:07 +0200"
    assert shown_time(None) is None


def test_a_time_of_a_schedule_is_in_its_zone_and_in_utc_where_that_is_unknown() -> None:
    assert shown_time(UTC_TEXT, "Europe/Berlin") == "2026-11-30 22:51:07 +0100"
    assert shown_time(UTC_TEXT, "Europe/Nowhere") == "2026-11-30 21:51:07 +0000"
