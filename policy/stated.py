"""GPUs that are described instead of seen: what a worker would do on a machine that is elsewhere."""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from policy.errors import FieldError, InvalidOptions
from policy.given import bad_value
from policy.modes import BF16_SINCE, Hardware
from policy.options import Option
from policy.values import BadValueError, read_value

CARDS_GB = (8, 16, 24, 48, 80, 141)
"""Memory of the cards in the tables of the manual and of the tests."""
TAKEN_GB = 0.5
"""What driver and context take of a card before anything is loaded."""
OLDEST = BF16_SINCE
"""Compute capability where none is stated: the least of GPUs that compute bfloat16."""
NAME = "the stated GPU"

_GPU = Option("gpu", float, None, "Memory of one card in GB.", minimum=1, maximum=1000)
_GPUS = Option("gpus", int, 1, "Cards of that kind.", minimum=1, maximum=64)
_CAPABILITY = Option("capability", str, "8.0", "Compute capability of the cards.")
_FACTS: Mapping[str, Option] = MappingProxyType({fact.name: fact for fact in (_GPU, _GPUS, _CAPABILITY)})
_DOTTED = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)
_UNIT = re.compile(r"\s*GB$", re.IGNORECASE)


def state_cards(
    memory_gb: float,
    count: int = 1,
    *,
    capability: tuple[int, int] = OLDEST,
    packages: Collection[str] = (),
) -> Hardware:
    """Returns NVIDIA GPUs of one kind on which nothing is loaded."""
    return Hardware(
        device="cuda",
        name=NAME,
        count=count,
        total_memory_gb=memory_gb,
        free_memory_gb=memory_gb - TAKEN_GB,
        supports_bf16=capability >= BF16_SINCE,
        capability=capability,
        packages=tuple(packages),
    )


def read_cards(given: Mapping[str, str | None], packages: Collection[str]) -> Hardware | None:
    """Returns the GPUs that `gpu`, `gpus` and `capability` describe; None where none of them is given.

    Args:
        given: The three as texts; None: not given.
        packages: Optional packages that the machine is taken to have.

    Raises:
        InvalidOptions: With every bad value; also where a number or a capability has no card to belong to.
    """
    texts = {name: text for name in _FACTS if (text := given.get(name)) is not None}
    if not texts:
        return None
    values: dict[str, object] = {}
    errors = []
    for name, text in texts.items():
        try:
            values[name] = _read(name, text)
        except BadValueError as problem:
            errors.append(bad_value(name, _FACTS[name].flag, text, problem))
    if "gpu" not in texts:
        errors += [_alone(name, text) for name, text in texts.items()]
    if errors:
        raise InvalidOptions(errors)
    dotted = _DOTTED.fullmatch(str(values.get("capability", _CAPABILITY.default)))
    major, minor = dotted.groups() if dotted else OLDEST
    return state_cards(
        float(str(values["gpu"])),
        int(str(values.get("gpus", _GPUS.default))),
        capability=(int(major), int(minor)),
        packages=packages,
    )


def describe(cards: Hardware) -> str:
    """Returns one sentence on what was stated, and that nothing was looked at."""
    major, minor = cards.capability or OLDEST
    each = " each" if cards.count > 1 else ""
    memory = f"{cards.total_memory_gb:g} GB (10^9 bytes), {cards.free_memory_gb:g} GB{each} free"
    return (
        f"hardware stated, not seen: {cards.count} x NVIDIA GPU of {memory}, compute capability "
        f"{major}.{minor}; packages and RENDERQ_ variables as they are here"
    )


def _read(name: str, text: str) -> object:
    if name == _CAPABILITY.name:
        return _read_capability(text.strip())
    return read_value(_FACTS[name], _UNIT.sub("", text) if name == _GPU.name else text)


def _read_capability(text: str) -> str:
    if not _DOTTED.fullmatch(text):
        nearest = f"{text}.0" if re.fullmatch(r"\d{1,2}", text, re.ASCII) else _CAPABILITY.default
        raise BadValueError("be two numbers, such as 8.9", "MAJOR.MINOR", nearest)
    return text


def _alone(name: str, text: str) -> FieldError:
    message = (
        f"{_FACTS[name].flag} is about the cards of {_GPU.flag}: give their memory as well, or leave it out"
    )
    return FieldError(name, message, text)
