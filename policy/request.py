"""RenderRequest: what a caller may ask for, and the check of it against the model's spec.

`parse_request` is the only door: it reports every problem at once, each with the limit and the nearest valid
value, so that a caller never has to guess twice.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from policy.catalogue import Catalogue
from policy.errors import FieldError, InvalidRequest, UnknownModel
from policy.job_cache import CacheChoice
from policy.lora import Choices
from policy.request_check import DRAWN_SEED_LIMIT, SEED_LIMIT, check_fields
from policy.request_shape import RANGE, check_shape
from policy.wording import kind_of, show

__all__ = [
    "DRAWN_SEED_LIMIT",
    "SEED_LIMIT",
    "CacheChoice",
    "Priority",
    "RenderRequest",
    "RunSeconds",
    "Seconds",
    "parse_request",
]

METADATA_KEYS = 16
METADATA_CHARACTERS = 512
LONGEST_TIMEOUT_S = 7 * 24 * 3600.0
LONGEST_RUN_S = 24 * 3600.0

Quality = Literal["lossless", "high"]
Priority = Literal["low", "normal", "high"]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT_S, allow_inf_nan=False)]
RunSeconds = Annotated[float, Field(gt=0, le=LONGEST_RUN_S, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=METADATA_CHARACTERS)]
Key = Annotated[str, Field(min_length=1, max_length=METADATA_CHARACTERS)]


class RenderRequest(BaseModel):
    """One order: one prompt, `n` images or one video. What is left out follows the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str = Field(description="Id of a model, as GET /v1/models lists them")
    prompt: str = Field(min_length=1, pattern=r"\S", description="What to draw")
    negative_prompt: str | None = Field(
        default=None, description="What to avoid, where the model supports it"
    )
    width: int | None = Field(default=None, ge=1, description="Pixels")
    height: int | None = Field(default=None, ge=1, description="Pixels")
    num_inference_steps: int | None = Field(default=None, ge=1, description="Denoising steps")
    guidance_scale: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    boundary_ratio: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="Where the first of two transformers hands over to the second, part of the noise range",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=SEED_LIMIT, description="Of image 0; image i has seed + i"
    )
    n: int = Field(default=1, ge=1, description="Number of images or videos")
    num_frames: int | None = Field(default=None, ge=1, description="Video only")
    fps: int | None = Field(default=None, ge=1, description="Video only")
    cache: CacheChoice = Field(
        default="default", description="Step reuse: the worker's, off, a preset, or knobs of its own"
    )
    quality: Quality = Field(
        default="lossless",
        description="Kernels that may draw it: lossless (exact ones), high (less exact ones too)",
    )
    lora: Choices = Field(default=[], description="LoRAs of the model, each with a strength")
    output_format: str | None = Field(default=None, description="File format, as the model lists them")
    image: str | None = Field(
        default=None,
        description="Picture to start from: a file's id, sha256:DIGEST, job:ID/INDEX, or a data: URL",
    )
    mask: str | None = Field(
        default=None, description="As image, of the same size: white is drawn anew, black is kept"
    )
    strength: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Way from the image: 1 keeps none of it",
    )
    priority: Priority = "normal"
    queue_timeout_s: Seconds | None = Field(
        default=None, description="The job expires if it has not started by then"
    )
    run_timeout_s: RunSeconds | None = Field(default=None, description="Longest running time of one attempt")
    metadata: dict[Key, Text] = Field(
        default={}, max_length=METADATA_KEYS, description="Kept with the job, not read"
    )


def parse_request(body: object, catalogue: Catalogue) -> RenderRequest:
    """Returns the request in `body`, a decoded JSON document.

    Raises:
        UnknownModel: The model is not offered; `errors` has this and whatever else can be said without it.
        InvalidRequest: Anything else; `errors` has every problem.
    """
    if not isinstance(body, Mapping):
        kind = kind_of(body)
        raise InvalidRequest(
            [FieldError("body", f"the body must be an object, not {kind}", show(body), "an object")]
        )
    shape = list(check_shape(body, RenderRequest))
    wrong_type = {_name(error) for kind, error in shape if kind not in RANGE}
    fields = {name: value for name, value in body.items() if name not in wrong_type and value is not None}
    try:
        narrower = _errors_of_model(fields, catalogue)
    except UnknownModel as unknown:
        raise UnknownModel(_in_order([*unknown.errors, *(error for _, error in shape)])) from None
    covered = {error.field for error in narrower}
    errors = [error for kind, error in shape if kind not in RANGE or error.field not in covered]
    if errors or narrower:
        raise InvalidRequest(_in_order([*errors, *narrower]))
    return RenderRequest.model_validate(body)


def _errors_of_model(fields: Mapping[str, Any], catalogue: Catalogue) -> list[FieldError]:
    """What the model's spec says; its limits are narrower than, and replace, those of the shape."""
    if "model" not in fields:
        return []
    return list(check_fields(fields, catalogue.get_model(fields["model"])))


def _in_order(errors: list[FieldError]) -> list[FieldError]:
    order = {name: index for index, name in enumerate(RenderRequest.model_fields)}
    return sorted(errors, key=lambda error: order.get(_name(error), len(order)))


def _name(error: FieldError) -> str:
    return error.field.partition(".")[0]
