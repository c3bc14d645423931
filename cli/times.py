"""Times of the API as a person reads them: one form everywhere, local, with what it is ahead of UTC."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

FORM = "%Y-%m-%d %H:%M:%S %z"


def shown_time(text: str | None, timezone: str | None = None) -> str | None:
    """A time of the API such as ``2026-12-01 03:00:51 +0100``.

    In the named zone; in that of this machine where none is named, and in UTC where this machine does not
    know the one named.
    """
    return text and shown_moment(datetime.fromisoformat(text), timezone)


def shown_moment(moment: datetime, timezone: str | None = None) -> str:
    """The same of an aware moment."""
    zone = zone_named(timezone)
    local = moment.astimezone() if timezone is None else moment.astimezone(zone or UTC)
    return f"{local:{FORM}}"


def zone_named(name: str | None) -> ZoneInfo | None:
    """The zone; None for none, and for one that this machine does not know."""
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError, KeyError):
        return None
