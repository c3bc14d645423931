"""Image to image and inpaint: one copy of the weights, the steps that are declared, no trace elsewhere."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.compilation import compiles_so_far
from pipeline.engine import Engine
from pipeline.errors import Stopped, Unsupported
from pipeline.inputs import Inputs
from pipeline.siblings import Siblings
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from policy.strength import executed_steps
from tests.fixtures.models import GraphCounter, over_picture, pixels, planned, resolved

CATALOGUE = Catalogue.load()
ABLE = ["flux.1-dev", "flux.2-klein-4b", "qwen-image", "sd3.5-medium", "tiny", "z-image-turbo"]
NOISE = np.random.default_rng(3).integers(0, 256, (150, 170, 3), dtype=np.uint8)
PICTURE = Image.fromarray(NOISE)
MASK = Image.new("L", PICTURE.size, 0)
MASK.paste(255, (60, 50, 120, 100))


def ways(spec: ModelSpec) -> list[bool]:
    """Whether with a mask: each way in which this model draws from a picture."""
    assert spec.inputs is not None
    return [
        masked for masked, name in ((False, spec.inputs.image_to_image), (True, spec.inputs.inpaint)) if name
    ]


def job(spec: ModelSpec, *, masked: bool, strength: float = 0.9, **fields: Any) -> tuple[RenderPlan, Inputs]:
    plan = planned(spec, **{"num_inference_steps": min(10, spec.steps.maximum), **fields})
    plan = over_picture(plan, PICTURE, strength=strength, masked=masked)
    return plan, Inputs(PICTURE, MASK if masked else None)


@pytest.fixture(scope="module")
def engine(tiny_engine: Engine) -> Engine:
    return tiny_engine


@pytest.mark.parametrize("model_id", ABLE)
def test_every_way_runs_the_declared_steps_and_leaves_no_trace(
    model_id: str, miniature_engine: Callable[..., Engine], tiny_engine: Engine
) -> None:
    engine = tiny_engine if model_id == "tiny" else miniature_engine(model_id)
    plain = planned(engine.spec, num_inference_steps=min(10, engine.spec.steps.maximum))
    before = pixels(engine.render(plain))
    for masked in ways(engine.spec):
        plan, inputs = job(engine.spec, masked=masked, strength=0.65)
        steps: list[tuple[int, int]] = []

        def note(done: int, total: int, steps: list[tuple[int, int]] = steps) -> bool:
            steps.append((done, total))
            return True

        drawn = engine.render(plan, note, inputs=inputs)
        assert steps == [(done, 7) for done in range(1, 8)]
        assert drawn.acceleration["steps"] == 7
        assert pixels(drawn) != before
        with pytest.raises(Stopped):
            engine.render(plan, lambda done, _: done < 2, inputs=inputs)
        assert pixels(engine.render(plan, inputs=inputs)) == pixels(drawn)
    assert pixels(engine.render(plain)) == before


CLASSES = {
    name
    for spec in CATALOGUE.values()
    if spec.inputs is not None
    for name in (spec.inputs.image_to_image, spec.inputs.inpaint)
    if name is not None
}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_pipelines_run_the_steps_that_we_count(name: str) -> None:
    import diffusers

    for steps, strength in product((1, 4, 24, 50), (1e-17, 0.001, 0.01, 0.04, 0.25, 0.5, 0.65, 1.0)):
        sampler = diffusers.FlowMatchEulerDiscreteScheduler()
        sampler.set_timesteps(steps)
        holder = SimpleNamespace(scheduler=sampler)
        timesteps, _ = getattr(diffusers, name).get_timesteps(holder, steps, strength, "cpu")
        assert len(timesteps) == executed_steps(steps, strength)


def test_a_strength_below_one_step_runs_one(engine: Engine) -> None:
    plan, inputs = job(engine.spec, masked=False, strength=0.01)
    assert engine.render(plan, inputs=inputs).acceleration["steps"] == 1


def test_the_mask_of_steps_is_built_for_the_steps_that_are_run(engine: Engine) -> None:
    plan, inputs = job(engine.spec, masked=False, strength=0.5, num_inference_steps=24)
    drawn = engine.render(plan, inputs=inputs)
    effective: Any = engine.effective()["cache"]
    assert plan.executed_steps == effective[0]["steps"] == len(effective[0]["mask"]) == 12
    assert drawn.acceleration["cached_steps"] == effective[0]["mask"].count(0) > 0


def test_a_model_that_cannot_says_so(engine: Engine) -> None:
    unable = Siblings(engine.parts[0], CATALOGUE["pixart-sigma"])
    with pytest.raises(Unsupported, match="has no pipeline that changes a picture without a mask"):
        unable.of(job(engine.spec, masked=False)[0])
    klein = Siblings(engine.parts[0], CATALOGUE["flux.2-klein-4b"])
    with pytest.raises(Unsupported, match=r"flux\.2-klein-4b has no pipeline that changes a picture without"):
        klein.of(job(engine.spec, masked=False)[0])


def test_there_is_one_copy_of_the_weights_in_the_dtype_they_were_loaded_in(
    miniature_folder: Callable[[str], Path],
) -> None:
    from pipeline.miniature import spec_of

    spec = spec_of(CATALOGUE["qwen-image"])
    engine = Engine(
        spec,
        resolved(spec, dtype="bfloat16", warmup=False),
        source=str(miniature_folder("qwen-image")),
        device="cpu",
    )
    engine.prepare()
    pipe: Any = engine.parts[0]
    dtypes = {name: parameter.dtype for name, parameter in pipe.transformer.named_parameters()}
    for masked in (False, True):
        plan, inputs = job(spec, masked=masked)
        sibling: Any = engine._ready().siblings.of(plan)
        assert sibling is not pipe
        for name in ("transformer", "vae", "text_encoder", "scheduler"):
            assert getattr(sibling, name) is getattr(pipe, name)
        engine.render(plan, inputs=inputs)
        assert sibling is engine._ready().siblings.of(plan)
    assert {name: parameter.dtype for name, parameter in pipe.transformer.named_parameters()} == dtypes
    engine.close()


@pytest.fixture
def compiled(
    request: pytest.FixtureRequest, miniature_folder: Callable[[str], Path], fresh_compiler: None
) -> Iterator[Engine]:
    from pipeline.miniature import spec_of

    spec = spec_of(CATALOGUE[request.param])
    engine = Engine(
        spec,
        resolved(spec, compile=True, new_shape="compile"),
        source=str(miniature_folder(request.param)),
        device="cpu",
        backend=GraphCounter(),
    )
    engine.prepare()
    yield engine
    engine.close()


@pytest.mark.parametrize("compiled", ["flux.2-klein-4b"], indirect=True)
def test_no_request_with_a_picture_waits_for_a_compiler(compiled: Engine) -> None:
    """Klein's inpaint calls the transformer with more tokens than its plain pipeline."""
    before = compiles_so_far()
    for masked in ways(compiled.spec):
        for strength in (0.5, 1.0):
            plan, inputs = job(compiled.spec, masked=masked, strength=strength)
            compiled.render(plan, inputs=inputs)
    assert compiles_so_far() == before


# --- what the bundled model makes of it -----------------------------------------------------------------


def edges(picture: Image.Image) -> np.ndarray:
    grey = np.asarray(picture.convert("L"), float)
    return (np.abs(np.diff(grey, axis=1))[:-1] + np.abs(np.diff(grey, axis=0))[:, :-1]).ravel()


def alike(left: Image.Image, right: Image.Image) -> float:
    """Correlation of the edges: where things stand, whatever their colour."""
    return float(np.corrcoef(edges(left), edges(right))[0, 1])


def draw(engine: Engine, prompt: str, seed: int) -> Image.Image:
    return shown(engine, planned(engine.spec, prompt=prompt, seed=seed))


def shown(engine: Engine, plan: RenderPlan, inputs: Inputs | None = None) -> Image.Image:
    image = engine.render(plan, inputs=inputs).pictures[0].image
    assert image is not None
    return image


def test_a_scene_keeps_its_composition_at_low_strength_and_none_of_it_at_full(engine: Engine) -> None:
    scene = "a white house with a blue roof and an orange tree on a beach"
    sources = [draw(engine, scene, seed) for seed in (0, 1)]
    plan = planned(engine.spec, prompt=f"{scene} at night", seed=99)
    low, full = (
        [shown(engine, over_picture(plan, source, strength=strength), Inputs(source)) for source in sources]
        for strength in (0.3, 1.0)
    )
    for drawn, own, other in zip(low, sources, sources[::-1], strict=True):
        assert alike(drawn, own) > 0.7
        assert alike(drawn, own) > alike(drawn, other) + 0.2
        assert np.asarray(drawn)[:16].mean() < np.asarray(own)[:16].mean() / 2  # the sky of a night
    assert full[0].tobytes() == full[1].tobytes()


def test_a_mask_keeps_the_rest_to_the_bit(engine: Engine) -> None:
    source = draw(engine, "a white house with a blue roof and an orange tree on a beach", 1)
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (40, 20, 64, 56))  # where the tree stands
    plan = planned(engine.spec, prompt="a white house with a blue roof and a pink tree on a beach", seed=5)
    plan = over_picture(plan, source, strength=1.0, masked=True)
    drawn = np.asarray(shown(engine, plan, Inputs(source, mask)), int)
    inside = np.asarray(mask) > 0
    changed = np.abs(drawn - np.asarray(source, int)).sum(axis=2)
    assert (changed[~inside] == 0).all()
    assert (changed[inside] > 60).mean() > 0.1  # the tree has another colour
