"""The models on offer, and an operator's own."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from policy.catalogue import BUNDLED, Catalogue
from policy.errors import InvalidCatalogue, UnknownModel
from policy.model_spec import ModelSpec
from tests.policy.parts import CATALOGUE, SCHNELL, TINY, resolved

SPECS = list(CATALOGUE.values())
every_model = pytest.mark.parametrize("spec", SPECS, ids=list(CATALOGUE))
TINY_TEXT = (BUNDLED / "tiny.toml").read_text(encoding="utf-8")


def write(folder: Path, text: str, name: str = "own.toml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_these_models_are_bundled() -> None:
    assert list(CATALOGUE) == [
        "flux.1-dev",
        "flux.1-schnell",
        "flux.2-klein-4b",
        "ltx-video",
        "pixart-sigma",
        "qwen-image",
        "sana-1.6b",
        "sd3.5-medium",
        "tiny",
        "wan2.1-t2v-1.3b",
        "wan2.2-t2v-a14b",
        "z-image-turbo",
    ]
    assert len(CATALOGUE) == 12


@every_model
def test_a_models_file_bears_its_id(spec: ModelSpec) -> None:
    assert (BUNDLED / f"{spec.id}.toml").is_file()


@every_model
def test_the_pipeline_takes_every_argument_that_the_spec_makes_the_worker_pass(spec: ModelSpec) -> None:
    diffusers = importlib.import_module("diffusers")
    call = inspect.signature(getattr(diffusers, spec.pipeline_class).__call__).parameters
    wanted = {*spec.call, spec.guidance.parameter, "max_sequence_length"}
    if spec.limits.negative_prompt or spec.guidance.parameter == "true_cfg_scale":
        wanted.add("negative_prompt")
    if spec.frames:
        wanted |= {"num_frames", spec.frames.fps_parameter or "num_frames"}
    assert wanted <= set(call)


@every_model
def test_weights_from_the_hub_are_pinned_to_a_commit(spec: ModelSpec) -> None:
    if spec.source.startswith("bundled:"):
        assert spec.revision is None
    else:
        assert re.fullmatch("[0-9a-f]{40}", spec.revision or "")


@every_model
def test_what_stays_on_the_gpu_leaves_room_for_the_largest_of_the_rest(spec: ModelSpec) -> None:
    need = spec.residency
    kept = sum(need.component_gb[name] for name in need.keep_resident)
    moved = max(
        (size for name, size in need.component_gb.items() if name not in need.keep_resident), default=0
    )
    assert need.keep_resident_min_available_gb >= kept + moved + need.working_gb
    assert set(spec.transformers) <= set(need.component_gb)


def test_no_model_opts_in_to_compile() -> None:
    assert not [spec.id for spec in SPECS if "compile" in spec.policy]


@pytest.mark.parametrize("model", ["flux.1-schnell", "flux.2-klein-4b", "z-image-turbo"])
def test_few_step_checkpoints_turn_the_cache_off_in_their_config(model: str) -> None:
    policy = resolved(CATALOGUE[model])
    assert policy["cache"] is False
    assert policy.options["cache"].source == "model"


def test_tiny_says_what_it_can_draw_and_what_it_is_for() -> None:
    for word in ("64x64", "house", "boat", "tried", "no effect"):
        assert word in TINY.description
    assert "\n" not in TINY.description
    assert TINY.fixed_threads == 1


@every_model
def test_what_callers_see_of_a_model_holds_all_limits_and_nothing_of_the_operators(spec: ModelSpec) -> None:
    shown = spec.as_public_json()
    assert shown["size"]["multiple"] == spec.size.multiple
    assert shown["size"]["default"] == list(spec.size.default)
    assert shown["steps"] == {
        "default": spec.steps.default,
        "minimum": spec.steps.minimum,
        "maximum": spec.steps.maximum,
    }
    assert shown["limits"]["n"] == spec.limits.n
    assert shown["cache"]["minimum_steps"]["quality"] == spec.cache_minimum_steps("quality")
    assert (shown["frames"] is None) == (spec.kind == "image")
    assert not {"policy", "residency", "call", "fixed_threads"} & set(shown)


def test_an_unknown_model_is_answered_with_the_list() -> None:
    with pytest.raises(UnknownModel, match=r'did you mean "flux\.1-dev"'):
        CATALOGUE.get_model("flux1-dev")


def test_an_operators_folder_adds_models(tmp_path: Path) -> None:
    own = write(tmp_path / "own", TINY_TEXT.replace('id = "tiny"', 'id = "tiny-2"'))
    catalogue = Catalogue.load(own)
    assert "tiny-2" in catalogue
    assert "tiny" in catalogue
    assert list(catalogue) == sorted(catalogue)


def test_the_last_folder_replaces_a_model_by_its_id(tmp_path: Path) -> None:
    first = write(tmp_path / "first", TINY_TEXT.replace("n = 8", "n = 2"))
    second = write(tmp_path / "second", TINY_TEXT.replace("n = 8", "n = 3"))
    assert Catalogue.load(first)["tiny"].limits.n == 2
    assert Catalogue.load(first, second)["tiny"].limits.n == 3
    assert Catalogue.load(second, first)["tiny"].limits.n == 2


def test_two_files_of_one_folder_cannot_have_one_id(tmp_path: Path) -> None:
    write(tmp_path, TINY_TEXT, "a.toml")
    write(tmp_path, TINY_TEXT, "b.toml")
    with pytest.raises(InvalidCatalogue, match=r"b\.toml: the folder has another file for model \"tiny\""):
        Catalogue.load(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCatalogue, match="absent is not a folder"):
        Catalogue.load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "tiny"', 'id = "Tiny Model"', 'digit first, not "Tiny Model"; nearest: tiny-model'),
        ('id = "tiny"', "", "id is missing"),
        ("multiple = 16", "multiple = 48", "size 64x64 breaks the model's own limits"),
        ("default = 24", "default = 99", "out of order"),
        ("with_negative = 2.5", "", "a negative prompt would have no effect at the default guidance"),
        ("with_negative = 2.5", "with_negative = 99", "out of order"),
        ('style = "separate"', 'style = "seperate"', 'not "seperate"; nearest: separate'),
        ('output_formats = ["png"', 'output_formats = ["mp4"', "what image models write (png, jpeg or webp)"),
        ('kind = "image"', 'kind = "video"', "a video model needs"),
        ('"transformer", "vae"]', '"transformer", "vea"]', "text_encoder_2); nearest: vae"),
        ('dtype = "float32"', 'dtype = "float32"\nboundary_ratio = 0.5', "boundary_ratio belongs to"),
        (
            "[limits]",
            "[policy]\ncach = false\n[limits]",
            "cach in the model's file is not an option; did you mean cache",
        ),
        (
            "[limits]",
            '[policy]\ncompile = "maybe"\n[limits]',
            "compile in the model's file must be true or false",
        ),
        ("[limits]", "[policy]\nsecondary_cache_fn = 2\n[limits]", "the model has one transformer"),
        ("n = 8", "n = true", "limits.n must be an integer, not true"),
        ("n = 8", 'n = "8"', 'limits.n must be an integer, not "8"'),
        ('license = "', 'gated = 1\nlicense = "', "gated must be true or false, not 1"),
        ("[limits]", "[limites]\n[limits]", "limites is not known here; did you mean limits?"),
        ("blocks = 10", "blcks = 10", "blcks = 10 is not known here; did you mean blocks?"),
        ("multiple = 16", "multipel = 16", "size.multipel = 16 is not known here; did you mean multiple?"),
        ('family = "flux"', 'family = "flx"', 'z-image, not "flx"; nearest: flux'),
        ('kind = "image"', 'kind = "images"', 'kind must be image or video, not "images"; nearest: image'),
        ('dtype = "float32"', 'dtype = "float23"', 'not "float23"; nearest: float32'),
        ("blocks = 10", "blocks = 0", "blocks must be more than 0, not 0; nearest: 1"),
        ("strength = 0.6", "strength = 1.5", "inputs.strength must be at most 1.0, not 1.5; nearest: 1.0"),
        ("default = [64, 64]", "default = [64]", "size.default.1 is missing"),
        ("working_gb = 0.1", "working_gb = nan", "residency.working_gb must be a finite number, not nan"),
        ("blocks = 10", 'transformers = ["transfrmer"]', 'transformers has "transfrmer"'),
        ("[limits]", '[[loras]]\nname = "x"\n[limits]', "loras: each LoRA has a file of its own in loras/"),
        ("[limits]", "[limits", "own.toml"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_its_name_and_problem(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TINY_TEXT
    write(tmp_path, TINY_TEXT.replace(old, new, 1))
    with pytest.raises(InvalidCatalogue, match=re.escape(message)) as refusal:
        Catalogue.load(tmp_path)
    assert "own.toml" in str(refusal.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(InvalidCatalogue, match=r"own\.toml"):
        Catalogue.load(tmp_path)


def test_frames_that_break_their_own_rule_are_refused(tmp_path: Path) -> None:
    text = (BUNDLED / "ltx-video.toml").read_text(encoding="utf-8").replace("default = 161", "default = 160")
    with pytest.raises(InvalidCatalogue, match="160 frames break"):
        Catalogue.load(write(tmp_path, text))


def test_other_files_in_a_folder_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "not toml", "README.md")
    assert len(Catalogue.load(tmp_path)) == len(CATALOGUE)


def test_a_spec_survives_json_as_a_worker_keeps_it() -> None:
    assert ModelSpec.model_validate_json(SCHNELL.model_dump_json()) == SCHNELL
