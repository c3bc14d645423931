"""LoRAs: which ones a model offers, and which ones a request asks for.

The list is the operator's: one file per LoRA in the folder `loras` of a catalogue. A request can name what is
listed and nothing else, so no caller makes a worker read a file of the caller's choice.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy.errors import FieldError
from policy.tomlfile import ID, SAFETENSORS, SHA256
from policy.wording import closest, listing, quote, show

MOST_LORAS = 4
LARGEST_RANK = 256
_CELL = re.compile(r"\s*([^:;]+?)\s*(?::\s*([+-]?[0-9]{0,3}(?:\.[0-9]{1,6})?)\s*)?")


class LoraSpec(BaseModel):
    """One LoRA that a model offers.

    Attributes:
        name: What requests call it.
        model: Id of the model it was made for.
        source: Path of a `.safetensors` file, `bundled:<path>` inside this package, or the hub id of the
            repository that holds `file`.
        file: Name of the file in the hub's repository.
        revision: Commit, tag or branch there.
        sha256: Of the file; another file is refused.
        transformer: Which of the model's transformers it changes.
        max_rank: A file with a larger rank is refused.
        scale: Strength when the caller names none.
        scale_minimum: Least strength a caller may name.
        scale_maximum: Greatest strength a caller may name.
        trigger: Words that belong into the prompt, if any.
        description: For people.
        license: For people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    name: str = Field(pattern=ID)
    model: str
    source: str
    file: str | None = Field(default=None, pattern=SAFETENSORS)
    revision: str | None = None
    sha256: str = Field(pattern=SHA256)
    transformer: str = "transformer"
    max_rank: int = Field(default=128, ge=1, le=LARGEST_RANK)
    scale: float = 1.0
    scale_minimum: float = 0.0
    scale_maximum: float = 2.0
    trigger: str | None = None
    description: str = ""
    license: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.scale_minimum <= self.scale <= self.scale_maximum:
            raise ValueError("scale_minimum, scale and scale_maximum are out of order")
        if (self.file is None) != self.source.endswith(".safetensors"):
            raise ValueError("source is a .safetensors file, or a hub id with the name of its file in `file`")
        return self

    def as_public_json(self) -> dict[str, Any]:
        """Returns what a caller needs to know to ask for it."""
        hidden = {"model", "source", "file", "revision", "transformer", "max_rank"}
        return self.model_dump(mode="json", exclude=hidden)


class LoraChoice(BaseModel):
    """A LoRA in a request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(description="As GET /v1/models/{id} lists it")
    scale: float | None = Field(default=None, allow_inf_nan=False, description="Strength; default: its own")


class LoraUse(BaseModel):
    """A LoRA in a plan: the choice with its gaps filled, and which file is meant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    scale: float
    sha256: str


Choices = Annotated[list[LoraChoice], Field(max_length=MOST_LORAS)]


def plan_loras(choices: Sequence[LoraChoice], offered: Sequence[LoraSpec]) -> tuple[LoraUse, ...]:
    """Fills the gaps of choices that `check_loras` accepted.

    They are put in the order of their names: sums of floats depend on their order, and the order in which a
    caller writes them is not meant to change a pixel. One of strength 0 changes nothing and is left out.
    """
    specs = {spec.name: spec for spec in offered}
    uses = (
        LoraUse(
            name=choice.name,
            scale=specs[choice.name].scale if choice.scale is None else choice.scale,
            sha256=specs[choice.name].sha256,
        )
        for choice in choices
    )
    return tuple(sorted((use for use in uses if use.scale != 0), key=lambda use: use.name))


def check_loras(choices: object, offered: Sequence[LoraSpec], model: str) -> Iterator[FieldError]:
    """Yields every way in which the field `lora` of a request, of the right type, breaks the list."""
    if not isinstance(choices, list | tuple):
        return
    specs = {spec.name: spec for spec in offered}
    seen: set[str] = set()
    for index, choice in enumerate(choices):
        chosen = choice if isinstance(choice, LoraChoice) else _read(choice)
        if chosen is None:
            continue  # the shape is wrong, and told elsewhere
        if chosen.name in seen:
            message = f"lora.{index}.name: {quote(chosen.name)} is named twice; name it once"
            yield FieldError(f"lora.{index}.name", message, show(chosen.name))
        elif chosen.name not in specs:
            yield _not_offered(index, chosen.name, specs, model)
        else:
            yield from _check_scale(index, chosen.scale, specs[chosen.name])
        seen.add(chosen.name)


def read_cell(cell: str) -> object:
    """Returns the choices that a table's cell means by `name:scale; name`, or the text when it means none."""
    choices: list[dict[str, object]] = []
    for part in cell.strip().strip(";").split(";"):
        found = _CELL.fullmatch(part)
        if found is None or found[2] in ("", "+", "-"):
            return cell
        choices.append({"name": found[1]} | ({} if found[2] is None else {"scale": float(found[2])}))
    return choices


def _read(choice: object) -> LoraChoice | None:
    try:
        return LoraChoice.model_validate(choice)
    except ValueError:
        return None


def _not_offered(index: int, name: str, specs: dict[str, LoraSpec], model: str) -> FieldError:
    field = f"lora.{index}.name"
    if not specs:
        return FieldError(field, f"{field}: {model} offers no LoRA: leave lora out", show(name), [])
    nearest = closest(name, specs)
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    message = f"{field}: {quote(name)} is no LoRA that {model} offers; offered: {listing(specs, 'and')}{hint}"
    return FieldError(field, message, show(name), list(specs), nearest)


def _check_scale(index: int, scale: float | None, spec: LoraSpec) -> Iterator[FieldError]:
    if scale is None or spec.scale_minimum <= scale <= spec.scale_maximum:
        return
    nearest = spec.scale_minimum if scale < spec.scale_minimum else spec.scale_maximum
    field = f"lora.{index}.scale"
    span = f"{spec.scale_minimum} to {spec.scale_maximum}"
    message = f"{field} must be {span} for {spec.name}, not {show(scale)}; nearest: {nearest}"
    yield FieldError(field, message, show(scale), nearest, nearest)
