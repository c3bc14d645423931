"""One folder of the catalogue: its models, and the step masks and LoRAs that it adds to models."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from policy.curve import FOLDER as MASKS
from policy.curve import read_curve
from policy.errors import InvalidCatalogue
from policy.given import collect
from policy.lora import LoraSpec
from policy.model_spec import ModelSpec
from policy.options import SECONDARY_KNOBS
from policy.tomlfile import read_file
from policy.wording import closest, listing, quote

LORAS = "loras"

Specs = dict[str, ModelSpec]

APART = {
    "curve": f"fitted masks have a file of their own in {MASKS}/",
    "loras": f"each LoRA has a file of its own in {LORAS}/",
}


def read_models(folder: Path) -> Iterator[tuple[Path, ModelSpec]]:
    """Yields the models that have a file in the folder, each with its file."""
    if not folder.is_dir():
        raise InvalidCatalogue(f"{folder} is not a folder of model files")
    seen: set[str] = set()
    for path in sorted(folder.glob("*.toml")):
        spec = read_spec(path)
        if spec.id in seen:
            raise InvalidCatalogue(f'{path}: the folder has another file for model "{spec.id}"')
        seen.add(spec.id)
        yield path, spec


def read_spec(path: Path) -> ModelSpec:
    """Reads and checks one model's file."""
    spec = read_file(path, ModelSpec, APART)
    wrong = [error.message for error in collect(spec.policy, {}, {}).errors]
    if len(spec.transformers) == 1:
        wrong += [f"{name}: the model has one transformer" for name in SECONDARY_KNOBS if name in spec.policy]
    if wrong:
        raise InvalidCatalogue(f"{path}: {'; '.join(wrong)}")
    return spec


def add_masks(folder: Path, specs: Specs) -> None:
    """Adds masks to the models that they were fitted to; a step count that was fitted before is replaced."""
    for path in sorted((folder / MASKS).glob("*.toml")):
        curve = read_curve(path)
        spec = _model(path, curve.model, specs)
        if curve.revision != spec.revision:
            raise InvalidCatalogue(
                f"{path}: made for {_at(curve.model, curve.revision)}, and the catalogue has "
                f"{_at(spec.id, spec.revision)}: fit the masks anew"
            )
        if len(spec.transformers) > 1:
            raise InvalidCatalogue(f"{path}: {spec.id} has two transformers, and masks are fitted to one")
        older = spec.curve
        joined = curve if older is None else older.with_fits(curve.fits)
        specs[spec.id] = spec.model_copy(update={"curve": joined})


def add_loras(folder: Path, specs: Specs) -> None:
    """Adds LoRAs to their models; one of the same name replaces that of an earlier folder."""
    seen: set[tuple[str, str]] = set()
    for path in sorted((folder / LORAS).glob("*.toml")):
        lora = read_file(path, LoraSpec)
        spec = _model(path, lora.model, specs)
        if lora.transformer not in spec.transformers:
            raise InvalidCatalogue(
                f"{path}: transformer: {lora.model} has no {lora.transformer}; "
                f"it has {listing(spec.transformers, 'and')}"
            )
        if (lora.model, lora.name) in seen:
            raise InvalidCatalogue(f'{path}: the folder has another file for LoRA "{lora.name}"')
        seen.add((lora.model, lora.name))
        loras = {each.name: each for each in (*spec.loras, lora)}
        specs[spec.id] = spec.model_copy(update={"loras": tuple(loras[name] for name in sorted(loras))})


def _model(path: Path, model: str, specs: Mapping[str, ModelSpec]) -> ModelSpec:
    if model in specs:
        return specs[model]
    nearest = closest(model, specs)
    hint = f"did you mean {quote(nearest)}?" if nearest else f"it has {listing(sorted(specs), 'and')}"
    raise InvalidCatalogue(f"{path}: model: no model {quote(model)} is in the catalogue; {hint}")


def _at(model: str, revision: str | None) -> str:
    return f"{model} at revision {revision}" if revision else f"{model} without a revision"
