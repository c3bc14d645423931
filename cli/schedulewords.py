"""Times of a schedule in its own zone and in UTC, and its firings as rows of a table."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from cli.table import lay_out, short_time

FIRING_COLUMNS = ("due", "fired", "kind", "outcome", "missed", "batch", "error")
LOCAL_FORMAT, UTC_FORMAT = "%a %Y-%m-%d %H:%M:%S %z", "%Y-%m-%d %H:%M:%SZ"


def times_table(times: Iterable[str], timezone: str | None) -> list[str]:
    """The lines of a table of times; without a known zone they stand in UTC alone."""
    moments = [datetime.fromisoformat(text) for text in times]
    zone = zone_named(timezone)
    utc = [f"{moment.astimezone(UTC):{UTC_FORMAT}}" for moment in moments]
    if zone is None:
        return lay_out(("UTC",), [(text,) for text in utc], None)
    local = [f"{moment.astimezone(zone):{LOCAL_FORMAT}}" for moment in moments]
    return lay_out((str(timezone), "UTC"), list(zip(local, utc, strict=True)), None)


def zone_named(name: str | None) -> ZoneInfo | None:
    """The zone; None for none, and for one that this machine does not know."""
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError, KeyError):
        return None


def local_time(text: str | None, timezone: str | None) -> str | None:
    """A time of the API in a schedule's zone, such as ``Tue 2026-12-01 22:00:00 +0100``; else in UTC."""
    if text is None:
        return None
    return f"{datetime.fromisoformat(text).astimezone(zone_named(timezone) or UTC):{LOCAL_FORMAT}}"


def firing_row(firing: dict[str, Any]) -> Sequence[object]:
    """The cells under `FIRING_COLUMNS`; times are those of this machine."""
    return (
        short_time(firing.get("due_at")),
        short_time(firing.get("fired_at")),
        firing.get("kind"),
        firing.get("outcome"),
        firing.get("missed"),
        firing.get("batch_id"),
        firing.get("error"),
    )


def last_outcome(schedule: dict[str, Any]) -> str | None:
    """What came of the last firing, and when, such as ``fired 11-30 22:00:00``."""
    firing = schedule.get("last_firing")
    if not firing:
        return None
    return f"{firing.get('outcome')} {short_time(firing.get('fired_at')) or ''}".strip()
