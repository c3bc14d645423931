"""The engine: preparation as it is reported, pictures, progress, stopping, records, letting go."""

import hashlib
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
import torch

from pipeline.engine import Engine
from pipeline.errors import LoadFailed, NotFinite, OutOfMemory, Stopped, WarmupIncomplete, WeightsMissing
from pipeline.memory import device_is_sound
from pipeline.render import _check_latents
from policy.model_spec import ModelSpec
from tests.fixtures.models import PROMPT, pixels, planned, resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.rendering import PreparationStep


def test_preparation_is_reported_step_by_step_while_it_runs(tiny_spec: ModelSpec) -> None:
    reported: list[PreparationStep] = []
    engine = Engine(tiny_spec, resolved(tiny_spec), device="cpu", report=reported.append)
    done = engine.prepare()
    assert [(step.name, step.state) for step in reported] == [
        (name, state) for name in ("load", "mount", "compile", "warmup") for state in ("started", "done")
    ]
    assert done == [step for step in reported if step.state == "done"] == engine.preparation
    assert all(step.seconds is not None and step.seconds >= 0 for step in done)
    load, mount, compiled, warm = (step.detail for step in done)
    expected = {"device": "cpu", "dtype": "float32", "offload": "none", "quantize": "none"}
    assert load == {**expected, "loras": ["mono"]}
    assert mount["mounted"] is True
    assert mount["cache"] == "balanced"
    assert compiled["compiled"] is False
    assert "--compile" in str(compiled["reason"])
    assert warm["sizes"] == ["64x64"]
    assert warm["cached_steps"] == [[1], [1]]  # without guidance and with
    engine.close()


def test_a_picture_of_n_equals_a_job_of_its_own(tiny_engine: Engine) -> None:
    spec = tiny_engine.spec
    both = tiny_engine.render(planned(spec, n=2, seed=40))
    second = tiny_engine.render(planned(spec, seed=41))
    assert [(picture.index, picture.seed) for picture in both.pictures] == [(0, 40), (1, 41)]
    assert pixels(both)[1:] == pixels(second)
    assert pixels(both)[0] != pixels(both)[1]


def test_the_prompt_the_negative_prompt_guidance_and_steps_count(tiny_engine: Engine) -> None:
    spec = tiny_engine.spec
    plans = [
        planned(spec),
        planned(spec, prompt="a boat with a yellow sail on the sea"),
        planned(spec, guidance_scale=3.0),
        planned(spec, guidance_scale=3.0, negative_prompt="a tree"),
        planned(spec, num_inference_steps=12),
    ]
    assert len({pixels(tiny_engine.render(plan)) for plan in plans}) == len(plans)


def test_every_step_is_reported_over_all_pictures(tiny_engine: Engine) -> None:
    steps: list[tuple[int, int]] = []

    def note(done: int, total: int) -> bool:
        steps.append((done, total))
        return True

    tiny_engine.render(planned(tiny_engine.spec, n=2, num_inference_steps=6), note)
    assert steps == [(done, 12) for done in range(1, 13)]


def test_a_job_stops_after_the_step_at_which_it_is_told(tiny_engine: Engine) -> None:
    seen = []

    def stop_at_9(done: int, _total: int) -> bool:
        seen.append(done)
        return done < 9

    with pytest.raises(Stopped) as stopped:
        tiny_engine.render(planned(tiny_engine.spec, n=2, num_inference_steps=6), stop_at_9)
    assert stopped.value.step == 9
    assert seen == list(range(1, 10))


def test_times_add_up_and_the_record_says_what_ran(tiny_engine: Engine) -> None:
    rendering = tiny_engine.render(planned(tiny_engine.spec, n=2))
    times = rendering.timings_ms
    assert set(times) == {"encode", "denoise", "decode", "total"}
    assert all(value > 0 for value in times.values())
    assert times["total"] == pytest.approx(times["encode"] + times["denoise"] + times["decode"], abs=0.02)
    assert times["denoise"] > times["encode"]
    record = rendering.acceleration
    assert record["cache"] == "balanced"
    assert "12 of 24 steps" in str(record["cache_reason"])
    assert (record["cached_steps"], record["steps"]) == (24, 48)
    assert (record["compiled"], record["compile_scope"], record["compiles"]) == (False, "none", 0)


def test_a_cpu_is_sound_and_a_device_that_refuses_every_call_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert device_is_sound()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    assert not device_is_sound()


@pytest.mark.parametrize(
    ("fields", "preset", "cached"),
    [({"cache": "off"}, "off", 0), ({"cache": "fast"}, "fast", 14), ({"num_inference_steps": 4}, "off", 0)],
)
def test_a_job_chooses_its_own_cache(tiny_engine: Engine, fields: Any, preset: str, cached: int) -> None:
    record = tiny_engine.render(planned(tiny_engine.spec, **fields)).acceleration
    assert (record["cache"], record["cached_steps"]) == (preset, cached)


def test_the_picture_is_an_image_of_the_size_asked_for(tiny_engine: Engine) -> None:
    picture = tiny_engine.render(planned(tiny_engine.spec)).pictures[0]
    assert picture.image is not None
    assert picture.frames is None
    assert (picture.image.mode, picture.image.size) == ("RGB", (64, 64))
    assert np.asarray(picture.image).std() > 20


def test_a_model_is_run_with_the_threads_it_wants(tiny_spec: ModelSpec) -> None:
    before = torch.get_num_threads()
    engine = Engine(
        tiny_spec.model_copy(update={"fixed_threads": 2}), resolved(tiny_spec, warmup=False), device="cpu"
    )
    try:
        engine.prepare()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        engine.close()


def test_an_engine_that_is_not_prepared_says_so(tiny_spec: ModelSpec) -> None:
    engine = Engine(tiny_spec, resolved(tiny_spec))
    with pytest.raises(LoadFailed, match="prepare"):
        engine.render(planned(tiny_spec))


def test_closing_frees_the_weights_and_the_engine_can_be_prepared_again(tiny_spec: ModelSpec) -> None:
    engine = Engine(tiny_spec, resolved(tiny_spec), device="cpu")
    engine.prepare()
    first = engine.render(planned(tiny_spec))
    transformer = weakref.ref(engine.parts[0].transformer)
    engine.close()
    assert transformer() is None
    with pytest.raises(LoadFailed):
        engine.render(planned(tiny_spec))
    engine.prepare()
    assert pixels(engine.render(planned(tiny_spec))) == pixels(first)
    engine.close()


def test_a_preparation_that_fails_names_the_step_and_holds_nothing(tiny_spec: ModelSpec) -> None:
    reported: list[PreparationStep] = []
    spec = tiny_spec.model_copy(update={"call": {"no_such_argument": 1}})
    engine = Engine(spec, resolved(spec), device="cpu", report=reported.append)
    with pytest.raises(Exception, match="FluxPipeline takes no no_such_argument"):
        engine.prepare()
    assert (reported[-1].name, reported[-1].state) == ("warmup", "started")
    with pytest.raises(LoadFailed):
        engine.render(planned(spec))


def test_a_failure_of_another_kind_becomes_one_line_of_the_step(tiny_spec: ModelSpec) -> None:
    def compiler(_graph: object, _inputs: object) -> object:
        raise ValueError("no compiler\nhere")

    engine = Engine(tiny_spec, resolved(tiny_spec, compile=True), device="cpu", backend=compiler)
    with pytest.raises(WarmupIncomplete, match=r"warmup of tiny failed: .*no compiler") as failed:
        engine.prepare()
    assert "\n" not in failed.value.message


def test_missing_weights_fail_the_load(tiny_spec: ModelSpec, tmp_path: Path) -> None:
    engine = Engine(tiny_spec, resolved(tiny_spec), source=str(tmp_path / "none"), device="cpu")
    with pytest.raises(WeightsMissing, match="there is no folder"):
        engine.prepare()


@pytest.mark.parametrize("warm", [True, False])
def test_without_a_warm_up_the_first_job_runs_all_the_same(tiny_spec: ModelSpec, warm: bool) -> None:
    engine = Engine(tiny_spec, resolved(tiny_spec, warmup=warm), device="cpu")
    steps = engine.prepare()
    assert ("skipped" in steps[-1].detail) is not warm
    rendering = engine.render(planned(tiny_spec))
    assert rendering.acceleration["warm_shape"] is warm
    assert rendering.acceleration["cached_steps"] == 12
    engine.close()


class Failing:
    """Makes the real transformer raise at its n-th call, and keeps a weak eye on what that call was given."""

    def __init__(self, engine: Engine, error: "Callable[[], Exception]", at_call: int) -> None:
        self._error, self._at_call, self._calls = error, at_call, 0
        self.latents: weakref.ref[torch.Tensor] | None = None
        pipe: Any = engine.parts[0]
        self._handle = pipe.transformer.register_forward_pre_hook(self._fail, with_kwargs=True)

    def _fail(self, _module: object, _arguments: object, named: dict[str, Any]) -> None:
        self._calls += 1
        if self._calls == self._at_call:
            self.latents = weakref.ref(named["hidden_states"])
            raise self._error()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


@pytest.mark.parametrize(
    "error",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError,
    ],
    ids=["device", "host", "python"],
)
def test_running_out_of_memory_fails_the_job_and_frees_what_it_held(
    tiny_engine: Engine, error: "Callable[[], Exception]"
) -> None:
    expected = pixels(tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8)))
    with Failing(tiny_engine, error, at_call=7) as failing:
        with pytest.raises(OutOfMemory, match="not enough memory at 64x64: ") as failed:
            tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8))
        assert failed.value.__context__ is None  # or its frames would hold what the attempt held
        assert failing.latents is not None
        assert failing.latents() is None
    assert tiny_engine.effective()["mounted"] is False  # what it cached is gone with the mount
    assert pixels(tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8))) == expected


def test_an_error_that_is_not_about_memory_comes_through(tiny_engine: Engine) -> None:
    failing = Failing(tiny_engine, lambda: RuntimeError("device-side assert"), at_call=3)
    with failing, pytest.raises(RuntimeError, match="device-side assert"):
        tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_transformer_that_yields_no_numbers_fails_the_job(tiny_engine: Engine, value: float) -> None:
    pipe: Any = tiny_engine.parts[0]
    handle = pipe.transformer.proj_out.register_forward_hook(
        lambda _module, _arguments, output: torch.full_like(output, value)
    )
    with pytest.raises(NotFinite, match="latents hold NaN or infinity"):
        tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8))
    handle.remove()


@pytest.mark.parametrize(
    ("factor", "words"), [(float("nan"), "holds NaN or infinity"), (0.0, "is one flat value")]
)
def test_a_decoder_that_yields_no_picture_fails_the_job(
    tiny_engine: Engine, factor: float, words: str
) -> None:
    pipe: Any = tiny_engine.parts[0]
    handle = pipe.vae.decoder.register_forward_hook(lambda _module, _arguments, output: output * factor)
    with pytest.raises(NotFinite, match=f"the decoded picture {words}"):
        tiny_engine.render(planned(tiny_engine.spec, num_inference_steps=8))
    handle.remove()


def test_flat_latents_fail_the_job() -> None:
    with pytest.raises(NotFinite, match="latents are one flat value"):
        _check_latents(torch.full((1, 16, 64), 0.5))


def test_two_processes_draw_the_same_bytes(tiny_engine: Engine) -> None:
    program = (
        "import hashlib\n"
        "from pipeline.importing import import_engine\n"
        "Engine = import_engine(quantise=False).Engine\n"
        "from policy.catalogue import Catalogue\n"
        "from tests.fixtures.models import pixels, planned, resolved\n"
        "spec = Catalogue.load().get_model('tiny')\n"
        "engine = Engine(spec, resolved(spec), device='cpu')\n"
        "engine.prepare()\n"
        "both = [engine.render(planned(spec, **fields)) for fields in ({}, {'guidance_scale': 2.5})]\n"
        "print([hashlib.sha256(pixels(one)[0]).hexdigest() for one in both])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
        timeout=200,
    )
    spec = tiny_engine.spec
    tiny_engine.render(planned(spec, prompt="another job first", seed=3, cache="fast"))
    here = [
        hashlib.sha256(pixels(tiny_engine.render(planned(spec, **fields)))[0]).hexdigest()
        for fields in ({}, {"guidance_scale": 2.5})
    ]
    assert done.stdout.strip().splitlines()[-1] == str(here)


def test_the_parts_that_only_describe_need_no_torch() -> None:
    program = (
        "import sys, pipeline.errors, pipeline.rendering\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'cache_dit', 'numpy', 'PIL'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=60)


def test_the_prompt_of_these_tests_fits_the_model() -> None:
    assert len(PROMPT.split()) <= 16
