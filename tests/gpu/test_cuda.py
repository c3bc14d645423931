"""On an NVIDIA GPU: placement, number formats, compile, cache, offload, memory. Skipped without one.

Uses the bundled model and miniatures only, so that it needs no download and ends within five minutes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.engine import Engine
from pipeline.errors import OutOfMemory
from pipeline.inputs import Inputs
from pipeline.memory import find_device, find_hardware, synchronise
from pipeline.miniature import spec_of
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.resolve import resolve
from tests.fixtures.models import over_picture, pixels, planned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(280),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

Prepare = Callable[..., Engine]


@pytest.fixture
def prepare(miniature_folder: Callable[[str], Path]) -> Iterator[Prepare]:
    engines: list[Engine] = []

    def prepared(model_id: str, **flags: object) -> Engine:
        spec = Catalogue.load().get_model(model_id)
        source = None
        if model_id != "tiny":
            spec, source = spec_of(spec), str(miniature_folder(model_id))
        policy = resolve(spec, flags=flags, env={}, hardware=find_hardware())
        engines.append(Engine(spec, policy, source=source))
        engines[-1].prepare()
        return engines[-1]

    yield prepared
    for engine in engines:
        engine.close()


def devices(engine: Engine) -> set[str]:
    pipe: Any = engine.parts[0]
    return set().union(*(devices_of(getattr(pipe, name)) for name in engine.spec.transformers))


def devices_of(module: torch.nn.Module) -> set[str]:
    return {parameter.device.type for parameter in module.parameters()}


def values(rendering: Any) -> np.ndarray:
    return np.asarray(rendering.pictures[0].image).astype(int)


def test_the_device_is_found_and_used(prepare: Prepare) -> None:
    engine = prepare("tiny")
    assert find_device().type == engine.device.type == "cuda"
    assert find_hardware().device == "cuda"
    assert devices(engine) == {"cuda"}
    assert engine.preparation[0].detail["device"] == str(engine.device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_plan_gives_the_same_bytes(prepare: Prepare, dtype: str) -> None:
    engine = prepare("tiny", dtype=dtype)
    spec = engine.spec
    first = pixels(engine.render(planned(spec)))
    for other in (
        {"guidance_scale": 3.0},
        {"cache": "off"},
        {"cache": "fast", "n": 2},
        {"num_inference_steps": 9},
    ):
        engine.render(planned(spec, **other))
        assert pixels(engine.render(planned(spec))) == first
    engine.close()
    engine.prepare()
    assert pixels(engine.render(planned(spec))) == first


@pytest.mark.parametrize("scope", ["regional", "whole"])
def test_compiled_requests_compile_nothing_and_repeat(prepare: Prepare, scope: str) -> None:
    engine = prepare("tiny", compile=True, compile_scope=scope, new_shape="compile")
    spec = engine.spec
    requests: list[dict[str, Any]] = [{}, {"guidance_scale": 2.5}, {"cache": "fast"}, {"cache": "off"}, {}]
    with torch.compiler.set_stance("fail_on_recompile"):
        done = [engine.render(planned(spec, **fields)) for fields in requests]
    assert [one.acceleration["compiles"] for one in done] == [0] * len(requests)
    assert pixels(done[0]) == pixels(done[-1])
    assert engine.effective()["compile_scope"] == scope
    eager = prepare("tiny")
    assert np.abs(values(done[0]) - values(eager.render(planned(spec)))).mean() < 2


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_other_compile_modes_render_and_repeat(prepare: Prepare, mode: str) -> None:
    engine = prepare("tiny", compile=True, compile_mode=mode)
    first, second = (engine.render(planned(engine.spec)) for _ in range(2))
    assert pixels(first) == pixels(second)
    assert (first.acceleration["compiles"], second.acceleration["compiles"]) == (0, 0)


@pytest.mark.parametrize("offload", ["model", "sequential"])
def test_offloaded_weights_draw_the_same_and_leave_the_device(prepare: Prepare, offload: str) -> None:
    resident = prepare("tiny")
    plans = [planned(resident.spec, **fields) for fields in ({}, {"cache": "off"}, {"cache": "fast"}, {})]
    expected = [pixels(resident.render(plan)) for plan in plans]
    engine = prepare("tiny", offload=offload)
    assert devices(engine) == ({"cpu"} if offload == "model" else {"meta"})
    drawn = [engine.render(plan) for plan in plans]
    assert [one.acceleration["cached_steps"] for one in drawn] == [9, 0, 12, 9]
    for one, plan, pixel in zip(drawn, plans, expected, strict=True):
        assert pixels(one) == pixel, plan
    assert devices(engine) == ({"cpu"} if offload == "model" else {"meta"})


def test_a_failed_job_sends_offloaded_weights_back(prepare: Prepare) -> None:
    engine = prepare("tiny", offload="model")
    expected = pixels(engine.render(planned(engine.spec)))
    with pytest.raises(ZeroDivisionError):
        engine.render(planned(engine.spec), lambda done, _total: bool(1 / (5 - done)) or True)
    assert devices(engine) == {"cpu"}
    assert pixels(engine.render(planned(engine.spec))) == expected


@pytest.mark.parametrize(
    "flags", [{}, {"compile": True, "compile_scope": "whole"}], ids=["eager", "compiled"]
)
@pytest.mark.parametrize(
    ("model_id", "resident"),
    [
        ("tiny", ("vae",)),
        ("tiny", ("text_encoder", "transformer")),
        ("tiny", ("text_encoder", "text_encoder_2", "transformer", "vae")),
        ("wan2.2-t2v-a14b", ("transformer_2", "vae")),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_components_kept_resident_never_leave_the_device(
    prepare: Prepare,
    monkeypatch: pytest.MonkeyPatch,
    model_id: str,
    resident: tuple[str, ...],
    flags: dict[str, Any],
) -> None:
    steps = {} if model_id == "tiny" else {"num_inference_steps": 12}
    engine = prepare(model_id, offload="model", keep_resident=",".join(resident), **flags)
    pipe: Any = engine.parts[0]
    parts = {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}
    names = {id(part): name for name, part in parts.items()}
    left: set[str] = set()
    to = torch.nn.Module.to

    def noted(module: torch.nn.Module, *where: Any, **more: Any) -> torch.nn.Module:
        moved = to(module, *where, **more)
        if id(module) in names and devices_of(module) != {"cuda"}:
            left.add(names[id(module)])
        return moved

    monkeypatch.setattr(torch.nn.Module, "to", noted)
    drawn = [engine.render(planned(engine.spec, **steps)) for _ in range(2)]
    assert left == set(parts) - set(resident)
    for name, part in parts.items():
        assert devices_of(part) == ({"cuda"} if name in resident else {"cpu"}), name
    assert pixels(drawn[0]) == pixels(drawn[1])
    assert [one.acceleration["compiles"] for one in drawn] == [0, 0]
    assert [one.acceleration["compiled"] for one in drawn] == [bool(flags)] * 2
    assert drawn[0].acceleration["cached_steps"] == drawn[1].acceleration["cached_steps"] > 0


def test_running_out_of_memory_is_one_clean_failure(prepare: Prepare) -> None:
    engine = prepare("tiny")
    expected = pixels(engine.render(planned(engine.spec)))
    free, total = torch.cuda.mem_get_info()
    handle = engine.parts[0].transformer.register_forward_pre_hook(
        lambda *_: torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    )
    with pytest.raises(OutOfMemory, match="not enough memory at 64x64"):
        engine.render(planned(engine.spec))
    handle.remove()
    assert torch.cuda.mem_get_info()[0] > free - total // 20
    assert pixels(engine.render(planned(engine.spec))) == expected


def test_closing_gives_the_memory_back(prepare: Prepare) -> None:
    before = torch.cuda.memory_allocated()
    engine = prepare("flux.1-dev", dtype="float32")
    assert torch.cuda.memory_allocated() > before
    engine.render(planned(engine.spec, num_inference_steps=6))
    engine.close()
    synchronise(torch.device("cuda"))
    assert torch.cuda.memory_allocated() <= before + 1024


@pytest.mark.parametrize(
    "model_id", ["flux.1-dev", "qwen-image", "sd3.5-medium", "sana-1.6b", "wan2.2-t2v-a14b", "ltx-video"]
)
def test_every_family_renders_in_bfloat16_and_repeats(prepare: Prepare, model_id: str) -> None:
    engine = prepare(model_id, dtype="bfloat16")
    plan = planned(engine.spec, num_inference_steps=12)
    first, second = (engine.render(plan) for _ in range(2))
    assert pixels(first) == pixels(second)
    assert first.timings_ms["denoise"] > 0


def test_times_wait_for_the_device(tiny_spec: ModelSpec, prepare: Prepare) -> None:
    engine = prepare("tiny")
    cuda: Any = torch.cuda
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    rendering = engine.render(planned(tiny_spec, n=4))
    end.record()
    torch.cuda.synchronize()
    assert rendering.timings_ms["total"] == pytest.approx(start.elapsed_time(end), rel=0.2)


@pytest.mark.parametrize("offload", ["none", "model", "group", "sequential"])
def test_a_picture_is_drawn_from_wherever_the_weights_wait(prepare: Prepare, offload: str) -> None:
    """The autoencoder comes before the transformer here; what is drawn before and after is not affected."""
    engine = prepare("flux.1-dev", offload=offload)
    plain = planned(engine.spec)
    before = pixels(engine.render(plain))
    picture = Image.linear_gradient("L").convert("RGB")
    plan = over_picture(plain, picture, strength=0.5)
    drawn = pixels(engine.render(plan, inputs=Inputs(picture)))
    assert pixels(engine.render(plan, inputs=Inputs(picture))) == drawn != before
    assert pixels(engine.render(plain)) == before
    assert ("cuda" in devices(engine)) == (offload == "none")
