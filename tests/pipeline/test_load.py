"""Loading: what is missing or broken is said in words a person can act on."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.errors import LoadFailed, OutOfMemory, PipelineError, Unsupported, WeightsMissing
from pipeline.load import load_pipeline, locate
from pipeline.spec_check import check_classes
from policy.model_spec import ModelSpec
from policy.resolve import Resolved
from tests.fixtures.models import resolved

TINY = Path(__file__).parents[2] / "pipeline/tiny"
CPU = torch.device("cpu")
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
TEXT = "text_encoder/model.safetensors"


def load(spec: ModelSpec, source: Path | str | None = None, **flags: object) -> Any:
    return load_pipeline(spec, resolved(spec, **flags), CPU, None if source is None else str(source))


def forced(spec: ModelSpec, **values: object) -> Any:
    """A policy with values that the resolver would refuse on this machine."""
    policy = resolved(spec)
    for name, value in values.items():
        policy.options[name] = Resolved(value, "flag", "for a test")  # type: ignore[index]
    return policy


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def test_the_bundled_model_is_found_wherever_the_package_is(
    tiny_spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipe = load(tiny_spec)
    assert type(pipe).__name__ == "FluxPipeline"
    assert {parameter.dtype for parameter in pipe.transformer.parameters()} == {torch.float32}
    assert locate("bundled:tiny") == (str(TINY), True)


@pytest.mark.parametrize(
    ("source", "folder"), [("owner/name", False), ("./owner/name", True), ("/a/b", True), ("plain", True)]
)
def test_what_looks_like_a_hub_id_is_one_unless_it_is_a_folder(source: str, folder: bool) -> None:
    if folder:
        with pytest.raises(WeightsMissing, match="there is no folder"):
            locate(source)
    else:
        assert locate(source) == (source, False)


def remove(*names: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return act


def drop(name: str, tensor: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        state = load_file(folder / name)
        del state[tensor]
        save_file(state, folder / name)

    return act


def truncate(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:99999])

    return act


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (remove("model_index.json"), WeightsMissing, "has no model_index.json"),
        (remove(TRANSFORMER), WeightsMissing, "diffusion_pytorch_model.safetensors"),
        (remove(TEXT), WeightsMissing, "model.safetensors"),
        (remove("vae"), WeightsMissing, "files of tiny are missing"),
        (write("model_index.json", b"{"), LoadFailed, "not a valid JSON"),
        (truncate(TRANSFORMER), LoadFailed, "cannot be loaded"),
        (drop(TRANSFORMER, "proj_out.weight"), LoadFailed, "the weights of transformer lack proj_out.weight"),
        (write(TRANSFORMER, b""), LoadFailed, "cannot be loaded"),
        (write(TEXT, b"\x80\x02garbage" * 99), LoadFailed, "header"),
        (
            write("transformer/config.json", b'{"_class_name": "FluxTransformer2DModel", "num_layers": 3}'),
            LoadFailed,
            "shape",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_missing_and_broken_files_are_named_in_one_line(
    tiny_spec: ModelSpec, broken: Path, act: Callable[[Path], None], error: type[PipelineError], words: str
) -> None:
    act(broken)
    with pytest.raises(error, match=words) as failed:
        load(tiny_spec, broken)
    assert "\n" not in failed.value.message
    assert failed.value.retryable is False


@pytest.mark.parametrize(
    ("weights", "pickled"), [(TRANSFORMER, "diffusion_pytorch_model.bin"), (TEXT, "pytorch_model.bin")]
)
def test_pickled_weights_are_never_opened(
    tiny_spec: ModelSpec, broken: Path, weights: str, pickled: str
) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (broken / "was-run",))

    (broken / weights).unlink()
    torch.save({"payload": Payload()}, (broken / weights).parent / pickled)
    with pytest.raises(WeightsMissing):
        load(tiny_spec, broken)
    assert not (broken / "was-run").exists()


def test_no_code_of_a_model_is_run(tiny_spec: ModelSpec, broken: Path) -> None:
    index = json.loads((broken / "model_index.json").read_text())
    index["transformer"] = ["evil", "Evil"]
    (broken / "model_index.json").write_text(json.dumps(index))
    (broken / "transformer/evil.py").write_text(f"open({str(broken / 'was-run')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(LoadFailed):
        load(tiny_spec, broken)
    assert not (broken / "was-run").exists()


def test_a_hub_model_that_is_not_there_is_missing_and_not_a_traceback(tiny_spec: ModelSpec) -> None:
    """The tests are offline, so the hub's own answer is that it cannot be reached."""
    spec = tiny_spec.model_copy(update={"source": "someone/no-such-model"})
    with pytest.raises(WeightsMissing, match="someone/no-such-model"):
        load(spec)


def test_the_gate_of_a_gated_model_is_explained(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffusers

    def refuse(*_: object, **__: object) -> None:
        raise OSError("403 Client Error. Cannot access gated repo for url https://...")

    monkeypatch.setattr(diffusers.FluxPipeline, "from_pretrained", refuse)
    with pytest.raises(WeightsMissing, match="is gated: accept its licence on the hub"):
        load(tiny_spec)


def test_too_little_memory_for_the_weights_says_so(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffusers

    def run_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(diffusers.FluxPipeline, "from_pretrained", run_out)
    with pytest.raises(OutOfMemory, match="to load tiny: CUDA out of memory"):
        load(tiny_spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline_class": "FluxPipelin"}, "no pipeline FluxPipelin; did you mean FluxPipeline?"),
        ({"pipeline_class": "FluxTransformer2DModel"}, "no pipeline FluxTransformer2DModel"),
        ({"image_to_image": "FluxImg2ImPipeline"}, "inputs.image_to_image: diffusers"),
        ({"image_to_image": "FluxImg2ImPipeline"}, "did you mean FluxImg2ImgPipeline?"),
        ({"image_to_image": "FluxPipeline"}, "inputs.image_to_image: FluxPipeline takes no image"),
        ({"inpaint": "FluxImg2ImgPipeline"}, "inputs.inpaint: FluxImg2ImgPipeline takes no mask_image"),
        ({"inpaint": "FluxInpantPipeline"}, "did you mean FluxInpaintPipeline?"),
    ],
)
def test_a_slip_in_the_name_of_a_pipeline_is_told_before_anything_is_read(
    tiny_spec: ModelSpec, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(LoadFailed, match="the model file of tiny: ") as refused:
        check_classes(changed(tiny_spec, changes))
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks": 7}, "blocks must be 10, as many as the cache sees in a row, not 7"),
        (
            {"image_to_image": "StableDiffusionImg2ImgPipeline"},
            "inputs.image_to_image: StableDiffusionImg2ImgPipeline needs unet",
        ),
    ],
)
def test_what_the_file_says_is_compared_with_what_was_loaded(
    tiny_spec: ModelSpec, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(LoadFailed) as refused:
        load(changed(tiny_spec, changes))
    assert words in refused.value.message


def test_blocks_that_the_file_does_not_tell_are_not_compared(tiny_spec: ModelSpec) -> None:
    load(changed(tiny_spec, {"blocks": None}))


def changed(spec: ModelSpec, changes: Mapping[str, object]) -> ModelSpec:
    """With these values, of [inputs] or of the file itself."""
    assert spec.inputs is not None
    inner = {name: value for name, value in changes.items() if name in type(spec.inputs).model_fields}
    outer = {name: value for name, value in changes.items() if name not in inner}
    return spec.model_copy(update={**outer, "inputs": spec.inputs.model_copy(update=inner)})


def test_a_class_that_diffusers_lacks_is_named(tiny_spec: ModelSpec) -> None:
    with pytest.raises(LoadFailed, match=r"pipeline_class: diffusers .* has no pipeline NoSuchThing$"):
        load(tiny_spec.model_copy(update={"pipeline_class": "NoSuchThing"}))


def test_a_transformer_that_the_checkpoint_lacks_is_named(tiny_spec: ModelSpec) -> None:
    with pytest.raises(LoadFailed, match="no transformer_2"):
        load(tiny_spec.model_copy(update={"transformers": ("transformer", "transformer_2")}))


def test_revision_and_variant_are_asked_for(tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    asked: dict[str, Any] = {}
    spec = tiny_spec.model_copy(update={"source": "owner/name", "revision": "abc", "variant": "fp16"})
    from_pretrained: Any = diffusers.FluxPipeline.from_pretrained

    def note(place: str, **arguments: Any) -> Any:
        asked.update(arguments, place=place)
        return from_pretrained(TINY, local_files_only=True)

    monkeypatch.setattr(diffusers.FluxPipeline, "from_pretrained", note)
    load(spec)
    assert asked.pop("dtype") is torch.float32
    assert asked == {
        "place": "owner/name",
        "revision": "abc",
        "variant": "fp16",
        "use_safetensors": True,
        "local_files_only": False,
    }
    load(spec, TINY)
    assert (asked["revision"], asked["local_files_only"]) == (None, True)


@pytest.mark.parametrize("offload", ["model", "sequential"])
def test_offload_on_a_cpu_is_refused(tiny_spec: ModelSpec, offload: str) -> None:
    with pytest.raises(Unsupported, match=f"offload {offload} needs a GPU"):
        load_pipeline(tiny_spec, forced(tiny_spec, offload=offload), CPU)


def test_an_attention_backend_that_is_not_installed_is_refused(tiny_spec: ModelSpec) -> None:
    with pytest.raises(Unsupported, match="attention_backend sage cannot be used on this machine"):
        load_pipeline(tiny_spec, forced(tiny_spec, attention_backend="sage"), CPU)


def test_the_attention_backend_that_was_resolved_is_set(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec, attention_backend="native")
    processors = {
        part.processor._attention_backend for part in pipe.transformer.modules() if hasattr(part, "processor")
    }
    assert {str(getattr(backend, "value", backend)) for backend in processors} == {"native"}


def test_the_decoder_of_wan_stays_in_float32(miniature_folder: Callable[[str], Path]) -> None:
    from pipeline.miniature import spec_of
    from policy.catalogue import Catalogue

    spec = spec_of(Catalogue.load().get_model("wan2.1-t2v-1.3b"))
    pipe = load(spec, miniature_folder("wan2.1-t2v-1.3b"), dtype="bfloat16")
    assert pipe.transformer.dtype is torch.bfloat16
    assert pipe.vae.dtype is torch.float32
