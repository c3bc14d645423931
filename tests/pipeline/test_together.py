"""Passes of several pictures: what the warm-up finds out, and that each picture is the one it is alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.distance import measure_distance
from pipeline.engine import Engine
from pipeline.errors import NotFinite, OutOfMemory, Stopped
from pipeline.interruption import Interruption
from pipeline.loaded import Loaded
from pipeline.render import Drawn, Pass
from pipeline.rendering import Rendering
from pipeline.shapes import Shape
from pipeline.together import CLOSE_DB, Compared, Found, look, warm
from policy.job_cache import CacheKnobs
from policy.microbatch import Likeness, Sizes
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from tests.fixtures.models import GraphCounter, pixels, planned, resolved

PROMPTS = ("a house", "a red boat on the sea by night", "a green tree in the snow")
EXACT, CLOSE, OTHER = Likeness

#: What is the same for a job whoever is drawn beside it.
REPEATED = ("cache", "cached_steps", "masks", "steps", "compiled", "attention")

DrawOne = Callable[[RenderPlan, Sequence[RenderPlan]], np.ndarray]


def found(tiny_spec: ModelSpec, draw_one: DrawOne, most: int = 4) -> Found:
    """What is found of passes that draw each picture so; the function gets its plan and those of its pass."""

    def draw(plans: Sequence[RenderPlan]) -> Pass:
        values = [draw_one(plan, plans) for plan in plans]
        drawn = (Drawn((each * 255).round().astype(np.uint8), each, None) for each in values)
        return Pass(tuple(drawn), {})

    return look(draw, planned(tiny_spec), PROMPTS, most)


def noise(plan: RenderPlan) -> np.ndarray:
    return np.random.default_rng([plan.seed, len(plan.prompt)]).random((8, 8, 3))


def likenesses(found: Found) -> dict[int, Likeness]:
    return {size: compared.likeness for size, compared in found.mixed.items()}


def test_pictures_that_their_mates_do_not_change_are_exact(tiny_spec: ModelSpec) -> None:
    exact = found(tiny_spec, lambda plan, _: noise(plan))
    assert likenesses(exact) == {2: EXACT, 3: EXACT, 4: EXACT}
    assert exact.alike == {}, "one prompt needs no look of its own then"
    assert exact.sizes("lossless") == exact.sizes("high") == Sizes((2, 3, 4), (2, 3, 4))
    assert exact.in_words() == {"2": "exact", "3": "exact", "4": "exact"}


def test_one_bit_that_rounding_hides_is_not_exact(tiny_spec: ModelSpec) -> None:
    def draw_one(plan: RenderPlan, mates: Sequence[RenderPlan]) -> np.ndarray:
        values = noise(plan)
        return np.nextafter(values, 1.0) if len(mates) == 3 and plan.seed == 1 else values

    close = found(tiny_spec, draw_one)
    assert likenesses(close) == {2: EXACT, 3: CLOSE, 4: EXACT}
    assert close.sizes("lossless") == Sizes((2, 4), (2, 4))
    assert close.sizes("high") == Sizes((2, 3, 4), (2, 3, 4))
    assert close.in_words()["3"] == "close, equal pixels; of one prompt: close, equal pixels"


def test_pictures_that_change_in_sight_are_shared_by_nobody(tiny_spec: ModelSpec) -> None:
    other = found(tiny_spec, lambda _, mates: noise(mates[0]))
    assert set(likenesses(other).values()) == {OTHER}
    assert not other.sizes("high")
    assert other.drawn == ()


def test_pictures_of_one_prompt_may_be_exact_where_others_are_not(tiny_spec: ModelSpec) -> None:
    def padded(plan: RenderPlan, mates: Sequence[RenderPlan]) -> np.ndarray:
        longest = max(len(mate.prompt) for mate in mates)
        return np.clip(noise(plan) + 1e-7 * (longest - len(plan.prompt)), 0, 1)

    mixed = found(tiny_spec, padded)
    assert mixed.sizes("lossless") == Sizes((), (2, 3, 4))
    assert mixed.sizes("high") == Sizes((2, 3, 4), (2, 3, 4))
    assert [mixed.likeness(2, alike=alike) for alike in (False, True)] == [CLOSE, EXACT]


def test_a_pass_that_does_not_fit_ends_the_look_and_is_not_drawn_again(tiny_spec: ModelSpec) -> None:
    sizes: list[int] = []

    def draw_one(plan: RenderPlan, mates: Sequence[RenderPlan]) -> np.ndarray:
        sizes.append(len(mates))
        if len(mates) > 2:
            raise OutOfMemory("too big")
        return noise(plan)

    full = found(tiny_spec, draw_one, most=6)
    assert likenesses(full) == {2: EXACT, 3: OTHER, 4: OTHER, 5: OTHER, 6: OTHER}
    assert max(sizes) == 3
    assert full.in_words()["6"].startswith("not enough memory")
    full.forbid(2)
    assert not full.sizes("lossless")


def test_a_pass_that_cannot_be_drawn_leaves_the_others(tiny_spec: ModelSpec) -> None:
    def draw_one(plan: RenderPlan, mates: Sequence[RenderPlan]) -> np.ndarray:
        if len(mates) == 3:
            raise TypeError("takes no list\nof three")
        return noise(plan)

    some = found(tiny_spec, draw_one)
    assert some.sizes("lossless") == Sizes((2, 4), (2, 4))
    assert some.in_words()["3"].startswith("cannot be drawn: TypeError: takes no list of three")


def test_single_pictures_are_compared_as_they_are_once_every_pass_is_warm(tiny_spec: ModelSpec) -> None:
    """A pass may leave code behind that single pictures run from then on, and so may one of another size."""
    drawn: list[int] = []

    def draw(plans: Sequence[RenderPlan]) -> Pass:
        drawn.append(len(plans))
        if len(plans) == 3:
            raise TypeError("takes no list of three")
        values = [noise(plan) * (0.5 if max(drawn) < 4 else 1) for plan in plans]
        return Pass(tuple(Drawn((each * 255).astype(np.uint8), each, None) for each in values), {})

    unfit = warm(draw, planned(tiny_spec), PROMPTS, 4)
    assert drawn == [2, 3, 4]
    looked = look(draw, planned(tiny_spec), PROMPTS, 4, warmed=unfit)
    assert drawn[3:] == [1, 1, 2, 1, 1, 4, 2, 3, 4, 1, 1, 2, 1, 1, 4], (
        "what cannot be drawn is not tried again"
    )
    assert likenesses(looked) == {2: EXACT, 3: OTHER, 4: EXACT}


@pytest.mark.parametrize(("off", "likeness"), [(0.004, CLOSE), (0.02, OTHER), (0.0, CLOSE)])
def test_close_passes_are_judged_by_the_largest_of_them_in_full(
    tiny_spec: ModelSpec, off: float, likeness: Likeness
) -> None:
    """After few steps they are at 60 dB; what differs grows with the steps that are run."""
    in_full: list[int] = []

    def draw(plans: Sequence[RenderPlan], off: float = 0.001) -> Pass:
        apart = 0.0 if len(plans) in (1, 2) else off
        values = [np.clip(noise(plan) * 0.5 + apart, 0, 1) for plan in plans]
        return Pass(tuple(Drawn((each * 255).astype(np.uint8), each, None) for each in values), {})

    def draw_in_full(plans: Sequence[RenderPlan]) -> Pass:
        in_full.append(len(plans))
        return draw(plans, off)

    judged = look(draw, planned(tiny_spec), PROMPTS, 4, in_full=draw_in_full)
    assert likenesses(judged) == {2: EXACT, 3: likeness, 4: likeness}
    assert bool(judged.sizes("high").mixed == (2, 3, 4)) == (likeness is CLOSE)
    assert in_full == [1, 1, 1, 1, 4] * (1 if likeness is CLOSE else 2), (
        "alike ones where others are not close"
    )
    assert judged.in_words()["3"].startswith(likeness)
    assert judged.sizes("lossless").mixed == (2,)


# --- the engine ---


def worst_db(one: Sequence[Rendering], other: Sequence[Rendering]) -> float:
    sides = [[np.asarray(each.pictures[0].image) for each in side] for side in (one, other)]
    if one[0].pictures[0].image is None:
        sides = [[each.pictures[0].frames for each in side] for side in (one, other)]  # type: ignore[misc]
    return measure_distance(*sides).worst_db or 200.0


def together(engine: Engine, plans: Sequence[RenderPlan]) -> list[Rendering]:
    drawn = engine.render_together(plans)
    assert all(isinstance(each, Rendering) for each in drawn)
    return drawn  # type: ignore[return-value]


@pytest.fixture(scope="module")
def engine(tiny_spec: ModelSpec, heavy_modules: None) -> Iterator[Engine]:
    engine = Engine(tiny_spec, resolved(tiny_spec, microbatch=3), device="cpu")
    engine.prepare()
    yield engine
    engine.close()


def three(spec: ModelSpec, **fields: Any) -> list[RenderPlan]:
    given = {"quality": "high", **fields}
    return [planned(spec, prompt=prompt, seed=seed, **given) for seed, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("fields", [{}, {"guidance_scale": 2.5}], ids=["plain", "guided"])
def test_each_picture_of_a_shared_pass_is_the_one_it_is_alone(engine: Engine, fields: dict[str, Any]) -> None:
    plans = three(engine.spec, **fields)
    assert engine.shared_sizes(plans[0]).mixed == (2, 3)
    alone = [engine.render(plan) for plan in plans]
    shared = together(engine, plans)
    assert worst_db(shared, alone) > 80
    assert min(worst_db([shared[0]], [other]) for other in alone[1:]) < 30, "the pictures are no test"
    for one, mate in zip(alone, shared, strict=True):
        told = mate.acceleration
        assert told["microbatch"] == 3
        assert told["likeness"] in (EXACT, CLOSE)
        assert [told[name] for name in REPEATED] == [one.acceleration[name] for name in REPEATED]
        assert (one.acceleration["microbatch"], one.acceleration["likeness"]) == (1, None)
        assert mate.pictures[0].seed == one.pictures[0].seed
    again = [engine.render(plan) for plan in plans]
    assert list(map(pixels, again)) == list(map(pixels, alone)), "a shared pass changed what came after"


def test_a_lossless_job_shares_only_what_was_found_exact(engine: Engine) -> None:
    plans = three(engine.spec, quality="lossless")
    detail = engine.preparation[-1].detail["shared_passes"]
    exact = tuple(int(size) for size, words in detail["64x64"].items() if words.startswith("exact"))  # type: ignore[index]
    assert engine.shared_sizes(plans[0]).mixed == exact
    drawn = engine.render(planned(engine.spec, n=3))
    one_by_one = [pixels(engine.render(planned(engine.spec, seed=7 + index))) for index in range(3)]
    assert [(each,) for each in pixels(drawn)] == one_by_one


def test_the_pictures_of_a_pass_are_decoded_one_by_one(engine: Engine, tiny_engine: Engine) -> None:
    assert engine.parts[0].vae.use_slicing
    assert not tiny_engine.parts[0].vae.use_slicing


def test_half_precision_is_exact_or_is_not_shared(tiny_spec: ModelSpec) -> None:
    """On a CPU with instructions for it, it is exact: each row of a product is summed in the same order."""
    engine = Engine(tiny_spec, resolved(tiny_spec, microbatch=3, dtype="bfloat16"), device="cpu")
    engine.prepare()
    plans = three(tiny_spec, quality="lossless", guidance_scale=2.5)
    sizes = engine.shared_sizes(plans[0])
    drawn = together(engine, plans[: max(sizes.mixed, default=2)])
    same = [pixels(mate) == pixels(engine.render(plan)) for mate, plan in zip(drawn, plans, strict=False)]
    engine.close()
    assert all(same) or not sizes


@pytest.mark.parametrize(
    "plan",
    [
        {"num_inference_steps": 2},
        {"cache": "off"},
        {"cache": CacheKnobs(fn=2)},
        {"cache": CacheKnobs(preset="fast", taylorseer=0)},
        {"image": None},
    ],
    ids=["never cached", "cache off", "more blocks", "another predictor", "picture"],
)
def test_what_the_warm_up_has_not_looked_at_is_not_shared(engine: Engine, plan: dict[str, Any]) -> None:
    from PIL import Image

    from tests.fixtures.models import over_picture

    made = planned(engine.spec, quality="high", **{name: value for name, value in plan.items() if value})
    if "image" in plan:
        made = over_picture(made, Image.new("RGB", (64, 64)))
    assert not engine.shared_sizes(made)


def test_another_mask_is_no_other_cache_setting(engine: Engine) -> None:
    assert engine.shared_sizes(planned(engine.spec, quality="high", cache="fast")).mixed == (2, 3)


def test_the_pictures_of_one_job_share_passes_too(engine: Engine) -> None:
    plan = planned(engine.spec, n=5, quality="high")
    seen: list[int] = []

    def on_step(step: int, steps: int) -> bool:
        assert steps == 5 * plan.executed_steps
        seen.append(step)
        return True

    drawn = engine.render(plan, on_step)
    steps = range(1, plan.executed_steps + 1)
    three_then_two = [3 * step for step in steps] + [3 * len(steps) + 2 * step for step in steps]
    assert seen == three_then_two
    assert [picture.seed for picture in drawn.pictures] == [7, 8, 9, 10, 11]
    assert [picture.index for picture in drawn.pictures] == [0, 1, 2, 3, 4]
    assert drawn.acceleration["microbatch"] == 3
    alone = engine.render(planned(engine.spec, seed=11, quality="high"))
    assert (
        measure_distance(
            [np.asarray(drawn.pictures[4].image)], [np.asarray(alone.pictures[0].image)]
        ).worst_db
        is None
        or drawn.acceleration["likeness"] == "close"
    )


def test_a_job_is_told_the_worst_likeness_of_its_passes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(engine.spec, n=5, quality="high", num_inference_steps=24)
    looked = engine._ready().warmer._together._found
    uneven = Found({2: Compared(CLOSE, "close"), 3: Compared(EXACT, "exact")})
    monkeypatch.setattr(engine._ready().warmer._together, "_found", dict.fromkeys(looked, uneven))
    told = engine.render(plan).acceleration
    assert (told["microbatch"], told["likeness"]) == (3, CLOSE), "passes of three and of two"


def test_one_picture_that_is_none_leaves_the_others(engine: Engine) -> None:
    plans = three(engine.spec)
    expected = together(engine, plans)
    scheduler: Any = engine.parts[0].scheduler
    step = scheduler.step

    def spoil(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        result[0][1] = torch.nan
        return result

    scheduler.step = spoil
    try:
        first, second, third = engine.render_together(plans)
    finally:
        del scheduler.step
    assert isinstance(second, NotFinite)
    assert isinstance(first, Rendering)
    assert isinstance(third, Rendering)
    assert [pixels(first), pixels(third)] == [pixels(expected[0]), pixels(expected[2])]


def test_a_shared_pass_stops_when_told_and_leaves_nothing_behind(engine: Engine) -> None:
    plans = three(engine.spec)
    expected = list(map(pixels, together(engine, plans)))
    with pytest.raises(Stopped):
        engine.render_together(plans, lambda step, _: step < 5)
    assert list(map(pixels, together(engine, plans))) == expected


def test_a_pass_that_is_too_large_is_not_drawn_again_and_the_job_comes_in_smaller_ones(
    tiny_spec: ModelSpec,
) -> None:
    engine = Engine(tiny_spec, resolved(tiny_spec, microbatch=3), device="cpu")
    engine.prepare()
    transformer: Any = engine.parts[0].transformer

    def limit(_module: object, args: Any, kwargs: Any) -> None:
        if len(kwargs["hidden_states"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = transformer.register_forward_pre_hook(limit, with_kwargs=True)
    plans = three(tiny_spec)
    with pytest.raises(OutOfMemory, match="64x64 for 3 pictures at once"):
        engine.render_together(plans)
    assert engine.shared_sizes(plans[0]).mixed == (2,)
    drawn = engine.render(planned(tiny_spec, n=3, quality="high"))
    handle.remove()
    assert len(drawn.pictures) == 3
    assert drawn.acceleration["microbatch"] == 2
    engine.close()


@pytest.mark.parametrize("model_id", ["qwen-image", "ltx-video"])
def test_families_draw_the_same_pictures_together(
    model_id: str, miniature_engine: Callable[..., Engine]
) -> None:
    engine = miniature_engine(model_id, microbatch=3)
    for scale in (1.0, 4.0):
        plans = three(engine.spec, guidance_scale=scale, num_inference_steps=12)
        assert engine.shared_sizes(plans[0]).mixed == (2, 3), engine.preparation[-1].detail
        alone = [engine.render(plan) for plan in plans]
        assert alone[0].acceleration["mounted"]
        assert worst_db(together(engine, plans), alone) >= CLOSE_DB


def test_a_compiled_worker_shares_passes_that_are_warm(tiny_spec: ModelSpec, fresh_compiler: None) -> None:
    passes: list[tuple[int, float]] = []

    class Noted(Loaded):
        def run(self, plans: Sequence[RenderPlan], *args: Any, **kwargs: Any) -> Pass:
            passes.append((len(plans), plans[0].guidance_scale))
            return super().run(plans, *args, **kwargs)

    class Noting(Engine):
        load_kind = Noted

    policy = resolved(tiny_spec, microbatch=2, compile=True)
    engine = Noting(tiny_spec, policy, device="cpu", backend=GraphCounter())
    engine.prepare()
    first = next(index for index, (size, _) in enumerate(passes) if size == 2)
    plain, guided = {scale for _, scale in passes}
    assert set(passes[first : first + 2]) == {(2, plain), (2, guided)}, "every pass is warmed first"
    pair = three(tiny_spec)[:2]
    assert engine.shapes.warm is not None
    assert {"64x64", "64x64 2 at once", "64x64 guided 2 at once"} <= set(engine.shapes.warm)
    assert engine.shared_sizes(pair[0]).mixed == (2,)
    told = together(engine, pair)[0].acceleration
    assert (told["compiled"], told["compiles"], told["warm_shape"]) == (True, 0, True)
    engine._ready().warmer._shapes.add_cold(Shape(64, 64, None, False, True, pictures=2), pair[0])
    assert not engine.shared_sizes(pair[0]), "a pass that is not warm is not formed"
    assert engine.warm_next(Interruption()) == "64x64 2 at once"
    assert engine.shared_sizes(pair[0]).mixed == (2,)
    engine.close()
