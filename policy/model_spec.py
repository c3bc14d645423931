"""ModelSpec: the facts about one exact checkpoint, read from `catalogue/<id>.toml`.

Sizes are in pixels, weights in GB (10^9 bytes), guidance and steps as the pipeline counts them.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy.curve import Curve
from policy.lora import LoraSpec
from policy.mask import PRESET_PERCENT, choose_mask, minimum_steps, preset_rule
from policy.tomlfile import ID
from policy.wording import closest, listing, quote

if TYPE_CHECKING:
    from policy.plan import RenderPlan

Size = tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
Family = Literal[
    "flux",
    "flux2-klein",
    "ltx",
    "pixart-sigma",
    "qwen-image",
    "sana",
    "sd3",
    "wan",
    "wan2.2",
    "z-image",
]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


class SizeLimits(_Facts):
    """Width and height, (W, H)."""

    default: Size
    multiple: int = Field(gt=0)
    minimum: int = Field(gt=0)
    maximum: int = Field(gt=0)
    max_pixels: int = Field(gt=0)
    sizes: tuple[Size, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for width, height in (self.default, *self.sizes):
            if not self.admits(width, height):
                raise ValueError(f"size {width}x{height} breaks the model's own limits")
        return self

    def admits(self, width: int, height: int) -> bool:
        """Tells whether a picture of this size may be asked for."""
        sides_fit = all(
            side % self.multiple == 0 and self.minimum <= side <= self.maximum for side in (width, height)
        )
        return sides_fit and width * height <= self.max_pixels


class StepLimits(_Facts):
    """Denoising steps."""

    default: int = Field(gt=0)
    minimum: int = Field(gt=0)
    maximum: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order(self.minimum, self.default, self.maximum)
        return self


class GuidanceLimits(_Facts):
    """The one guidance number a caller sets.

    Attributes:
        parameter: Which argument of the pipeline call it is.
        style: none (ignored by the checkpoint), embedded (an input of the transformer), batched (one call of
            the transformer with both halves stacked), separate (two calls per step).
        off_at: Guidance is off at this scale and below.
        with_negative: Default when the caller gives a negative prompt; None: the same default.
    """

    default: float = Field(ge=0)
    minimum: float = Field(ge=0)
    maximum: float = Field(ge=0)
    parameter: Literal["guidance_scale", "true_cfg_scale"] = "guidance_scale"
    style: Literal["none", "embedded", "batched", "separate"]
    off_at: float = 1.0
    with_negative: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order(self.minimum, self.default, self.maximum)
        if self.with_negative is not None:
            _check_order(self.minimum, self.with_negative, self.maximum)
        return self

    def steers(self, scale: float) -> bool:
        """Tells whether the pipeline computes a second, unconditioned prediction at this scale."""
        return self.style in ("batched", "separate") and scale > self.off_at


class FrameLimits(_Facts):
    """Frames of a video: `num_frames % multiple == remainder`."""

    default: int = Field(gt=0)
    minimum: int = Field(gt=0)
    maximum: int = Field(gt=0)
    multiple: int = Field(gt=0)
    remainder: int = Field(ge=0)
    fps: int = Field(gt=0)
    fps_minimum: int = Field(gt=0)
    fps_maximum: int = Field(gt=0)
    fps_parameter: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for count in (self.default, self.minimum, self.maximum):
            if count % self.multiple != self.remainder:
                raise ValueError(f"{count} frames break the model's own rule")
        _check_order(self.fps_minimum, self.fps, self.fps_maximum)
        _check_order(self.minimum, self.default, self.maximum)
        return self


class RequestLimits(_Facts):
    """Further limits of one request; lengths in characters."""

    n: int = Field(gt=0)
    prompt_characters: int = Field(gt=0)
    negative_prompt: bool = False


class PictureInputs(_Facts):
    """How a model draws from a picture that is given.

    Attributes:
        image_to_image: Class of the pipeline that changes a whole picture; None: the family has none.
        inpaint: Class of the pipeline that changes a picture inside a mask; None: the family has none.
        strength: Default share of the way from the picture to something new.
    """

    image_to_image: str | None = None
    inpaint: str | None = None
    strength: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.image_to_image is None and self.inpaint is None:
            raise ValueError("inputs names neither an image_to_image nor an inpaint pipeline")
        return self

    def as_public_json(self) -> dict[str, Any]:
        """Returns what a caller may give, and the default strength."""
        able = {name: getattr(self, name) is not None for name in ("image_to_image", "inpaint")}
        return {**able, "strength": self.strength}


class Residency(_Facts):
    """What the weights need on a GPU.

    Attributes:
        component_gb: Size of each component in the checkpoint's own dtype, parameters times bytes.
        working_gb: Room for activations at the largest size.
        keep_resident_min_available_gb: Free memory from which `keep_resident` stays on the GPU while
            the rest is offloaded.
        keep_resident: The components that then stay.
        streamed_gb: What is on the GPU of a transformer whose blocks are fetched one by one: what lies
            outside of the blocks, and three of the largest (in use, coming, and left by a reused step).
            None: not known, and `auto` does not choose that way.
        fsdp_min_available_gb: Free memory of each of two GPUs from which `auto` and `speed` share the weights
            among them where one is too small; None: never by themselves.
        linear_share: Part of a transformer's weights that lies in linear layers, which alone are quantised.
    """

    component_gb: dict[str, float]
    working_gb: float = Field(ge=0)
    keep_resident_min_available_gb: float = Field(ge=0)
    keep_resident: tuple[str, ...] = ()
    streamed_gb: float | None = Field(default=None, gt=0)
    fsdp_min_available_gb: float | None = Field(default=None, gt=0)
    linear_share: float = Field(default=1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_names("keep_resident", self.keep_resident, self.component_gb, "component_gb")
        return self

    @property
    def weights_gb(self) -> float:
        """Size of all weights together."""
        return sum(self.component_gb.values())

    @property
    def largest_gb(self) -> float:
        """Size of the largest component."""
        return max(self.component_gb.values(), default=0.0)


class ModelSpec(_Facts):
    """One checkpoint: where it is, how it is called, what a caller may ask, how a worker runs it.

    Attributes:
        source: Hub id, folder, or `bundled:<name>` for weights inside this package.
        revision: Commit, tag or branch on the hub; None: not from the hub.
        boundary_ratio: Where two transformers change over, part of the noise range.
        blocks: Fewest blocks of a transformer that the cache sees in a row, which `cache_fn` and `cache_bn`
            share; None: not known, and a mount tells.
        call: Further fixed keyword arguments of the pipeline call.
        max_sequence_length: Text tokens, passed to the pipeline when not None.
        inputs: How it draws from a picture; None: it cannot.
        policy: The model config: values for options, weaker than flag and environment.
        fixed_threads: CPU threads that the model runs best with.
        loras: What the catalogue's folder `loras` has for this model, by name.
        curve: Step masks that were fitted to it, from a file of their own; None: none were.
    """

    id: str = Field(pattern=ID)
    name: str
    family: Family
    kind: Literal["image", "video"]
    source: str
    revision: str | None = None
    variant: str | None = None
    license: str
    description: str
    gated: bool = False
    pipeline_class: str
    transformers: Names = ("transformer",)
    boundary_ratio: float | None = Field(default=None, gt=0, lt=1)
    blocks: int | None = Field(default=None, gt=0)
    dtype: Literal["bfloat16", "float16", "float32"]
    size: SizeLimits
    steps: StepLimits
    guidance: GuidanceLimits
    frames: FrameLimits | None = None
    inputs: PictureInputs | None = None
    limits: RequestLimits
    max_sequence_length: int | None = Field(default=None, gt=0)
    call: dict[str, Any] = {}
    output_formats: Names
    policy: dict[str, Any] = {}
    residency: Residency
    fixed_threads: int | None = Field(default=None, gt=0)
    loras: tuple[LoraSpec, ...] = ()
    curve: Curve | None = None

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if (self.kind == "video") != (self.frames is not None):
            raise ValueError("a video model needs [frames], an image model has none")
        formats = ("mp4",) if self.kind == "video" else ("png", "jpeg", "webp")
        _check_names("output_formats", self.output_formats, formats, f"what {self.kind} models write")
        if self.kind == "video" and self.inputs is not None:
            raise ValueError("a video model draws from no picture")
        return self

    @model_validator(mode="after")
    def _negative_prompt_works(self) -> Self:
        guidance = self.guidance
        default = guidance.default if guidance.with_negative is None else guidance.with_negative
        if self.limits.negative_prompt and not guidance.steers(default):
            raise ValueError("a negative prompt would have no effect at the default guidance")
        return self

    @model_validator(mode="after")
    def _transformers_fit(self) -> Self:
        _check_names("transformers", self.transformers, self.residency.component_gb, "component_gb")
        if (len(self.transformers) == 2) != (self.boundary_ratio is not None):
            raise ValueError("boundary_ratio belongs to a model with two transformers")
        return self

    def calls_per_step(self, plan: "RenderPlan") -> Literal[1, 2]:
        """Returns how many transformer calls one step of this plan makes; 2 need a cache for each."""
        guidance = self.guidance
        two = guidance.style == "separate" and guidance.steers(plan.guidance_scale)
        if guidance.parameter == "true_cfg_scale":
            two = two and plan.negative_prompt is not None
        return 2 if two else 1

    def cache_minimum_steps(self, preset: str) -> int:
        """Returns the fewest steps at which the preset reuses one for certain.

        With two transformers the noise schedule shares out the steps; twice the number makes sure that
        one of them has enough.
        """
        if self.curve is None or preset not in PRESET_PERCENT:
            return minimum_steps(preset) * len(self.transformers)
        rule = preset_rule(preset, fitted=True)
        counts = range(1, self.curve.fits[0].steps + 1)
        return next(steps for steps in counts if 0 in choose_mask(rule, steps, self.curve).mask)

    def as_public_json(self) -> dict[str, Any]:
        """Returns what a caller needs to know to ask this model for something."""
        shown = (
            "id",
            "name",
            "family",
            "kind",
            "description",
            "license",
            "source",
            "revision",
            "size",
            "steps",
            "boundary_ratio",
        )
        body = self.model_dump(mode="json", include={*shown, "frames", "output_formats"})
        limits = self.limits.model_dump(mode="json")
        guidance = self.guidance.model_dump(mode="json", exclude={"parameter"})
        inputs = None if self.inputs is None else self.inputs.as_public_json()
        cache = {preset: self.cache_minimum_steps(preset) for preset in ("quality", "balanced", "fast")}
        loras = [lora.as_public_json() for lora in self.loras]
        return {
            **body,
            "guidance": guidance,
            "limits": limits,
            "inputs": inputs,
            "cache": {"minimum_steps": cache, "blocks": self.blocks},
            "loras": loras,
        }


def _check_names(field: str, names: Iterable[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            nearest = closest(name, known)
            hint = f"; nearest: {nearest}" if nearest else ""
            raise ValueError(f"{field} has {quote(name)}, which is not in {where} ({listing(known)}){hint}")


def _check_order(*numbers: float) -> None:
    if list(numbers) != sorted(numbers):
        raise ValueError(f"minimum, default and maximum are out of order: {numbers}")


def size_text(size: Iterable[int]) -> str:
    """Returns `WxH`."""
    return "x".join(str(side) for side in size)
