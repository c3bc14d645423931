"""The catalogue: which models are offered, read from TOML files, one per checkpoint.

The bundled files lie in `policy/catalogue/`. An operator's folders may add models, or replace one by its id.
The folder `loras` in each has one TOML file per LoRA, `masks` one per model with the step masks fitted to it;
both name the model they are for, which may stand in another folder.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from policy.catalogue_folder import add_loras, add_masks, read_models
from policy.errors import FieldError, UnknownModel
from policy.model_spec import ModelSpec
from policy.replacing import take_over
from policy.wording import closest, listing, quote, show

BUNDLED = Path(__file__).parent / "catalogue"


class Catalogue(Mapping[str, ModelSpec]):
    """Model specs by id, in the order of their ids; read-only."""

    def __init__(self, specs: Mapping[str, ModelSpec], notes: Mapping[str, list[str]] | None = None) -> None:
        self._specs = {key: specs[key] for key in sorted(specs)}
        self._notes = notes or {}

    @classmethod
    def load(cls, *extra_dirs: Path) -> "Catalogue":
        """Reads the bundled models, then each folder in turn; a later file replaces an earlier of its id.

        Raises:
            InvalidCatalogue: A folder is missing, or a file cannot be used.
        """
        specs: dict[str, ModelSpec] = {}
        notes: dict[str, list[str]] = {}
        for folder in (BUNDLED, *extra_dirs):
            for path, model in read_models(folder):
                old = specs.get(model.id)
                specs[model.id], lost = (model, None) if old is None else take_over(old, model)
                if lost:
                    notes.setdefault(model.id, []).append(f"{path}: {lost}")
            add_masks(folder, specs)
            add_loras(folder, specs)
        return cls(specs, notes)

    def get_model(self, model_id: str) -> ModelSpec:
        """Returns the spec, or raises UnknownModel with the ids that are offered."""
        if model_id in self._specs:
            return self._specs[model_id]
        raise unknown_model(model_id, self)

    def notes(self, model_id: str) -> list[str]:
        """Returns what was not taken over when a file replaced this model."""
        return self._notes.get(model_id, [])

    def __getitem__(self, model_id: str) -> ModelSpec:
        return self._specs[model_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def unknown_model(model_id: str, offered: Mapping[str, object]) -> UnknownModel:
    """Returns the refusal of an id that is not offered."""
    nearest = closest(model_id, offered)
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    message = f"model {quote(model_id)} is not offered; offered: {listing(offered, 'and')}{hint}"
    return UnknownModel([FieldError("model", message, show(model_id), list(offered), nearest)])
