"""Times on a wall clock and the moments they stand for, also where clocks change.

One rule everywhere: a local time that is skipped in spring stands for the moment at which the clocks jump;
one that comes twice in autumn stands for the first of the two.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from policy.errors import FieldError
from policy.wording import closest, kind_of, quote, show

_OF_ONE_MACHINE = frozenset({"localtime", "posixrules", "Factory"})
LONGEST_ABBREVIATION = 5
EXAMPLE_ZONES = "Europe/Berlin or UTC"


@cache
def known_zones() -> frozenset[str]:
    """The names of all time zones of the IANA database."""
    return frozenset(available_timezones()) - _OF_ONE_MACHINE


def check_zone(name: object, field: str = "timezone") -> FieldError | None:
    """Returns what is wrong with the name of a time zone, or None."""
    wanted = f"an IANA time zone such as {EXAMPLE_ZONES}"
    if not isinstance(name, str):
        return FieldError(field, f"{field} must be {wanted}, not {kind_of(name)}", show(name), wanted)
    if name in known_zones():
        return None
    nearest = _nearest_zone(name)
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    return FieldError(
        field, f"{field} must be {wanted}, not {quote(name)}{hint}", show(name), wanted, nearest
    )


def _nearest_zone(name: str) -> str | None:
    """By the whole name in any case, by the city alone, by likeness."""
    by_lower = {zone.lower(): zone for zone in sorted(known_zones())}
    by_city = {zone.rpartition("/")[2]: by_lower[zone] for zone in sorted(by_lower, reverse=True)}
    asked = name.strip().lower().replace(" ", "_")
    found = by_lower.get(asked) or by_city.get(asked)
    if found:
        return found
    if len(asked) <= LONGEST_ABBREVIATION:
        return None  # CEST is not meant to be EST
    near = closest(asked, by_lower, 0.75)
    return by_lower[near] if near else None


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """Returns the moment, in UTC, at which clocks in `zone` show `local`, a time without a zone.

    A repeated time is the first of the two; a skipped one is the moment at which the clocks jump over it.
    """
    moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local:
        return moment
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _jump_between(before, moment, zone)


def _jump_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Halves the span until it is a second; the offset differs between its ends."""
    new = after.astimezone(zone).utcoffset()
    first, last = 0, int((after - before).total_seconds()) + 1
    while last - first > 1:
        middle = (first + last) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == new:
            last = middle
        else:
            first = middle
    return (before + timedelta(seconds=last)).replace(microsecond=0)
