"""Which plans may share a pass, and who is taken along of those that wait."""

from typing import Any

import pytest

from policy.microbatch import Likeness, Sizes, Waiting, choose_mates, largest, one_pass, takes_along, worst
from policy.plan import RenderPlan
from tests.fixtures.models import over_picture
from tests.policy.parts import FLUX, QWEN, TINY, planned

HIGH, NORMAL, LOW = 0, 3, 6
LEADER = planned(prompt="a house", seed=1)
UNLIKE = planned(prompt="a house", num_inference_steps=12)


def waiting(name: str, rank: int = NORMAL, plan: RenderPlan | None = LEADER, **others: Any) -> Waiting:
    return Waiting(name, rank, **{"tried": False, "attempts": 3, **others}, plan=plan)


def chosen(*jobs: Waiting, most: int = 16, idle: int = 0) -> list[str]:
    return mates(*jobs, sizes=Sizes(mixed=tuple(range(2, most + 1))), idle=idle)


def mates(*jobs: Waiting, sizes: Sizes, idle: int = 0) -> list[str]:
    return list(choose_mates(LEADER, jobs, sizes, idle).ids)


def test_jobs_that_differ_in_what_is_their_own_share_a_pass() -> None:
    other = planned(prompt="a boat", seed=9, output_format="webp", priority="low")
    assert one_pass(LEADER, other)


@pytest.mark.parametrize(
    "fields",
    [
        {"width": 512},
        {"height": 512},
        {"num_inference_steps": 12},
        {"guidance_scale": 2.0},
        {"cache": "off"},
        {"cache": {"fn": 2}},
        {"quality": "high"},
        {"n": 2},
    ],
)
def test_jobs_that_differ_in_what_is_one_value_for_the_pass_do_not(fields: dict[str, Any]) -> None:
    first, other = planned(FLUX), planned(FLUX, **fields)
    assert one_pass(first, first)
    assert not one_pass(first, other)
    assert not one_pass(other, first)


def test_a_negative_prompt_is_each_jobs_own_but_not_whether_there_is_one() -> None:
    first, other = planned(QWEN, negative_prompt="blur"), planned(QWEN, negative_prompt="noise")
    assert one_pass(first, other)
    assert not one_pass(first, first.model_copy(update={"negative_prompt": None}))


def test_jobs_of_other_models_loras_or_with_pictures_do_not() -> None:
    from PIL import Image

    drawn = over_picture(LEADER, Image.new("RGB", (64, 64)))
    assert not one_pass(LEADER, planned(FLUX))
    assert not one_pass(drawn, drawn)
    assert not one_pass(LEADER, LEADER.model_copy(update={"lora": (("sketch", 1.0),)}))


def test_mates_are_taken_in_the_order_in_which_they_wait() -> None:
    jobs = [waiting("a", HIGH), waiting("b"), waiting("c"), waiting("d", LOW)]
    assert chosen(*jobs) == ["a", "b", "c", "d"]
    assert chosen(*jobs, most=3) == ["a", "b"]
    assert chosen() == []


def test_none_is_taken_past_a_job_of_a_higher_priority_that_has_to_wait() -> None:
    jobs = [waiting("high", HIGH, UNLIKE), waiting("too high", HIGH), waiting("normal"), waiting("low", LOW)]
    assert chosen(*jobs) == ["too high"]
    jobs = [waiting("a"), waiting("normal", NORMAL, UNLIKE), waiting("b"), waiting("low", LOW)]
    assert chosen(*jobs) == ["a", "b"]


@pytest.mark.parametrize("other", [{"tried": True}, {"attempts": 1}, {"plan": None}])
def test_a_job_that_must_be_alone_is_left_and_holds_its_place(other: dict[str, Any]) -> None:
    assert chosen(waiting("it", **other), waiting("a"), waiting("low", LOW)) == ["a"]


def test_workers_that_have_nothing_to_do_are_left_their_share() -> None:
    jobs = [waiting(str(number)) for number in range(5)]
    assert chosen(*jobs, idle=1) == ["0", "1"]
    assert chosen(*jobs, idle=5) == []
    assert chosen(*jobs, idle=0) == ["0", "1", "2", "3", "4"]


def test_a_pass_has_a_size_that_was_looked_at() -> None:
    jobs = [waiting(str(number)) for number in range(5)]
    assert mates(*jobs, sizes=Sizes(mixed=(2, 4))) == ["0", "1", "2"]
    assert mates(*jobs[:1], sizes=Sizes(mixed=(3, 4))) == []
    assert mates(*jobs, sizes=Sizes()) == []
    assert [largest([2, 4], most) for most in (1, 3, 9)] == [1, 2, 4]
    chosen = choose_mates(LEADER, jobs, Sizes(mixed=(2, 4)), 0)
    assert [chosen.fit(free) for free in (0, 1, 2, 3)] == [0, 1, 1, 3], "others were faster"


def test_a_job_leads_in_its_first_attempt_and_when_it_has_another() -> None:
    assert takes_along(LEADER, 1, 3)
    assert not takes_along(LEADER, 2, 3)
    assert not takes_along(LEADER, 1, 1)
    assert not takes_along(planned(n=2), 1, 3)


def test_where_the_length_of_a_prompt_matters_those_of_the_same_prompt_share() -> None:
    other = planned(prompt="another house")
    jobs = [waiting("a"), waiting("b", plan=other), waiting("c"), waiting("d", LOW)]
    assert mates(*jobs, sizes=Sizes(alike=(2, 3, 4))) == ["a", "c"]
    assert mates(*jobs, sizes=Sizes(mixed=(2,), alike=(2, 3))) == ["a", "c"]
    assert mates(*jobs, sizes=Sizes(mixed=(2, 4), alike=(2, 3))) == ["a", "b", "c"]


def test_the_pictures_of_one_job_have_one_prompt() -> None:
    assert Sizes(mixed=(2,), alike=(3,)).of_one_job(8) == 3
    assert Sizes(mixed=(2,), alike=(3,)).of_one_job(2) == 2
    assert Sizes().of_one_job(8) == 1
    assert [bool(sizes) for sizes in (Sizes(), Sizes(mixed=(2,)), Sizes(alike=(2,)))] == [False, True, True]


def test_what_a_caller_asks_for_decides_about_company() -> None:
    assert TINY.id == LEADER.model
    assert [Likeness.CLOSE.serves(quality) for quality in ("lossless", "high")] == [False, True]


def test_several_passes_are_as_alike_as_the_worst_of_them() -> None:
    exact, close, other = Likeness
    assert worst([exact, close, exact]) == close
    assert worst([close, other, None]) == other
    assert worst([exact, None]) == exact
    assert worst([None]) is None
