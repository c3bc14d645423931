"""The tables of a model's file: what a caller may ask, and what the weights need.

Sizes are in pixels, weights in GB (10^9 bytes), guidance and steps as the pipeline counts them. The manual's
list of fields is made of the docstrings here.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy.wording import closest, listing, quote

Size = tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]]


class Table(BaseModel):
    """A table of a model's file, read once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)


class SizeLimits(Table):
    """Width and height of a picture, in pixels.

    Attributes:
        default: Of a request that names none.
        multiple: Both sides are multiples of this; usually what the VAE and the patches divide by.
        minimum: Shortest side.
        maximum: Longest side.
        max_pixels: Most pixels, width times height.
        sizes: Sizes that callers are shown; any other within the limits works too.
    """

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


class StepLimits(Table):
    """Denoising steps.

    Attributes:
        default: Of a request that names none.
        minimum: Fewest.
        maximum: Most.
    """

    default: int = Field(gt=0)
    minimum: int = Field(gt=0)
    maximum: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_order(self.minimum, self.default, self.maximum)
        return self


class GuidanceLimits(Table):
    """The one guidance number a caller sets.

    Attributes:
        default: Of a request that names none.
        minimum: Least.
        maximum: Greatest.
        parameter: Which argument of the pipeline call it is. With `true_cfg_scale` there is a second
            prediction only where there is a negative prompt.
        style: none (ignored by the checkpoint), embedded (an input of the transformer), batched (one call of
            the transformer with both halves stacked), separate (two calls per step).
        off_at: Guidance is off at this scale and below; of batched and separate.
        with_negative: Default when the caller gives a negative prompt. Left out: the same default.
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
        check_order(self.minimum, self.default, self.maximum)
        if self.with_negative is not None:
            check_order(self.minimum, self.with_negative, self.maximum)
        return self

    def steers(self, scale: float) -> bool:
        """Tells whether the pipeline computes a second, unconditioned prediction at this scale."""
        return self.style in ("batched", "separate") and scale > self.off_at


class FrameLimits(Table):
    """Frames of a video; images have no such table.

    Attributes:
        default: Frames of a request that names no number.
        minimum: Fewest.
        maximum: Most.
        multiple: Frames divided by this leave `remainder`; how far the VAE packs time together.
        remainder: See `multiple`; 1 for most models.
        fps: Frames a second of a request that names no number.
        fps_minimum: Least.
        fps_maximum: Greatest.
        fps_parameter: Argument of the pipeline call that takes it. Left out: the model does not want to know.
    """

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
        check_order(self.fps_minimum, self.fps, self.fps_maximum)
        check_order(self.minimum, self.default, self.maximum)
        return self


class RequestLimits(Table):
    """Further limits of one request.

    Attributes:
        n: Most pictures or videos of one request.
        prompt_characters: Longest prompt, and longest negative prompt.
        negative_prompt: Whether one may be given; guidance has to steer at its default then.
    """

    n: int = Field(gt=0)
    prompt_characters: int = Field(gt=0)
    negative_prompt: bool = False


class PictureInputs(Table):
    """How a model draws from a picture that is given.

    Attributes:
        image_to_image: Class of diffusers that changes a whole picture. Left out: there is none.
        inpaint: Class of diffusers that changes a picture inside a mask. Left out: there is none.
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


class Residency(Table):
    """What the weights need on a GPU.

    Attributes:
        component_gb: Size of each component in the checkpoint's own dtype: parameters times bytes of one, in
            10^9 bytes. The names are those of the pipeline's parts.
        working_gb: Room for activations at the largest size.
        keep_resident_min_available_gb: Free memory from which `keep_resident` stays on the GPU while
            the rest is offloaded: those, the largest of the others and `working_gb`, and some more.
        keep_resident: The components that then stay; small ones that are needed often.
        streamed_gb: What is on the GPU of a transformer whose blocks are fetched one by one: what lies
            outside of the blocks, and three of the largest (in use, coming, and left by a reused step).
            Left out: not known, and `auto` does not choose that way.
        fsdp_min_available_gb: Free memory of each of two GPUs from which `auto` and `speed` share the weights
            among them where one is too small. Left out: never by themselves.
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
        check_names("keep_resident", self.keep_resident, self.component_gb, "component_gb")
        return self

    @property
    def weights_gb(self) -> float:
        """Size of all weights together."""
        return sum(self.component_gb.values())

    @property
    def largest_gb(self) -> float:
        """Size of the largest component."""
        return max(self.component_gb.values(), default=0.0)


def check_names(field: str, names: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises ValueError for a name that is not among the known ones of `where`."""
    for name in names:
        if name not in known:
            nearest = closest(name, known)
            hint = f"; nearest: {nearest}" if nearest else ""
            raise ValueError(f"{field} has {quote(name)}, which is not in {where} ({listing(known)}){hint}")


def check_order(*numbers: float) -> None:
    """Raises ValueError unless minimum, default and maximum ascend."""
    if list(numbers) != sorted(numbers):
        raise ValueError(f"minimum, default and maximum are out of order: {numbers}")
