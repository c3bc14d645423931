"""Every option of a worker, once.

Command-line flags, environment variables, the resolver, `docs/policy.md` and what the API shows are derived
from `OPTIONS`. An option whose larger values are not built admits only what works, and says so in its help.

A default of None means that the value follows something else: a cache knob follows the preset, a
`secondary_` knob follows the one without the prefix. `policy.resolve` fills these in, and `auto` of
`dtype`, `offload` and `vae_tiling` too, so that a resolved policy shows what is in effect.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as _replace
from types import MappingProxyType

from policy.kernels import KERNELS
from policy.platforms import MODES

ENV_PREFIX = "RENDERQ_"
SECONDARY = "secondary_"
PRESETS = ("quality", "balanced", "fast", "adaptive")
STATIC_PRESETS = ("quality", "balanced", "fast")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: Name in Python, TOML and JSON.
        type: bool, int, float, str, or tuple for a comma-separated list of texts.
        default: Value when nothing else sets it; None: it follows something else (see the help).
        help: One or two sentences.
        allowed: The values admitted, where they can be listed. `True` and `False` in the list of a str
            option are written `true` and `false`.
        minimum: Smallest number admitted.
        maximum: Largest number admitted.
    """

    name: str
    type: type
    default: object
    help: str
    allowed: tuple[object, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command-line flag; a bool option has `negative_flag` too."""
        return "--" + self.name.replace("_", "-")

    @property
    def negative_flag(self) -> str | None:
        """The flag that turns a bool option off, None for other types."""
        return "--no-" + self.name.replace("_", "-") if self.type is bool else None


def _cache_knobs() -> Iterator[Option]:
    yield Option(
        "cache_preset",
        str,
        "balanced",
        "How much is reused: quality, balanced and fast are fixed step masks, adaptive uses a threshold.",
        allowed=PRESETS,
    )
    yield Option(
        "cache_fn", int, None, "First blocks computed in every step; default 1.", minimum=1, maximum=64
    )
    yield Option(
        "cache_bn", int, None, "Last blocks computed in every step; default 0.", minimum=0, maximum=64
    )
    yield Option(
        "cache_warmup_steps",
        int,
        None,
        "Lead-in: first steps that are always computed; default: the fitted mask's own, else the preset's 4.",
        minimum=1,
        maximum=100,
    )
    yield Option(
        "cache_threshold",
        float,
        None,
        "adaptive only: largest relative residual difference at which a step is reused; default 0.12.",
        minimum=0.001,
        maximum=10.0,
    )
    yield Option(
        "cache_max_consecutive",
        int,
        None,
        "adaptive only: most steps reused in a row; default 3.",
        minimum=1,
        maximum=100,
    )
    yield Option(
        "cache_taylorseer",
        int,
        None,
        "Order of the Taylor predictor for reused steps; 0: repeat the last residual. Default: the mask's.",
        allowed=(0, 1, 2),
    )
    yield Option(
        "cache_scm",
        str,
        None,
        "Own step mask: LEAD:COMPUTED:REUSED (such as 4:1:1), one digit per step (such as 111101011), or "
        "fit:50 for the mask fitted to the model that reuses 50 %; default: the preset's.",
    )


def _secondary(option: Option) -> Option:
    text = f"As `{option.name}`, for the second transformer of a model that has two; default: as the first."
    return _replace(option, name=SECONDARY + option.name, default=None, help=text)


def _all_options() -> Iterator[Option]:
    yield Option(
        "performance_mode",
        str,
        "auto",
        "What is derived from the hardware: manual (nothing), auto, speed or memory.",
        allowed=("manual", "auto", "speed", "memory"),
    )
    yield from _compile_options()
    yield Option("cache", bool, True, "Reuse transformer work between steps (Cache-DiT).")
    knobs = tuple(_cache_knobs())
    yield from knobs
    yield from map(_secondary, knobs)
    yield from _placement_options()
    yield from _warmup_options()
    yield from _scale_options()


def _compile_options() -> Iterator[Option]:
    yield Option("compile", bool, False, "Compile the transformer before the worker is ready. Opt-in.")
    yield Option(
        "compile_scope",
        str,
        "regional",
        "regional: the repeated blocks; whole: the whole transformer, slower to compile.",
        allowed=("regional", "whole"),
    )
    yield Option(
        "compile_mode",
        str,
        "default",
        "Mode of torch.compile.",
        allowed=MODES,
    )
    yield Option(
        "compile_dynamic",
        str,
        "auto",
        "Compile for changing shapes: auto (from the second shape on), true (at once), false (never).",
        allowed=("auto", True, False),
    )
    yield Option(
        "compile_cache",
        bool,
        True,
        "Keep what the compiler made, and begin with what a worker of the same kind has kept.",
    )
    yield Option(
        "capture",
        bool,
        False,
        "Record what the transformer does at the sizes of the warm-up as CUDA graphs and replay it, without "
        "a compiler; other sizes run as usual. Opt-in.",
    )


def _placement_options() -> Iterator[Option]:
    yield Option(
        "dtype",
        str,
        "auto",
        "Number format of the weights; auto: the checkpoint's where the hardware has it, float32 on a CPU.",
        allowed=("auto", "bfloat16", "float16", "float32"),
    )
    yield Option(
        "attention_backend",
        str,
        "auto",
        "Attention kernel by its diffusers name; auto: leave what the libraries choose. One that is less "
        "exact serves the jobs alone whose `quality` is high.",
        allowed=("auto", *KERNELS),
    )
    yield Option(
        "quantize",
        str,
        "none",
        "Number format of the transformers' linear layers (torchao): int8 (weights, anywhere), fp8 (weights "
        "and what they are multiplied with, on GPUs that compute it). Never chosen for you.",
        allowed=("none", "int8", "fp8"),
    )
    yield Option("quantize_text", bool, False, "With quantize: the text encoders too.")
    yield Option(
        "offload",
        str,
        "auto",
        "Where weights wait: none (on the GPU), model (one component at a time on the GPU), group (block by "
        "block, the next one fetched while one computes), sequential (layer by layer, slow). auto: by "
        "performance mode and free memory.",
        allowed=("auto", "none", "model", "group", "sequential"),
    )
    yield Option(
        "keep_resident",
        tuple,
        (),
        "With offload=model or group: components that stay on the GPU all the same, comma separated.",
    )
    yield Option(
        "vae_tiling",
        str,
        "auto",
        "Decode in tiles to save memory: auto (by performance mode and free memory), true, false.",
        allowed=("auto", True, False),
    )


def _warmup_options() -> Iterator[Option]:
    yield Option("warmup", bool, True, "Run every declared size once before the worker takes jobs.")
    yield Option(
        "warmup_sizes",
        tuple,
        (),
        "Sizes to warm up, comma separated, such as 1024x1024,768x1344; default: the model's default size.",
    )
    yield Option(
        "new_shape",
        str,
        "eager",
        "A request at a shape not yet compiled: eager (runs at once, uncompiled) or compile (it waits).",
        allowed=("eager", "compile"),
    )


def _scale_options() -> Iterator[Option]:
    yield Option(
        "microbatch",
        int,
        1,
        "Most pictures that are drawn in one pass: of one job, or of jobs alike that wait. Jobs whose "
        "`quality` is lossless share one only where the warm-up found no bit changed by that.",
        minimum=1,
        maximum=16,
    )
    yield Option(
        "cfg_parallel",
        int,
        1,
        "GPUs, or groups of them, that share the two predictions of guidance. They multiply with "
        "`context_parallel`.",
        minimum=1,
        maximum=2,
    )
    yield Option(
        "context_parallel",
        int,
        1,
        "GPUs that share the tokens of one picture or video.",
        minimum=1,
        maximum=8,
    )
    yield Option(
        "fsdp",
        int,
        1,
        "GPUs that share the weights, for a model too large for one: 1, or all that the worker has. By "
        "performance mode and free memory where nothing is set.",
        minimum=1,
        maximum=8,
    )


OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _all_options()})
CACHE_KNOBS: tuple[str, ...] = tuple(option.name for option in _cache_knobs())
SECONDARY_KNOBS: tuple[str, ...] = tuple(SECONDARY + name for name in CACHE_KNOBS)
