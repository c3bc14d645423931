"""What a leader makes of followers that end, fail or say nothing; no model is loaded."""

import os
import signal
from collections.abc import Iterator

import pytest

from pipeline import team as teams
from pipeline.errors import FollowerLost, OutOfMemory, PipelineError
from pipeline.team import Team
from tests.fixtures.waiting import wait_until

Told = list[tuple[str, str, bool]]


@pytest.fixture
def told() -> Told:
    """Code, words and whether stuck, of each time that the leader was told to give up."""
    return []


def lead(told: Told) -> Team:
    """A leader's team of one follower, which fails as soon as it looks at what it is to prepare."""

    def abandon(lost: PipelineError, *, stuck: bool) -> None:
        told.append((lost.code, lost.message, stuck))

    return Team(1, "no-model", {}, abandon)


@pytest.fixture
def team(told: Told) -> Iterator[Team]:
    made = lead(told)
    yield made
    made.close()


def test_a_follower_that_says_nothing_is_given_up_by_name(team: Team) -> None:
    os.kill(team.pids[0], signal.SIGSTOP)
    with pytest.raises(FollowerLost, match=r"rank 1 .* was not here after 0\.1 s"), team.working():
        team.expect("here", 0.1)
    assert team.lost
    os.kill(team.pids[0], signal.SIGKILL)


def test_a_failed_follower_tells_its_words_here_and_its_traceback_in_the_log(
    told: Told, capfd: pytest.CaptureFixture[str]
) -> None:
    team = lead(told)
    with pytest.raises(FollowerLost, match=r"rank 1 .*KeyError: 'spec'"), team.working():
        team.expect("here", 60)
    team.close()
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("stuck", [True, False])
def test_a_leader_is_told_whether_it_is_stuck_in_a_job(
    team: Team, told: Told, monkeypatch: pytest.MonkeyPatch, *, stuck: bool
) -> None:
    monkeypatch.setattr(teams, "GRACE_S", 0.1)
    if stuck:
        with team.working():
            wait_until(lambda: told, what="the end of the follower to be told")
    else:
        wait_until(lambda: told, what="the end of the follower to be told")
    ((code, words, was_stuck),) = told
    assert (code, was_stuck) == ("follower_lost", stuck)
    assert "KeyError: 'spec'" in words


def test_a_leader_whose_device_waits_for_ever_is_stuck_and_keeps_its_own_failure(
    team: Team, told: Told
) -> None:
    os.kill(team.pids[0], signal.SIGKILL)
    with pytest.raises(OutOfMemory), team.working(), team.leaving(lambda _: False):
        raise OutOfMemory("here alone")
    assert told[0] == ("out_of_memory", "here alone", True)
    assert team.lost
