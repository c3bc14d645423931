"""The table of options as Markdown, for the manual."""

from collections.abc import Iterator

from policy.options import OPTIONS, Option
from policy.values import text_of


def options_table() -> str:
    """Returns one row per option: flags, environment variable, default, values and help."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "| option | flag | environment | default | values | what it does |"
    yield "|---|---|---|---|---|---|"
    for option in OPTIONS.values():
        flags = " ".join(f"`{flag}`" for flag in (option.flag, option.negative_flag) if flag)
        cells = (f"`{option.name}`", flags, f"`{option.env}`", _default(option), _values(option), option.help)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default(option: Option) -> str:
    if option.default is None:
        return "follows"
    return f"`{text_of(option.default)}`" if option.default != () else "none"


def _values(option: Option) -> str:
    if option.allowed:
        return ", ".join(f"`{text_of(value)}`" for value in option.allowed)
    kinds = {
        bool: "`true`, `false`",
        int: "integer",
        float: "number",
        str: "text",
        tuple: "comma-separated list",
    }
    if option.minimum is None:
        return kinds[option.type]
    if option.minimum == option.maximum:
        return f"`{option.minimum}`"
    return f"{kinds[option.type]}, {option.minimum} to {option.maximum}"
