"""Shapes that nobody declared: counted when they run uncompiled, warmed while idle, left at any moment."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from pipeline.compilation import compiler_state, compiles_so_far
from pipeline.engine import Engine
from pipeline.errors import CompilerUnsound
from pipeline.interruption import Interrupted, Interruption
from pipeline.miniature import spec_of
from pipeline.shapes import NOTHING_COMPILED, Shape, Shapes
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from tests.fixtures.models import GraphCounter, pixels, planned, resolved

pytestmark = pytest.mark.usefixtures("fresh_compiler")
STEPS = 8


class Door:
    """A compiler that does something when it is asked to compile, and else counts."""

    def __init__(self) -> None:
        self.count = GraphCounter()
        self.then: Callable[[], None] = lambda: None

    def __call__(self, graph: Any, inputs: object) -> Any:
        self.then()
        return self.count(graph, inputs)


@pytest.fixture(scope="module")
def door() -> Door:
    return Door()


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return spec_of(Catalogue.load().get_model("flux.1-dev"))


@pytest.fixture(scope="module")
def prepared(
    spec: ModelSpec, miniature_folder: Callable[[str], Path], door: Door, fresh_compiler: None
) -> Iterator[Engine]:
    policy = resolved(spec, compile=True, compile_dynamic="false")  # each shape is compiled on its own
    engine = Engine(spec, policy, source=str(miniature_folder("flux.1-dev")), device="cpu", backend=door)
    engine.prepare()
    yield engine
    engine.close()


@pytest.fixture
def engine(prepared: Engine) -> Engine:
    """The one engine, with no shape wanted; the sizes of each test have a number of tokens of their own."""
    prepared._ready().warmer._shapes._cold.clear()
    return prepared


@pytest.fixture(scope="module")
def expected(prepared: Engine, spec: ModelSpec) -> tuple[bytes, ...]:
    return pixels(prepared.render(planned(spec, num_inference_steps=STEPS)))


def ran(engine: Engine, **fields: Any) -> tuple[object, object, object]:
    told = engine.render(planned(engine.spec, num_inference_steps=STEPS, **fields)).acceleration
    return told["compiled"], told["warm_shape"], told["compiles"]


COLD, WARM = (False, False, 0), (True, True, 0)


def test_the_most_wanted_shape_is_warmed_first_and_runs_compiled_from_then_on(engine: Engine) -> None:
    assert ran(engine, width=96) == COLD
    assert [ran(engine, width=128) for _ in range(2)] == [COLD, COLD]
    assert engine.shapes.cold == {"96x64": 1, "128x64": 2}
    before = compiles_so_far()
    assert [engine.warm_next(Interruption()) for _ in range(3)] == ["128x64", "96x64", None]
    assert compiles_so_far() > before
    assert [ran(engine, width=width) for width in (64, 96, 128)] == [WARM] * 3
    assert (engine.shapes.cold, engine.wants_warm_up) == ({}, False)


def test_a_job_that_found_everything_compiled_makes_its_shape_warm(engine: Engine) -> None:
    """96x128 and 128x96 have as many tokens, so one compiled graph serves both."""
    assert ran(engine, width=96, height=128) == COLD
    assert ran(engine, width=128, height=96) == COLD
    engine.warm_next(Interruption())
    assert ran(engine, width=128, height=96) == WARM
    assert ran(engine, width=96, height=128) == WARM
    assert engine.shapes.cold == {}


class Strikes:
    """A signal that strikes."""

    def __init__(self) -> None:
        self.interruption = Interruption()
        signal.signal(signal.SIGUSR2, self._strike)

    def _strike(self, _number: int, frame: FrameType | None) -> None:
        self.interruption.strike(frame)

    def now(self) -> None:
        signal.raise_signal(signal.SIGUSR2)


@pytest.fixture
def strikes() -> Iterator[Strikes]:
    before = signal.getsignal(signal.SIGUSR2)
    yield Strikes()
    signal.signal(signal.SIGUSR2, before)


def test_a_strike_leaves_the_compiler_and_the_shape_stays_wanted(
    engine: Engine, door: Door, strikes: Strikes, expected: tuple[bytes, ...]
) -> None:
    assert ran(engine, width=112, height=112) == COLD
    door.then = strikes.now
    with pytest.raises(Interrupted):
        engine.warm_next(strikes.interruption)
    door.then = lambda: None
    assert engine.shapes.cold == {"112x112": 1}
    assert ran(engine) == WARM
    assert pixels(engine.render(planned(engine.spec, num_inference_steps=STEPS))) == expected
    assert engine.warm_next(Interruption()) == "112x112"
    assert ran(engine, width=112, height=112) == WARM


def test_what_swallows_a_strike_meets_that_the_pass_is_not_called_done(
    engine: Engine, door: Door, strikes: Strikes
) -> None:
    assert ran(engine, width=112, height=128) == COLD

    def swallow() -> None:
        with pytest.raises(Interrupted):
            strikes.now()
        raise RuntimeError("something else became of it")

    door.then = swallow
    with pytest.raises(Interrupted):
        engine.warm_next(strikes.interruption)
    door.then = lambda: None
    assert engine.shapes.cold == {"112x128": 1}
    assert engine.shapes.note is None
    engine.warm_next(Interruption())


def test_a_shape_that_cannot_be_warmed_is_told_of_and_not_tried_again(engine: Engine, door: Door) -> None:
    assert ran(engine, width=80, height=80) == COLD
    door.then = _refuse
    assert engine.warm_next(Interruption()) == "80x80"
    door.then = lambda: None
    assert "no such kernel" in str(engine.shapes.note)
    assert (engine.shapes.cold, engine.wants_warm_up) == ({"80x80": 1}, False)
    assert ran(engine, width=80, height=80) == COLD


def _refuse() -> None:
    raise RuntimeError("no such kernel")


def test_a_shape_that_does_not_fit_into_memory_is_given_up_and_leaves_the_engine_useful(
    engine: Engine, door: Door, expected: tuple[bytes, ...]
) -> None:
    assert ran(engine, width=80, height=112) == COLD
    assert engine.effective()["cache"] != [None]
    door.then = lambda: torch.empty(1 << 60) and None
    engine.warm_next(Interruption())
    door.then = lambda: None
    assert "80x112: not enough memory to warm 80x112" in str(engine.shapes.note)
    assert engine.effective()["cache"] == [None], "what it held is given back"
    assert pixels(engine.render(planned(engine.spec, num_inference_steps=STEPS))) == expected


def test_a_compiler_that_does_not_come_to_rest_is_told_of(engine: Engine, door: Door) -> None:
    assert ran(engine, width=80, height=96) == COLD
    at_rest, left = compiler_state(), torch.inference_mode()

    def spoil() -> None:
        left.__enter__()  # type: ignore[no-untyped-call]
        raise Interrupted

    door.then = spoil
    with pytest.raises(CompilerUnsound, match="not at rest"):
        engine.warm_next(Interruption())
    door.then = lambda: None
    left.__exit__(None, None, None)
    torch.set_grad_enabled(True)
    assert compiler_state() == at_rest


def test_a_function_out_of_variants_is_told_of_instead_of_running_uncompiled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ran(engine, width=48, height=48) == COLD
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    engine.warm_next(Interruption())
    monkeypatch.undo()
    assert "48x48" in str(engine.shapes.note)
    assert "limit" in str(engine.shapes.note)
    assert ran(engine, width=48, height=48) == COLD


def test_where_nothing_is_compiled_no_shape_is_cold(tiny_engine: Engine) -> None:
    report = tiny_engine.shapes
    assert (report.warm, report.cold, report.note) == (None, None, NOTHING_COMPILED)
    assert not tiny_engine.wants_warm_up
    assert tiny_engine.warm_next(Interruption()) is None


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(64, 96, None, guided=False, cached=True), "64x96"),
        (Shape(64, 96, None, guided=True, cached=True), "64x96 guided"),
        (Shape(704, 480, 97, guided=True, cached=False), "704x480x97 guided uncached"),
    ],
)
def test_a_shape_has_words(shape: Shape, words: str) -> None:
    assert str(shape) == words


def test_the_least_wanted_of_too_many_shapes_is_forgotten(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.shapes.MOST_COLD", 2)
    shapes, plan = Shapes(matter=True), planned(spec)
    first, second, third = (Shape(side, side, None, guided=False, cached=True) for side in (64, 80, 96))
    for shape in (first, first, second, third):
        shapes.add_cold(shape, plan)
    assert shapes.report().cold == {"64x64": 2, "96x96": 1}


def test_a_usual_request_that_ran_compiled_says_nothing_of_an_odd_one_that_did_not(spec: ModelSpec) -> None:
    shapes, shape = Shapes(matter=True), Shape(64, 64, None, guided=False, cached=True)
    usual, odd = planned(spec, prompt="a house"), planned(spec, prompt="a house by the sea at night")
    shapes.add_cold(shape, odd)
    shapes.add_warm(shape, usual)
    assert shapes.most_wanted() == (shape, odd)
    assert shape in shapes
    shapes.add_warm(shape, odd.model_copy(update={"seed": 5, "n": 2}))
    assert shapes.most_wanted() is None


# --- the moment of a strike ---


def test_a_strike_raises_only_while_something_runs(strikes: Strikes) -> None:
    strikes.now()
    with pytest.raises(Interrupted):  # it came before
        strikes.interruption.run(lambda: None)
    strikes.now()
    assert strikes.interruption.struck


def test_a_strike_waits_while_something_is_tidied_up(strikes: Strikes) -> None:
    done: list[str] = []

    class Tidying:
        def __enter__(self) -> None:
            strikes.now()
            done.append("entered")

        def __exit__(self, *_: object) -> None:
            strikes.now()
            done.append("left")

    def work() -> None:
        try:
            with Tidying():
                done.append("worked")
        finally:
            strikes.now()
            done.append("tidied")
        strikes.now()
        done.append("never")

    with pytest.raises(Interrupted):
        strikes.interruption.run(work)
    assert done == ["entered", "worked", "left", "tidied"]


def test_a_strike_is_not_repeated_while_it_is_on_its_way(strikes: Strikes) -> None:
    def work() -> None:
        try:
            strikes.now()
        except Interrupted:
            strikes.now()
            raise

    with pytest.raises(Interrupted):
        strikes.interruption.run(work)
