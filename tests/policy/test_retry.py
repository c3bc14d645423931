"""What happens after a failed attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.retry import LONGEST_PAUSE_S, Verdict, classify


@pytest.mark.parametrize("code", ["out_of_memory", "output_not_finite", "steps_mismatch"])
def test_what_the_acceleration_may_have_caused_is_tried_once_more_without_it(code: str) -> None:
    assert classify(code, 1, 3, 0) == Verdict("retry", safer=True)
    assert classify(code, 2, 3, 1).kind == "fail"


@pytest.mark.parametrize(
    "code", ["storage_unavailable", "artifact_store_unavailable", "database_unavailable"]
)
def test_what_passes_by_itself_is_tried_again_after_longer_and_longer_pauses(code: str) -> None:
    pauses = [classify(code, attempt, 9, attempt - 1).delay_s for attempt in range(1, 9)]
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert classify(code, 9, 9, 8).kind == "fail"


@pytest.mark.parametrize(
    "code",
    ["weights_missing", "load_failed", "unsupported", "cache_mount_failed", "run_timeout", "never heard of"],
)
def test_what_would_fail_the_same_way_fails_at_once(code: str) -> None:
    assert classify(code, 1, 3, 0) == Verdict("fail")


def test_a_job_whose_device_was_lost_goes_to_another_at_once_until_its_attempts_are_used() -> None:
    assert classify("device_lost", 1, 3, 0) == classify("device_lost", 2, 3, 1) == Verdict("retry")
    assert classify("device_lost", 3, 3, 2).kind == "fail"


def test_an_error_nobody_expected_is_tried_once_more() -> None:
    assert classify("internal_error", 1, 3, 0) == Verdict("retry", 5.0)
    assert classify("internal_error", 2, 3, 1).kind == "fail"


codes = st.sampled_from(["out_of_memory", "storage_unavailable", "internal_error", "load_failed"])


@given(codes, st.integers(1, 10), st.integers(1, 10), st.integers(0, 10**6))
def test_no_job_is_retried_beyond_its_attempts_or_put_off_for_ever(
    code: str, attempt: int, max_attempts: int, earlier: int
) -> None:
    verdict = classify(code, attempt, max_attempts, earlier)
    assert 0 <= verdict.delay_s <= LONGEST_PAUSE_S
    assert verdict.kind == "fail" or attempt < max_attempts
