"""What to do with a failed attempt: a value, decided from the failure's code alone.

    code                                        verdict
    out_of_memory, output_not_finite,           once more, safer; then fail
    steps_mismatch
    storage_unavailable, *_unavailable          again after a pause that doubles, up to max_attempts
    device_lost, follower_lost                  again at once, up to max_attempts; the worker that met it is
                                                restarted first
    internal_error                              once more after a pause; then fail
    anything else                               fail at once: the same work would fail the same way

"Safer" means: the cache is taken off for the attempt, and what is compiled runs uncompiled. Model, dtype,
size and steps stay as they are.
"""

from dataclasses import dataclass
from typing import Literal

SAFER_ONCE = frozenset({"out_of_memory", "output_not_finite", "steps_mismatch"})
DEVICE_LOST = "device_lost"
RESTARTED = frozenset({DEVICE_LOST, "follower_lost"})
PASSING = "unavailable"  # the last word of the codes of what comes back by itself
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens next.

    Attributes:
        kind: retry (queued again, counted), fail (for good). A worker that stops asks nobody: its job is
            handed back, uncounted.
        delay_s: Not to be taken by a worker before that many seconds.
        safer: The next attempt runs without cache and uncompiled.
    """

    kind: Literal["retry", "fail"]
    delay_s: float = 0.0
    safer: bool = False


def classify(code: str, attempt: int, max_attempts: int, attempts_with_code: int) -> Verdict:
    """Decides about a failed attempt.

    Args:
        code: The failure's code.
        attempt: Number of the attempt that failed, from 1, counted ones only.
        max_attempts: Most counted attempts of this job.
        attempts_with_code: Earlier attempts of the job that failed with this code.
    """
    if attempt >= max_attempts:
        return Verdict("fail")
    if code in RESTARTED:
        return Verdict("retry")
    if code.endswith(PASSING):
        return Verdict("retry", _pause_s(attempts_with_code))
    if code in SAFER_ONCE and attempts_with_code == 0:
        return Verdict("retry", safer=True)
    if code == "internal_error" and attempts_with_code == 0:
        return Verdict("retry", FIRST_PAUSE_S)
    return Verdict("fail")


def _pause_s(earlier: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** min(earlier, 10), LONGEST_PAUSE_S)
