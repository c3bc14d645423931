"""Whether a worker shares its weights over several GPUs by itself, from hardware facts given as values.

It does so in the modes auto and speed, where the weights do not fit in the free memory of one GPU, the
model's catalogue file says from which memory on it is worth while, every GPU that is visible has that much
free, and nobody chose what needs one GPU (`policy.resolve`). The work is then shared, too, where nobody
chose otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policy.fits import apart
from policy.model_spec import ModelSpec
from policy.modes import Hardware
from policy.parallel import BRANCHES, Degrees, guides_by_default, most_parts, unsplit_context
from policy.spec_tables import Residency
from policy.weights import shared

_COUNTS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Degrees, and why."""

    degrees: Degrees
    reason: str


def choose_sharing(
    mode: str,
    spec: ModelSpec,
    hardware: Hardware,
    sizes: Residency,
    given: Mapping[str, int],
    *,
    adaptive: bool,
    splits: bool,
) -> Sharing | None:
    """Derives the degrees of a worker; None: nothing is to be derived, or no number of GPUs is enough.

    Args:
        mode: The performance mode.
        spec: The model.
        hardware: The GPUs.
        sizes: What its weights need once loaded.
        given: The degrees that somebody set, by option.
        adaptive: Whether a threshold decides which steps are reused: the two branches of guidance then
            cannot be on different GPUs.
        splits: Whether the attention kernel allows the tokens to be.
    """
    if mode not in ("auto", "speed") or hardware.device != "cuda" or "fsdp" in given:
        return None
    if sizes.weights_gb + sizes.working_gb <= hardware.free_memory_gb:
        return None
    count = _count(spec, hardware, sizes, given)
    degrees = None if count is None else _degrees(spec, count, given, adaptive=adaptive, splits=splits)
    if count is None or degrees is None:
        return None
    need = shared(spec, sizes, count)
    alone, free = apart(sizes.weights_gb + sizes.working_gb, hardware.free_memory_gb)
    reason = (
        f"{mode} mode: weights and working room need {alone} GB, "
        f"{free} GB are free on one GPU, and shared by {count} it is "
        f"{need.weights_gb + need.working_gb:.1f} GB on each"
    )
    return Sharing(degrees, reason)


def _count(spec: ModelSpec, hardware: Hardware, sizes: Residency, given: Mapping[str, int]) -> int | None:
    """The fewest GPUs on which it fits."""
    threshold = sizes.fsdp_min_available_gb
    if threshold is None:
        return None
    sharing = given.get("cfg_parallel", 1) * given.get("context_parallel", 1)
    counts = (sharing,) if sharing > 1 else _COUNTS
    spare = threshold - _need(spec, sizes, _COUNTS[0])
    fitting = (n for n in counts if _need(spec, sizes, n) + spare <= hardware.least_free_gb)
    return next((n for n in fitting if n <= hardware.count), None)


def _need(spec: ModelSpec, sizes: Residency, count: int) -> float:
    need = shared(spec, sizes, count)
    return need.weights_gb + need.working_gb


def _degrees(
    spec: ModelSpec, count: int, given: Mapping[str, int], *, adaptive: bool, splits: bool
) -> Degrees | None:
    """All ranks are given work; None: there is no way to. A degree that somebody set stays."""
    if given:
        return Degrees(given.get("cfg_parallel", 1), given.get("context_parallel", 1), count)
    branches = BRANCHES if guides_by_default(spec) and not adaptive else 1
    for cfg in dict.fromkeys((branches, 1)):
        context = count // cfg
        splittable = splits and unsplit_context(spec) is None and context <= most_parts(spec)
        if context == 1 or splittable:
            return Degrees(cfg, context, count)
    return None
