"""ModelSpec: the facts about one exact checkpoint, read from `catalogue/<id>.toml`.

Its tables are in `policy.spec_tables`. The manual's list of fields is made of the docstrings here and there.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from policy.curve import Curve
from policy.lora import LoraSpec
from policy.mask import PRESET_PERCENT, choose_mask, minimum_steps, preset_rule
from policy.spec_tables import (
    FrameLimits,
    GuidanceLimits,
    PictureInputs,
    RequestLimits,
    Residency,
    SizeLimits,
    StepLimits,
    Table,
    check_names,
)
from policy.tomlfile import ID

if TYPE_CHECKING:
    from policy.plan import RenderPlan

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


class ModelSpec(Table):
    """One checkpoint: where it is, how it is called, what a caller may ask, how a worker runs it.

    Attributes:
        id: What requests and `--model` name. The file's own name does not matter.
        name: For people.
        family: Architecture: says which parts need float32 and over how many GPUs a job may be spread.
        kind: What it makes.
        source: Hub id, folder, or `bundled:NAME` for weights inside this package.
        revision: Commit, tag or branch on the hub. Left out: not from the hub, or its main branch.
        variant: Of the weights' files on the hub, such as `fp16`.
        license: For people.
        description: For people: what it is good for, and what it cannot.
        gated: Whether the hub asks for a token before it hands the weights out.
        pipeline_class: Class of diffusers that loads it and draws from text.
        transformers: Parts of the pipeline that denoise, in their order.
        boundary_ratio: Where two transformers change over, part of the noise range; two need it.
        blocks: Fewest blocks of a transformer that the cache sees in a row, which `cache_fn` and `cache_bn`
            share. Left out: not known, and a mount tells.
        dtype: Number format of the checkpoint's weights.
        call: Further fixed keyword arguments of the pipeline call.
        max_sequence_length: Most text tokens, an argument of the pipeline call. Left out: it has none.
        output_formats: What a request may ask for, the default first.
        policy: Values for a worker's options, by their names; weaker than flag and environment.
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
    call: dict[str, Any] = Field(default={})
    output_formats: Names
    policy: dict[str, Any] = Field(default={})
    residency: Residency
    fixed_threads: int | None = Field(default=None, gt=0)
    loras: tuple[LoraSpec, ...] = ()
    curve: Curve | None = None

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if (self.kind == "video") != (self.frames is not None):
            raise ValueError("a video model needs [frames], an image model has none")
        formats = ("mp4",) if self.kind == "video" else ("png", "jpeg", "webp")
        check_names("output_formats", self.output_formats, formats, f"what {self.kind} models write")
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
        check_names("transformers", self.transformers, self.residency.component_gb, "component_gb")
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


def size_text(size: Iterable[int]) -> str:
    """Returns `WxH`."""
    return "x".join(str(side) for side in size)
