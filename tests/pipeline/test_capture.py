"""Recording and replaying, with a recorder that runs the work again where a GPU would replay a graph.

Like a graph, it reads its inputs from the buffers and leaves its result at one and the same place.
`tests/gpu` records real CUDA graphs.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.acceleration import Acceleration
from pipeline.boundary import transformers_of
from pipeline.capture import Graphs, Replay
from pipeline.compilation import CompilePlan
from pipeline.engine import Engine
from pipeline.errors import WarmupIncomplete
from pipeline.loaded import Loaded
from policy.cache import CacheDecision
from policy.model_spec import ModelSpec
from tests.fixtures.models import pixels, planned, resolved
from tests.pipeline.test_offload import load
from tests.pipeline.test_streaming import draw

OFF = CacheDecision(None, None, "for a test")


class Rerun:
    """Records by keeping the work, and counts."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], Any]) -> Replay:
        self.recorded += 1
        result = work()

        def replay() -> Any:
            self.replayed += 1
            for old, new in zip(result, work(), strict=True):
                old.copy_(new)
            return result

        return replay


def refuse(_work: Callable[[], Any]) -> Replay:
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


class Double(nn.Module):
    """Stands for a transformer; counts how often it is really run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: torch.Tensor, *, times: float = 2.0, extra: object = 1) -> tuple[torch.Tensor, ...]:
        self.runs += 1
        return (x * times * bool(extra),)


def recorded(*calls: Any, record: Any = None) -> tuple[Double, Graphs]:
    module, graphs = Double(), Graphs(record or Rerun())
    graphs.install([module])
    with graphs.recording():
        for call in calls:
            module(call)
    graphs.start_pass()
    return module, graphs


ONES = torch.ones(2, 3)


def test_a_shape_of_the_warm_up_is_replayed_and_any_other_runs_as_usual() -> None:
    module, graphs = recorded(ONES, torch.ones(4))
    assert graphs.count == 2
    for given in (ONES * 5, torch.ones(4) * 7, ONES):
        assert torch.equal(module(given)[0], given * 2)
    assert (graphs.replayed, graphs.plain) == (3, 0)
    for given in (torch.ones(5), ONES.double()):
        assert torch.equal(module(given)[0], given * 2)
    assert torch.equal(module(ONES, times=3.0)[0], ONES * 3)
    with graphs.recording():  # of two objects there is no telling whether they mean the same
        assert torch.equal(module(ONES, extra=object())[0], ONES * 2)
    assert (graphs.replayed, graphs.plain, graphs.count) == (3, 4, 2)


def test_a_number_on_the_host_is_part_of_what_was_recorded() -> None:
    """A graph has it as an argument of its kernels, which no buffer changes."""
    module, graphs = Double(), Graphs(Rerun())
    graphs.install([module])
    with graphs.recording():
        module(ONES, times=torch.tensor(2.0))
    graphs.start_pass()
    assert torch.equal(module(ONES, times=torch.tensor(2.0))[0], ONES * 2)
    assert torch.equal(module(ONES, times=torch.tensor(3.0))[0], ONES * 3)
    assert (graphs.replayed, graphs.plain) == (1, 1)


class Remembering(nn.Module):
    """Keeps a table for each size in a cache of its own, from which the oldest drop out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.tables: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        table = self.tables.setdefault(len(x), torch.arange(float(len(x)))[:, None])
        return (x * self.weight + table[:, :1].sqrt(),)


def test_what_a_transformer_remembers_is_kept_for_as_long_as_a_recording_reads_it() -> None:
    module, graphs = Remembering(), Graphs(Rerun())
    graphs.install([module])
    with graphs.recording(), torch.inference_mode():
        module(ONES)
    (recorded,) = graphs._installed[module].shapes.values()
    assert recorded is not None
    kept = [tensor.data_ptr() for tensor in recorded.kept]
    assert kept == [module.tables[2].data_ptr()], "and neither weights nor what it makes on its way"
    table = weakref.ref(module.tables[2])
    del recorded
    module.tables.clear()
    gc.collect()
    assert table() is not None
    graphs.release()
    gc.collect()
    assert table() is None


def test_what_is_returned_does_not_change_with_the_next_replay() -> None:
    module, _graphs = recorded(ONES)
    first = module(ONES)[0]
    second = module(ONES * 10)[0]
    assert torch.equal(first, ONES * 2)
    assert torch.equal(second, ONES * 20)
    assert first.data_ptr() != second.data_ptr()


def test_inputs_are_copied_so_that_the_callers_may_change_or_go() -> None:
    module, _graphs = recorded(given := ONES.clone())
    given.zero_()
    assert torch.equal(module(ONES)[0], ONES * 2)
    assert not given.any()  # nor does a replay write to them


def test_nothing_is_recorded_while_serving_and_nothing_replayed_while_paused() -> None:
    module, graphs = recorded(ONES)
    module(torch.ones(9))
    assert graphs.count == 1
    with graphs.paused():
        module(ONES)
    assert (graphs.replayed, graphs.plain) == (0, 2)


def test_work_that_cannot_be_recorded_runs_as_usual_and_is_tried_once() -> None:
    module, graphs = recorded(ONES, ONES, record=refuse)
    assert graphs.failures == ["operation not permitted when stream is capturing"]
    assert torch.equal(module(ONES)[0], ONES * 2)
    assert (graphs.replayed, graphs.plain, graphs.count) == (0, 1, 0)


def test_release_gives_the_module_its_own_forward_back() -> None:
    module, graphs = recorded(ONES)
    graphs.install([module])
    assert "forward" in vars(module)
    graphs.release()
    assert "forward" not in vars(module)
    assert graphs.count == 0


def accelerated(pipe: Any, spec: ModelSpec, record: Any) -> Acceleration:
    plan = CompilePlan(wanted=False, capture=True)
    return Acceleration(
        lambda: transformers_of(pipe, spec), plan, cache_wanted=False, pipeline=pipe, record=record
    )


def test_the_tiny_model_draws_the_same_from_recordings(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec)
    expected = draw(pipe, tiny_spec)
    acceleration = accelerated(pipe, tiny_spec, recorder := Rerun())
    assert np.array_equal(warm_up(acceleration, pipe, tiny_spec), expected)
    assert recorder.recorded == acceleration.effective()["graphs"] == 1
    for _ in range(2):
        acceleration.prepare_for(OFF)
        assert np.array_equal(draw(pipe, tiny_spec), expected)
        assert acceleration.is_replayed
    with acceleration.plain():
        acceleration.prepare_for(OFF)
        assert np.array_equal(draw(pipe, tiny_spec), expected)
        assert not acceleration.is_replayed
    acceleration.release()
    assert "forward" not in vars(pipe.transformer)


def test_a_worker_that_could_record_nothing_is_not_ready(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec)
    acceleration = accelerated(pipe, tiny_spec, refuse)
    with pytest.raises(WarmupIncomplete, match="--no-capture: operation not permitted"):
        warm_up(acceleration, pipe, tiny_spec)


def warm_up(acceleration: Acceleration, pipe: Any, spec: ModelSpec) -> np.ndarray:
    with acceleration.recording():
        acceleration.prepare_for(OFF)
        return draw(pipe, spec)


class Recording(Loaded):
    """A model as `--capture` has it loaded, with our recorder in the place of the GPU's."""

    recorder = Rerun()

    def _accelerate(self, _: object) -> Acceleration:
        return accelerated(self.pipe, self.spec, self.recorder)


class RecordingEngine(Engine):
    load_kind = Recording


def test_an_engine_records_in_its_warm_up_and_replays_for_its_jobs(
    tiny_spec: ModelSpec, tiny_engine: Engine
) -> None:
    engine = RecordingEngine(tiny_spec, resolved(tiny_spec, cache=False), device="cpu")
    engine.prepare()
    recorded = Recording.recorder.recorded
    assert recorded == engine.effective()["graphs"] > 0
    plain = planned(tiny_spec, cache="off", num_inference_steps=6)
    for fields in ({}, {"guidance_scale": 3.0}, {"seed": 9}):
        plan = plain.model_copy(update=fields)
        done = engine.render(plan)
        assert (done.acceleration["replayed"], done.acceleration["attention"]) == (True, "auto")
        assert pixels(done) == pixels(tiny_engine.render(plan))
    assert engine.render(plain, safer=True).acceleration["replayed"] is False
    assert engine.render(plain).acceleration["replayed"] is True
    assert Recording.recorder.recorded == recorded
    assert tiny_engine.render(plain).acceleration["replayed"] is False
    engine.close()
