"""Every model of the catalogue has a miniature of the real classes that draws without any download."""

import inspect
import socket
import threading
import typing
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from pipeline.errors import Unsupported
from pipeline.miniature import build, spec_of
from pipeline.miniatures import tokenizers
from pipeline.miniatures.families import BLOCKS, FAMILIES
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from tests.fixtures.models import cached_blocks

CATALOGUE = Catalogue.load()
MODELS = tuple(CATALOGUE)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the miniatures built so far."""
    return {"": tmp_path_factory.mktemp("miniatures")}


@pytest.fixture
def load(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> typing.Callable[[str], Any]:
    """Builds, once, and loads a model's miniature, with every way to the network shut."""

    connect = socket.socket.connect
    own_thread = threading.get_ident()

    def refuse(self: socket.socket, address: Any) -> None:
        if threading.get_ident() == own_thread:
            raise AssertionError("a miniature asked for the network")
        connect(self, address)  # another test's thread, such as upkeep

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def load(model_id: str) -> Any:
        if model_id not in folders:
            folders[model_id] = build(model_id, folders[""] / model_id)
        spec = CATALOGUE[model_id]
        pipe = getattr(diffusers, spec.pipeline_class).from_pretrained(
            folders[model_id], variant=spec.variant, local_files_only=True, use_safetensors=True
        )
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return load


def draw(pipe: Any, spec: ModelSpec, prompt: str, **changes: object) -> np.ndarray:
    small = spec_of(spec)
    call: dict[str, Any] = {
        "prompt": prompt,
        "width": small.size.default[0],
        "height": small.size.default[1],
        "num_inference_steps": 6,
        "max_sequence_length": small.max_sequence_length,
        "output_type": "np",
        "generator": torch.Generator().manual_seed(1),
    }
    if small.frames is not None:
        call["num_frames"] = small.frames.default
    output = pipe(**call | small.call | changes)
    return np.asarray(output.frames if small.frames is not None else output.images)[0]


@pytest.mark.parametrize("model_id", MODELS)
def test_a_miniature_draws_finite_pictures_that_follow_the_prompt(model_id: str, load: Any) -> None:
    pipe, spec = load(model_id), CATALOGUE[model_id]
    first = draw(pipe, spec, "a red house")
    width, height = spec_of(spec).size.default
    assert first.shape[-3:] == (height, width, 3)
    assert np.isfinite(first).all()
    assert first.std() > 0.02
    assert np.array_equal(first, draw(pipe, spec, "a red house"))
    assert np.abs(first - draw(pipe, spec, "two green boats at night")).mean() > 1e-4


@pytest.mark.parametrize("model_id", MODELS)
def test_a_miniature_has_the_classes_that_the_pipeline_declares(model_id: str, load: Any) -> None:
    pipe, spec = load(model_id), CATALOGUE[model_id]
    assert type(pipe).__name__ == spec.pipeline_class
    declared = inspect.signature(type(pipe).__init__).parameters
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module):
            annotation = declared[name].annotation
            assert isinstance(component, typing.get_args(annotation) or annotation), name
    absent = {name for name, component in pipe.components.items() if component is None}
    assert absent <= {"image_encoder", "feature_extractor", "transformer_2"} - set(spec.transformers)


@pytest.mark.parametrize("model_id", MODELS)
def test_each_transformer_has_blocks_to_skip(model_id: str, load: Any) -> None:
    pipe, spec = load(model_id), CATALOGUE[model_id]
    for name in spec.transformers:
        lists = [child for child in getattr(pipe, name).children() if isinstance(child, torch.nn.ModuleList)]
        assert max(map(len, lists)) >= BLOCKS
        assert cached_blocks(getattr(pipe, name)) == spec_of(spec).blocks


@pytest.mark.parametrize("model_id", MODELS)
def test_the_spec_of_a_miniature_is_the_models_own_but_small(model_id: str) -> None:
    spec = CATALOGUE[model_id]
    small = spec_of(spec)
    kept = (
        "id",
        "family",
        "kind",
        "pipeline_class",
        "transformers",
        "boundary_ratio",
        "guidance",
        "output_formats",
    )
    assert all(getattr(small, name) == getattr(spec, name) for name in kept)
    assert small.size.multiple == spec.size.multiple
    assert small.size.maximum <= 256
    assert small.dtype == "float32"
    assert (small.frames is None) == (spec.frames is None)
    assert small.frames is None or small.frames.default < 20
    assert spec_of(small) == small


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    one, two, other = (build("tiny", tmp_path / str(index), seed) for index, seed in enumerate((0, 0, 1)))
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    weights = Path("transformer/diffusion_pytorch_model.safetensors")
    assert weights in names
    assert (one / weights).read_bytes() != (other / weights).read_bytes()
    assert not [name for name in names if name.suffix in (".bin", ".pt", ".pkl")]


def test_building_leaves_the_random_numbers_of_the_caller_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build("tiny", tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_every_family_of_the_catalogue_has_a_miniature_and_the_other_way_round() -> None:
    assert {spec.family for spec in CATALOGUE.values()} == set(FAMILIES)


def test_a_name_or_family_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="sdxl"):
        build("sdxl", tmp_path)
    strange = CATALOGUE["tiny"].model_copy(update={"family": "sdxl"})
    with pytest.raises(Unsupported, match=r"sdxl.*flux"):
        build(strange, tmp_path)


def test_qwen_image_drops_its_template_and_not_a_word_of_the_prompt() -> None:
    # The pipeline drops a fixed number of tokens, counted with the real vocabulary.
    source = inspect.getsource(diffusers.QwenImagePipeline.__init__)
    template = source.split('prompt_template_encode = "')[1].split("{}")[0].encode().decode("unicode_escape")
    dropped = int(source.split("start_idx = ")[1].split("\n")[0])
    assert len(tokenizers.qwen()(template).input_ids) == dropped


@pytest.mark.parametrize("kind", ["clip", "t5", "qwen", "gemma"])
def test_a_tokenizer_takes_any_text_and_survives_its_folder(kind: str, tmp_path: Path) -> None:
    tokenizer = getattr(tokenizers, kind)()
    tokenizer.save_pretrained(tmp_path)
    read = type(tokenizer).from_pretrained(tmp_path)
    for text in ("", "A red house, by the sea!", "🏠 שלום\nworld", "x" * 5000):
        tokens = tokenizer(text).input_ids
        assert tokens == read(text).input_ids
        assert max(tokens, default=0) < len(tokenizer)
    assert tokenizer("red").input_ids != tokenizer("blue").input_ids


@pytest.mark.parametrize("model_id", [name for name in MODELS if len(CATALOGUE[name].transformers) == 2])
def test_both_transformers_take_a_share_of_the_steps(model_id: str, load: Any) -> None:
    pipe, calls = load(model_id), dict.fromkeys(CATALOGUE[model_id].transformers, 0)

    for name in calls:

        def count(*_: object, name: str = name) -> None:
            calls[name] += 1

        getattr(pipe, name).register_forward_pre_hook(count)
    draw(pipe, CATALOGUE[model_id], "a red house", guidance_scale=1.0)
    assert sum(calls.values()) == 6
    assert min(calls.values()) >= 1


def test_guidance_is_an_input_of_the_transformer_only_where_the_model_says_so(load: Any) -> None:
    for model_id, spec in CATALOGUE.items():
        if spec.family == "flux":
            embedded = load(model_id).transformer.config.guidance_embeds
            assert embedded == (spec.guidance.style == "embedded")
