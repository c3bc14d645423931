"""The catalogue: which models are offered, read from TOML files, one per checkpoint.

The bundled files lie in `policy/catalogue/`. An operator's folders may add models, or replace one by its id.
The folder `loras` in each has one TOML file per LoRA, which names the model it is for.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from policy.curve import FOLDER, read_curve
from policy.errors import FieldError, InvalidCatalogue, UnknownModel
from policy.given import collect
from policy.lora import LoraSpec
from policy.model_spec import ModelSpec
from policy.options import SECONDARY_KNOBS
from policy.wording import closest, listing, quote, show

BUNDLED = Path(__file__).parent / "catalogue"
LORAS = "loras"

Facts = TypeVar("Facts", bound=BaseModel)


class Catalogue(Mapping[str, ModelSpec]):
    """Model specs by id, in the order of their ids; read-only."""

    def __init__(self, specs: Mapping[str, ModelSpec]) -> None:
        self._specs = {key: specs[key] for key in sorted(specs)}

    @classmethod
    def load(cls, *extra_dirs: Path) -> "Catalogue":
        """Reads the bundled models, then each folder in turn; a later file replaces an earlier of its id.

        Raises:
            InvalidCatalogue: A folder is missing, or a file cannot be used.
        """
        specs: dict[str, ModelSpec] = {}
        loras: dict[tuple[str, str], LoraSpec] = {}
        for folder in (BUNDLED, *extra_dirs):
            models = read_folder(folder)
            specs.update(models)
            # Those of a model that is replaced were made for other weights.
            loras = {key: lora for key, lora in loras.items() if key[0] not in models}
            loras.update(_read_loras(folder / LORAS, specs))
        return cls({key: _with_loras(spec, loras) for key, spec in specs.items()})

    def get_model(self, model_id: str) -> ModelSpec:
        """Returns the spec, or raises UnknownModel with the ids that are offered."""
        if model_id in self._specs:
            return self._specs[model_id]
        nearest = closest(model_id, self)
        hint = f'; did you mean "{nearest}"?' if nearest else ""
        message = f"model {quote(model_id)} is not offered; offered: {listing(self, 'and')}{hint}"
        raise UnknownModel([FieldError("model", message, show(model_id), list(self), nearest)])

    def __getitem__(self, model_id: str) -> ModelSpec:
        return self._specs[model_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def read_folder(folder: Path) -> dict[str, ModelSpec]:
    """Reads the models that have a file in one folder, with the masks that stand beside."""
    if not folder.is_dir():
        raise InvalidCatalogue(f"{folder} is not a folder of model files")
    specs: dict[str, ModelSpec] = {}
    for path in sorted(folder.glob("*.toml")):
        spec = read_spec(path)
        if spec.id in specs:
            raise InvalidCatalogue(f'{path}: the folder has another file for model "{spec.id}"')
        specs[spec.id] = spec
    return _with_curves(specs, folder / FOLDER)


def _with_curves(specs: dict[str, ModelSpec], folder: Path) -> dict[str, ModelSpec]:
    """Adds the masks that were fitted to these very checkpoints; a file about another one is refused."""
    for path in sorted(folder.glob("*.toml")):
        curve = read_curve(path)
        spec = specs.get(curve.model)
        if spec is None or curve.revision != spec.revision:
            named = f"{curve.model}" + (f" at revision {curve.revision}" if curve.revision else "")
            raise InvalidCatalogue(f"{path}: no file in {folder.parent} is for {named}: fit the masks anew")
        if len(spec.transformers) > 1:
            raise InvalidCatalogue(f"{path}: {spec.id} has two transformers, and masks are fitted to one")
        specs[spec.id] = spec.model_copy(update={"curve": curve})
    return specs


def _read_loras(folder: Path, specs: Mapping[str, ModelSpec]) -> dict[tuple[str, str], LoraSpec]:
    loras: dict[tuple[str, str], LoraSpec] = {}
    for path in sorted(folder.glob("*.toml")):
        lora = _read(path, LoraSpec)
        spec = specs.get(lora.model)
        if spec is None:
            raise InvalidCatalogue(f'{path}: no model "{lora.model}" is in the catalogue')
        if lora.transformer not in spec.transformers:
            raise InvalidCatalogue(f"{path}: {lora.model} has no {lora.transformer}")
        if (lora.model, lora.name) in loras:
            raise InvalidCatalogue(f'{path}: the folder has another file for LoRA "{lora.name}"')
        loras[lora.model, lora.name] = lora
    return loras


def _with_loras(spec: ModelSpec, loras: Mapping[tuple[str, str], LoraSpec]) -> ModelSpec:
    own = (lora for (model, _), lora in sorted(loras.items()) if model == spec.id)
    return spec.model_copy(update={"loras": (*spec.loras, *own)})


def _read(path: Path, kind: type[Facts]) -> Facts:
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
        # As JSON: strict about types there, yet an array is a tuple.
        return kind.model_validate_json(json.dumps(facts, default=str), strict=True)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidCatalogue(f"{path}: {error}") from error
    except ValidationError as error:
        raise InvalidCatalogue(f"{path}: {_problems(error)}") from error


def read_spec(path: Path) -> ModelSpec:
    """Reads and checks one model's file."""
    spec = _read(path, ModelSpec)
    if spec.curve is not None:
        raise InvalidCatalogue(f"{path}: curve: fitted masks have a file of their own in {FOLDER}/")
    wrong = [error.message for error in collect(spec.policy, {}, {}).errors]
    if len(spec.transformers) == 1:
        wrong += [f"{name}: the model has one transformer" for name in SECONDARY_KNOBS if name in spec.policy]
    if wrong:
        raise InvalidCatalogue(f"{path}: {'; '.join(wrong)}")
    return spec


def _problems(error: ValidationError) -> str:
    lines = (f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
    return "; ".join(lines)
