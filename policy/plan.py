"""RenderPlan: a request with every gap filled; enough to repeat the work."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from policy.job_cache import CacheChoice
from policy.lora import LoraUse, plan_loras
from policy.model_spec import ModelSpec
from policy.pictures import Given, GivenPicture, PlannedPicture, size_like
from policy.references import PICTURES
from policy.request import DRAWN_SEED_LIMIT, Quality, RenderRequest
from policy.spec_tables import Size
from policy.strength import executed_steps

NO_PICTURES: Given = MappingProxyType({})


class RenderPlan(BaseModel):
    """What a worker renders. Image `i` has seed `seed + i`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    revision: str | None
    kind: Literal["image", "video"]
    prompt: str
    negative_prompt: str | None
    width: int
    height: int
    num_inference_steps: int
    guidance_scale: float
    boundary_ratio: float | None = None  # what a plan of an older version was drawn with is the model's
    seed: int
    n: int
    num_frames: int | None
    fps: int | None
    cache: CacheChoice
    quality: Quality = "lossless"  # what a plan of an older version was drawn with
    lora: tuple[LoraUse, ...] = ()
    output_format: str
    image: PlannedPicture | None = None
    mask: PlannedPicture | None = None
    strength: float | None = None

    @property
    def executed_steps(self) -> int:
        """Steps that are run for one picture: fewer than asked for when it starts from one that is given."""
        return executed_steps(self.num_inference_steps, self.strength)

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed per image."""
        return tuple(range(self.seed, self.seed + self.n))


def make_plan(
    request: RenderRequest, spec: ModelSpec, draw_seed: Callable[[], int], pictures: Given = NO_PICTURES
) -> RenderPlan:
    """Fills every gap of a request that `parse_request` accepted for this spec, and `check_given` after it.

    Args:
        request: The request.
        spec: The spec of its model.
        draw_seed: Returns a random integer, not negative; used when the request names no seed.
        pictures: The files that the request names.

    Returns:
        The plan; the seed of its last image is below 2^53, so that every JSON reader keeps it exact, and
        below 10^15 when it was drawn.
    """
    n = _or(request.n, 1)
    guidance_scale = _guidance_scale(request, spec)
    given = given_pictures(request, pictures)
    size = _size(request, spec, given.get("image"))
    return RenderPlan(
        model=spec.id,
        revision=spec.revision,
        kind=spec.kind,
        prompt=request.prompt,
        negative_prompt=_negative_prompt(request, spec, guidance_scale),
        width=size[0],
        height=size[1],
        num_inference_steps=_or(request.num_inference_steps, spec.steps.default),
        guidance_scale=guidance_scale,
        boundary_ratio=spec.boundary_ratio if request.boundary_ratio is None else request.boundary_ratio,
        seed=request.seed if request.seed is not None else draw_seed() % (DRAWN_SEED_LIMIT - n),
        n=n,
        num_frames=_or(request.num_frames, spec.frames.default) if spec.frames else None,
        fps=_or(request.fps, spec.frames.fps) if spec.frames else None,
        cache=request.cache,
        quality=request.quality,
        lora=plan_loras(request.lora, spec.loras),
        output_format=request.output_format or spec.output_formats[0],
        strength=_strength(request, spec),
        **{name: PlannedPicture.cut(picture.sha256, picture.size, size) for name, picture in given.items()},
    )


def given_pictures(request: RenderRequest, pictures: Given) -> dict[str, GivenPicture]:
    """Returns the files that the request names, by field."""
    named = {name: getattr(request, name) for name in PICTURES}
    return {name: pictures[text.strip()] for name, text in named.items() if text is not None}


def _size(request: RenderRequest, spec: ModelSpec, image: GivenPicture | None) -> Size:
    if image is not None and request.width is None:
        return size_like(image.size, spec.size)
    return (_or(request.width, spec.size.default[0]), _or(request.height, spec.size.default[1]))


def _strength(request: RenderRequest, spec: ModelSpec) -> float | None:
    if request.image is None or spec.inputs is None:
        return None
    return spec.inputs.strength if request.strength is None else request.strength


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _guidance_scale(request: RenderRequest, spec: ModelSpec) -> float:
    if request.guidance_scale is not None:
        return request.guidance_scale
    if request.negative_prompt and spec.guidance.with_negative is not None:
        return spec.guidance.with_negative
    return spec.guidance.default


def _negative_prompt(request: RenderRequest, spec: ModelSpec, guidance_scale: float) -> str | None:
    """The pipelines with `true_cfg_scale` guide only with a negative prompt; an empty one will do."""
    if request.negative_prompt:
        return request.negative_prompt
    needed = spec.guidance.parameter == "true_cfg_scale" and spec.guidance.steers(guidance_scale)
    return "" if needed else None
