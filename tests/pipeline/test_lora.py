"""LoRAs are merged into the weights for a job and leave no trace: no compile, no rounding, no memory."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engine import Engine
from pipeline.errors import LoraFailed, PlanNotSupported, WeightsMissing
from policy.catalogue import Catalogue
from policy.lora import LoraSpec
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan
from tests.fixtures.loras import described, offering, write_lora
from tests.fixtures.models import GraphCounter, pixels, planned, resolved

INK, OIL = {"name": "ink"}, {"name": "oil", "scale": 0.5}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_engine: Engine) -> list[Path]:
    folder = tmp_path_factory.mktemp("loras")
    return [write_lora(folder, tiny_engine.parts[0], seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def spec(tiny_spec: ModelSpec, files: list[Path]) -> ModelSpec:
    return offering(
        tiny_spec, *(described(path, "tiny", name) for path, name in zip(files, ("ink", "oil"), strict=True))
    )


@pytest.fixture(scope="module", params=["none", "regional", "whole"])
def engine(request: pytest.FixtureRequest, spec: ModelSpec, fresh_compiler: None) -> Iterator[Engine]:
    """A worker that would compile again if a LoRA gave it reason to."""
    options: dict[str, Any] = {"new_shape": "compile"}
    if request.param != "none":
        options |= {"compile": True, "compile_scope": request.param}
    engine = Engine(spec, resolved(spec, **options), device="cpu", backend=GraphCounter())
    engine.prepare()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def plain(spec: ModelSpec, heavy_modules: None) -> Iterator[Engine]:
    engine = Engine(spec, resolved(spec), device="cpu")
    engine.prepare()
    yield engine
    engine.close()


def job(spec: ModelSpec, *loras: dict[str, Any], **fields: Any) -> RenderPlan:
    return planned(spec, **{"num_inference_steps": 8, "lora": list(loras), **fields})


def weights(engine: Engine) -> dict[str, bytes]:
    pipe: Any = engine.parts[0]
    return {name: weight.detach().numpy().tobytes() for name, weight in pipe.transformer.named_parameters()}


def test_a_lora_changes_its_own_job_and_no_other_and_compiles_nothing(engine: Engine) -> None:
    without, before = pixels(engine.render(job(engine.spec))), weights(engine)
    compiles = 0
    drawn = {}
    for wanted in ((INK,), (OIL,), (INK, OIL), (INK,), ()):
        rendering = engine.render(job(engine.spec, *wanted))
        compiles += int(str(rendering.acceleration["compiles"]))
        drawn.setdefault(str(wanted), pixels(rendering))
        assert drawn[str(wanted)] == pixels(rendering), "the same LoRAs again, the same picture"
    assert len(set(drawn.values())) == 4
    assert drawn["()"] == without
    assert weights(engine) == before
    assert compiles == 0


def test_the_order_in_which_they_are_named_and_a_scale_of_nothing_make_no_difference(plain: Engine) -> None:
    both = pixels(plain.render(job(plain.spec, INK, OIL)))
    assert pixels(plain.render(job(plain.spec, OIL, INK))) == both
    nothing = pixels(plain.render(job(plain.spec, {"name": "ink", "scale": 0.0})))
    assert nothing == pixels(plain.render(job(plain.spec)))


def test_it_draws_what_the_library_draws_with_the_same_file(
    plain: Engine, files: list[Path], tmp_path: Path
) -> None:
    plan = job(plain.spec, {"name": "ink", "scale": 0.7}, cache="off")
    ours = np.frombuffer(pixels(plain.render(plan))[0], np.uint8).astype(float)
    other = Engine(plain.spec, resolved(plain.spec, warmup=False), device="cpu")
    other.prepare()
    pipe: Any = other.parts[0]
    pipe.load_lora_weights(str(files[0].parent), weight_name=files[0].name, adapter_name="ink")
    pipe.set_adapters(["ink"], [0.7])
    theirs = np.frombuffer(pixels(other.render(job(plain.spec, cache="off")))[0], np.uint8).astype(float)
    other.close()
    assert np.abs(ours - theirs).max() <= 1


def test_a_job_that_is_stopped_leaves_nothing_of_its_lora(plain: Engine) -> None:
    without = pixels(plain.render(job(plain.spec)))
    before = weights(plain)  # what the test before this one had merged is out of them now
    with pytest.raises(ConnectionError):
        plain.render(job(plain.spec, INK), _lose_the_lease)
    assert pixels(plain.render(job(plain.spec))) == without
    assert weights(plain) == before


def _lose_the_lease(_done: int, _total: int) -> bool:
    raise ConnectionError


def test_one_that_cannot_be_added_leaves_the_weights_as_they_were(
    tiny_spec: ModelSpec, files: list[Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    state = load_file(files[0])
    last = [name for name in sorted(state) if name.endswith("lora_A.weight")][-1]
    state[last] = torch.full_like(
        state[last], 1e30
    )  # what it adds is finite, and ten to the tenth of it is not
    save_file(state, tmp_path / "broken.safetensors")
    lora = described(tmp_path / "broken.safetensors", "tiny", "broken", scale=1e10, scale_maximum=1e10)
    broken = offering(tiny_spec, lora)
    engine = Engine(broken, resolved(broken, warmup=False), device="cpu")
    engine.prepare()
    before = weights(engine)
    with pytest.raises(LoraFailed, match="not be finite"):
        engine.render(job(broken, {"name": "broken"}))
    assert weights(engine) == before
    engine.render(job(broken))
    engine.close()


def test_taking_them_in_and_out_keeps_no_memory(plain: Engine) -> None:
    def tensors() -> int:
        import torch

        gc.collect()
        return sum(isinstance(item, torch.Tensor) for item in gc.get_objects())

    plain.render(job(plain.spec, INK))
    plain.render(job(plain.spec))
    before = tensors()
    for wanted in ((INK,), (OIL,), ()) * 3:
        plain.render(job(plain.spec, *wanted))
    assert tensors() == before


def test_a_file_that_is_replaced_while_the_worker_runs_is_refused(
    tiny_spec: ModelSpec, files: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "ink.safetensors"
    path.write_bytes(files[0].read_bytes())
    spec = offering(tiny_spec, described(path, "tiny", "ink"))
    engine = Engine(spec, resolved(spec, warmup=False), device="cpu")
    engine.prepare()
    path.write_bytes(files[1].read_bytes())
    with pytest.raises(LoraFailed, match="has sha256"):
        engine.render(job(spec, INK))
    path.unlink()
    with pytest.raises(WeightsMissing, match="the file of LoRA ink is no longer on its worker"):
        engine.render(job(spec, INK))
    engine.close()


def test_a_plan_made_with_another_catalogue_is_refused(plain: Engine, files: list[Path]) -> None:
    elsewhere = offering(plain.spec, described(files[1], "tiny", "ink"))
    with pytest.raises(PlanNotSupported, match="ink"):
        plain.render(job(elsewhere, INK))


def prepare_with(spec: ModelSpec, *loras: LoraSpec) -> None:
    offered = offering(spec, *loras)
    engine = Engine(offered, resolved(offered, warmup=False), device="cpu")
    try:
        engine.prepare()
    finally:
        engine.close()


def test_a_worker_does_not_start_with_a_file_that_is_not_the_one_meant(
    tiny_spec: ModelSpec, files: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(LoraFailed, match="has sha256"):
        prepare_with(tiny_spec, described(files[0], "tiny", "ink", sha256="0" * 64))
    with pytest.raises(WeightsMissing, match="there is no file"):
        prepare_with(tiny_spec, described(files[0], "tiny", "ink", source=str(tmp_path / "no.safetensors")))


def test_nor_with_one_of_another_kind(tiny_spec: ModelSpec, tiny_engine: Engine, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pipe = tiny_engine.parts[0]
    wide = write_lora(tmp_path / "wide", pipe, rank=8)
    with pytest.raises(LoraFailed, match="has rank 8, and the catalogue allows 4"):
        prepare_with(tiny_spec, described(wide, "tiny", "wide", max_rank=4))
    dora = write_lora(tmp_path / "dora", pipe, use_dora=True)
    with pytest.raises(LoraFailed):
        prepare_with(tiny_spec, described(dora, "tiny", "dora"))
    state = load_file(wide)
    renamed = {name.replace("attn.to_q", "attn.to_x"): value for name, value in state.items()}
    save_file(renamed, tmp_path / "foreign.safetensors")
    with pytest.raises(LoraFailed, match="made for another model"):
        prepare_with(tiny_spec, described(tmp_path / "foreign.safetensors", "tiny", "foreign"))
    text = {name.replace("transformer.", "text_encoder.", 1): value.clone() for name, value in state.items()}
    save_file(state | text, tmp_path / "text.safetensors")
    with pytest.raises(LoraFailed, match="text_encoder"):
        prepare_with(tiny_spec, described(tmp_path / "text.safetensors", "tiny", "text"))
    state[next(iter(state))][0, 0] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(LoraFailed, match="holds NaN or infinity"):
        prepare_with(tiny_spec, described(tmp_path / "nan.safetensors", "tiny", "nan"))
    (tmp_path / "junk.safetensors").write_bytes(b"\x80\x04junk")
    with pytest.raises(LoraFailed, match="cannot be read"):
        prepare_with(tiny_spec, described(tmp_path / "junk.safetensors", "tiny", "junk"))


def test_a_worker_that_cannot_write_to_its_weights_offers_none_and_draws_all_else(plain: Engine) -> None:
    from pipeline.lora import Loras

    loras = Loras(plain.parts[0], plain.spec, in_place=False)
    assert loras.offered == []
    loras.switch(())
    with pytest.raises(LoraFailed, match="offload none or model"):
        loras.switch(job(plain.spec, INK).lora)


@pytest.mark.parametrize("model_id", sorted(Catalogue.load()))
def test_each_family_that_takes_them_gives_them_back(
    model_id: str, miniature_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch

    from pipeline.load import load_pipeline
    from pipeline.lora import Loras
    from pipeline.miniature import spec_of

    spec = spec_of(Catalogue.load()[model_id])
    pipe = load_pipeline(spec, resolved(spec), torch.device("cpu"), str(miniature_folder(model_id)))
    chosen = spec.transformers[-1]
    if model_id == "pixart-sigma":
        (tmp_path / "any.safetensors").write_bytes(b"any")
        with pytest.raises(LoraFailed, match="PixArtSigmaPipeline takes no LoRA"):
            Loras(pipe, offering(spec, described(tmp_path / "any.safetensors", spec.id, "ink")))
        return
    path = write_lora(tmp_path, pipe, transformer=chosen)
    spec = offering(spec, described(path, spec.id, "ink", transformer=chosen))
    before = {name: weight.detach().clone() for name, weight in getattr(pipe, chosen).named_parameters()}
    loras = Loras(pipe, spec)
    loras.switch(planned(spec, lora=[INK]).lora)
    changed = [n for n, w in getattr(pipe, chosen).named_parameters() if not torch.equal(w, before[n])]
    loras.switch(())
    assert changed
    assert all(torch.equal(w, before[n]) for n, w in getattr(pipe, chosen).named_parameters())


def test_what_a_worker_offers_is_in_its_record(plain: Engine) -> None:
    load = plain.preparation[0]
    assert load.detail["loras"] == ["ink", "oil"]
