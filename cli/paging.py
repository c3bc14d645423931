"""How a list goes on: the command that shows its next page."""

import shlex
from typing import Any

from cli.terminal import printable, say

PAGE = 20
"""Lines of a page where the user does not say how many."""


def say_more(command: str, page: dict[str, Any], *, limit: int = PAGE, **given: object) -> None:
    """Name the command for the next page, with the options of this one; nothing after the last page.

    Args:
        command: What was called, such as ``renderq list``.
        page: The answer, with ``has_more`` and ``last_id``.
        limit: The option of that name, repeated where it is not the usual.
        given: Other options by name; True for a flag, None and False for what was not given.
    """
    if not page["has_more"]:
        return
    options = given | ({} if limit == PAGE else {"limit": limit}) | {"after": page["last_id"]}
    words = [_option(name, value) for name, value in options.items() if value not in (None, False)]
    say(" ".join(["more:", command, *words]))


def _option(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {shlex.quote(printable(value))}"
