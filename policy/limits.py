"""What a value breaks, as pydantic found it, in our words: a rule, its limit and the nearest valid value."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from policy.wording import closest, listing

Rule = tuple[str, object, object]
"""Words that follow "must", the limit, and the nearest valid value or None."""
Reader = Callable[[Mapping[str, Any], ErrorDetails], Rule]


def choice(context: Mapping[str, Any], item: ErrorDetails) -> Rule:
    """One of a few words, or of a few integers."""
    words = re.findall("'([^']*)'", context["expected"])
    value = item["input"]
    if words:
        return f"be {listing(words)}", words, closest(value, words) if isinstance(value, str) else None
    numbers = [int(number) for number in re.findall(r"-?\d+", context["expected"])]
    near = isinstance(value, int | float) and not isinstance(value, bool)
    nearest = min(numbers, key=lambda number: abs(number - value)) if near else None
    return f"be {listing(numbers)}", numbers, nearest


def bound(words: str, key: str, step: int) -> Reader:
    """Makes the rule of one side; `step` leads from an open limit to the nearest integer inside."""

    def rule(context: Mapping[str, Any], _: ErrorDetails) -> Rule:
        limit = context[key]
        reachable = step == 0 or isinstance(limit, int)
        return f"be {words} {limit}", limit, limit + step if reachable else None

    return rule


def other(_: Mapping[str, Any], item: ErrorDetails) -> Rule:
    """Whatever we have no words for."""
    return f"be valid ({item['msg']})", None, None


def rule_of(item: ErrorDetails, kinds: Mapping[str, str], rules: Mapping[str, Reader]) -> Rule:
    """Returns what a value breaks: another kind of value is wanted, by the words of ``kinds``, or a rule."""
    kind = kinds.get(item["type"])
    if kind is not None:
        return f"be {kind}", kind, None
    return rules.get(item["type"], other)(item.get("ctx", {}), item)


BOUNDS: Mapping[str, Reader] = {
    "greater_than_equal": bound("at least", "ge", 0),
    "less_than_equal": bound("at most", "le", 0),
    "greater_than": bound("more than", "gt", 1),
    "less_than": bound("less than", "lt", -1),
}
