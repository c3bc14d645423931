"""What a request may ask of LoRAs: names from the model's list, scales within its bounds."""

from pathlib import Path
from typing import Any

import pytest

from policy.catalogue import Catalogue
from policy.cells import typed_cells
from policy.errors import InvalidCatalogue, InvalidRequest
from policy.lora import LoraSpec, LoraUse
from policy.plan import make_plan
from policy.request import parse_request

SHA = "ab" * 32
INK = LoraSpec(name="ink", model="tiny", source="ink.safetensors", sha256=SHA, license="MIT", scale=0.8)
OIL = LoraSpec(name="oil", model="tiny", source="o/r", file="oil.safetensors", sha256=SHA, license="MIT")
ENTRY = f'name = "ink"\nmodel = "tiny"\nsource = "ink.safetensors"\nsha256 = "{SHA}"\nlicense = "MIT"\n'


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    bundled = Catalogue.load()
    tiny = bundled["tiny"].model_copy(update={"loras": (INK, OIL)})
    return Catalogue({**bundled, "tiny": tiny})


def asked(catalogue: Catalogue, lora: Any, model: str = "tiny") -> Any:
    return parse_request({"model": model, "prompt": "a house", "lora": lora}, catalogue)


def test_a_plan_has_every_scale_the_file_meant_and_one_order(catalogue: Catalogue) -> None:
    request = asked(catalogue, [{"name": "oil", "scale": 0.5}, {"name": "ink"}])
    plan = make_plan(request, catalogue["tiny"], lambda: 1)
    assert plan.lora == (
        LoraUse(name="ink", scale=0.8, sha256=SHA),
        LoraUse(name="oil", scale=0.5, sha256=SHA),
    )


def test_one_of_no_strength_is_not_planned(catalogue: Catalogue) -> None:
    request = asked(catalogue, [{"name": "ink", "scale": 0.0}])
    assert make_plan(request, catalogue["tiny"], lambda: 1).lora == ()


@pytest.mark.parametrize(
    ("lora", "field", "words", "nearest"),
    [
        ([{"name": "inc"}], "lora.0.name", 'did you mean "ink"?', "ink"),
        ([{"name": "../../etc/passwd"}], "lora.0.name", "no LoRA that tiny offers", None),
        ([{"name": "ink", "scale": 2.5}], "lora.0.scale", "must be 0.0 to 2.0 for ink", 2.0),
        ([{"name": "ink", "scale": -0.1}], "lora.0.scale", "must be 0.0 to 2.0 for ink", 0.0),
        ([{"name": "ink"}, {"name": "ink"}], "lora.1.name", "named twice", None),
        ([{"name": "ink", "weight": 1}], "lora.0.weight", "known: name and scale", None),
        ([{"scale": 1.0}], "lora.0.name", "is missing", None),
        ([{"name": 3}], "lora.0.name", "must be a string", None),
        ([{"name": "ink"}] * 5, "lora", "at most 4 entries, not a list with 5", None),
        (["ink"], "lora.0", "must be an object", None),
        ("ink", "lora", "must be a list", None),
        ([{"name": "in\ud800k"}], "lora", "half of a surrogate pair", None),
    ],
)
def test_what_is_wrong_is_named(
    catalogue: Catalogue, lora: Any, field: str, words: str, nearest: object
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(catalogue, lora)
    error = refused.value.errors[0]
    assert (error.field, error.nearest) == (field, nearest)
    assert words in error.message


def test_a_model_without_loras_says_so(catalogue: Catalogue) -> None:
    with pytest.raises(InvalidRequest, match="offers no LoRA"):
        asked(catalogue, [{"name": "ink"}], model="flux.1-schnell")


def test_callers_see_names_and_scales_and_no_path(catalogue: Catalogue) -> None:
    shown = catalogue["tiny"].as_public_json()["loras"]
    assert [lora["name"] for lora in shown] == ["ink", "oil"]
    assert "ink.safetensors" not in str(shown)


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        (" ink:0.5 ; oil", [{"name": "ink", "scale": 0.5}, {"name": "oil"}]),
        ("ink:-1", [{"name": "ink", "scale": -1.0}]),
        ("ink;", [{"name": "ink"}]),
        ("ink:", "ink:"),
        ("ink:much", "ink:much"),
    ],
)
def test_a_table_names_them_in_one_cell(cell: str, read: object) -> None:
    assert typed_cells({"lora": cell}) == {"lora": read}
    assert typed_cells({"lora": " "}) == {}


def test_an_operators_folder_adds_to_a_bundled_model(tmp_path: Path) -> None:
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "ink.toml").write_text(ENTRY)
    assert [lora.name for lora in Catalogue.load(tmp_path)["tiny"].loras] == ["ink", "mono"]
    assert Catalogue.load(tmp_path)["flux.1-dev"].loras == ()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (ENTRY.replace('"tiny"', '"tinny"'), 'no model "tinny" is in the catalogue; did you mean "tiny"'),
        (ENTRY + "scal = 3.0\n", "scal = 3.0 is not known here; did you mean scale"),
        (ENTRY.replace('"ink"', '"Ink"'), 'name must be .* not "Ink"; nearest: ink'),
        (ENTRY + 'transformer = "transformer_2"\n', "tiny has no transformer_2"),
        (ENTRY.replace(".safetensors", ".bin"), "source is a .safetensors file"),
        (ENTRY + 'file = "ink.pt"\n', "file"),
        (ENTRY + "scale = 3.0\n", "out of order"),
        (ENTRY + "max_rank = 1000\n", "max_rank"),
        (ENTRY.replace(SHA, "abc"), "sha256"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, entry: str, words: str) -> None:
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "ink.toml").write_text(entry)
    with pytest.raises(InvalidCatalogue, match=words):
        Catalogue.load(tmp_path)
