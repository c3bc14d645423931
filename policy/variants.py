"""The ways of running a model that are measured beside each other: what is compiled, what is reused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from policy.errors import FieldError, InvalidOptions
from policy.model_spec import ModelSpec
from policy.options import OPTIONS
from policy.wording import closest, listing, quote, show

AXES = ("compile", "cache", "scope")
Scope = Literal["regional", "whole"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way.

    Attributes:
        scope: What is compiled; None: nothing.
        cache: A preset, or ``off``.
    """

    scope: Scope | None
    cache: str

    @property
    def name(self) -> str:
        """Short and unique, such as ``eager/off`` and ``regional/balanced``."""
        return f"{self.scope or 'eager'}/{self.cache}"

    def flags(self) -> dict[str, object]:
        """The same as options of a worker, all of them explicit."""
        compiled = {"compile": True, "compile_scope": self.scope} if self.scope else {"compile": False}
        cached = {"cache": False} if self.cache == "off" else {"cache": True, "cache_preset": self.cache}
        return {**compiled, **cached}


PLAIN = Variant(None, "off")
"""Nothing compiled and nothing reused: what the pictures of every other way are compared with."""


def parse_axes(text: str) -> tuple[str, ...]:
    """Reads a comma-separated list of axes; raises `InvalidOptions` that names each unknown one."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    errors = [_unknown(name) for name in names if name not in AXES]
    if not errors and "scope" in names and "compile" not in names:
        errors = [FieldError("matrix", "matrix: scope has no effect without compile; name both", text)]
    if errors:
        raise InvalidOptions(errors)
    return names


def _unknown(name: str) -> FieldError:
    nearest = closest(name, AXES)
    hint = f"; did you mean {nearest}?" if nearest else ""
    message = f"matrix: {quote(name)} is no axis; there are {listing(AXES, 'and')}{hint}"
    return FieldError("matrix", message, show(name), list(AXES), nearest)


def plan_variants(spec: ModelSpec, axes: Sequence[str]) -> tuple[Variant, ...]:
    """Returns the ways to measure, the plain one first; what is no axis is as the model's file has it."""
    own = own_scope(spec)
    compiled: tuple[Scope, ...] = ("regional", "whole") if "scope" in axes else (own,)
    scopes = (None, *compiled) if "compile" in axes else (own if spec.policy.get("compile") else None,)
    caches = ("off", own_cache(spec)) if "cache" in axes else (own_cache(spec),)
    ways = (Variant(scope, cache) for scope in scopes for cache in caches)
    return tuple(dict.fromkeys((PLAIN, *ways)))


def own_scope(spec: ModelSpec) -> Scope:
    """What is compiled of this model when its file opts in."""
    return "whole" if _own(spec.policy, "compile_scope") == "whole" else "regional"


def own_cache(spec: ModelSpec) -> str:
    """The preset that this model's requests have when nobody asks for another one, or ``off``."""
    return str(_own(spec.policy, "cache_preset")) if _own(spec.policy, "cache") else "off"


def _own(policy: Mapping[str, object], name: str) -> object:
    return policy.get(name, OPTIONS[name].default)
