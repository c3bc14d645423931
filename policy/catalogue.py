"""The catalogue: which models are offered, read from TOML files, one per checkpoint.

The bundled files lie in `policy/catalogue/`. An operator's folders may add models, or replace one by its id.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from policy.errors import FieldError, InvalidCatalogue, UnknownModel
from policy.given import collect
from policy.model_spec import ModelSpec
from policy.options import SECONDARY_KNOBS
from policy.wording import closest, listing, quote, show

BUNDLED = Path(__file__).parent / "catalogue"


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
        for folder in (BUNDLED, *extra_dirs):
            specs.update(_read_folder(folder))
        return cls(specs)

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


def _read_folder(folder: Path) -> dict[str, ModelSpec]:
    if not folder.is_dir():
        raise InvalidCatalogue(f"{folder} is not a folder of model files")
    specs: dict[str, ModelSpec] = {}
    for path in sorted(folder.glob("*.toml")):
        spec = read_spec(path)
        if spec.id in specs:
            raise InvalidCatalogue(f'{path}: the folder has another file for model "{spec.id}"')
        specs[spec.id] = spec
    return specs


def read_spec(path: Path) -> ModelSpec:
    """Reads and checks one model's file."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
        # As JSON: strict about types there, yet an array is a tuple.
        spec = ModelSpec.model_validate_json(json.dumps(facts, default=str), strict=True)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidCatalogue(f"{path}: {error}") from error
    except ValidationError as error:
        raise InvalidCatalogue(f"{path}: {_problems(error)}") from error
    wrong = [error.message for error in collect(spec.policy, {}, {}).errors]
    if len(spec.transformers) == 1:
        wrong += [f"{name}: the model has one transformer" for name in SECONDARY_KNOBS if name in spec.policy]
    if wrong:
        raise InvalidCatalogue(f"{path}: {'; '.join(wrong)}")
    return spec


def _problems(error: ValidationError) -> str:
    lines = (f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
    return "; ".join(lines)
