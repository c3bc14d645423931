"""A resolved policy as rows of a table."""

from policy.resolved import Policy
from policy.values import text_of


def rows(policy: Policy) -> list[tuple[str, str, str, str]]:
    """Returns (name, value, source, reason) of every option, in the order of the table of options."""
    return [
        (name, _shown(resolved.value), resolved.source, resolved.reason)
        for name, resolved in policy.options.items()
    ]


def _shown(value: object) -> str:
    return "-" if value in (None, ()) else text_of(value)
