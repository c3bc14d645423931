"""What this hardware, or what is installed on it, cannot do: placement, kernels, quantisation, graphs."""

from collections.abc import Iterator

from policy.advice import or_offload
from policy.kernels import KERNELS, PLAIN, is_exact
from policy.packages import OPTIONAL
from policy.platforms import PLATFORMS
from policy.setting import Conflict, Setting, conflict
from policy.wording import listing, show

_FP8_SINCE = (8, 9)  # Ada and Hopper are the first to compute it


def placement_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields what is wrong with where weights are, and in which format."""
    values, on_cpu = setting.values, setting.hardware.device == "cpu"
    if on_cpu and values["offload"] != "none":
        message = f"offload {values['offload']} needs a GPU: there is none here"
        yield conflict(setting, message, "offload", limit="none", nearest="none")
    if not on_cpu and values["dtype"] == "bfloat16" and not setting.hardware.supports_bf16:
        message = f"dtype bfloat16 is not computed by {setting.hardware.name}: use float32 or float16"
        yield conflict(setting, message, "dtype", limit=["float32", "float16"], nearest="float32")
    yield from _residency_rules(setting)


def _residency_rules(setting: Setting) -> Iterator[Conflict]:
    kept = setting.values["keep_resident"]
    components = list(setting.spec.residency.component_gb)
    unknown = [name for name in kept if name not in components] if isinstance(kept, tuple) else []
    if unknown:
        offered = listing(components, "and")
        missing = listing(map(show, unknown))
        message = f"keep_resident: {setting.spec.id} has no {missing}; its components: {offered}"
        yield conflict(setting, message, "keep_resident", limit=components)
    if kept and setting.values["offload"] == "sequential":
        message = (
            "keep_resident has no effect with offload sequential: leave it out"
            f"{or_offload(setting, 'model', 'group')}"
        )
        yield conflict(setting, message, "keep_resident", "offload")


def attention_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields what the attention kernel lacks here."""
    values, hardware = setting.values, setting.hardware
    name = str(values["attention_backend"])
    if name == "auto":
        return
    kernel = KERNELS[name]
    anywhere = ["auto", PLAIN]
    if kernel.platforms and hardware.platform not in kernel.platforms:
        needed = listing(PLATFORMS[platform].words for platform in kernel.platforms)
        message = f"attention_backend {name} needs {needed}: use {listing(anywhere)}"
        yield conflict(setting, message, "attention_backend", limit=anywhere, nearest=PLAIN)
        return
    if (
        hardware.platform == "cuda"
        and kernel.platforms
        and (hardware.capability or (0, 0)) < kernel.capability
    ):
        least, found = (_dotted(pair) for pair in (kernel.capability, hardware.capability or (0, 0)))
        message = (
            f"attention_backend {name} needs compute capability {least}, and {hardware.name} has {found}"
        )
        yield conflict(setting, message, "attention_backend", limit=least, nearest=PLAIN)
    if kernel.package is not None and kernel.package not in hardware.packages:
        how = OPTIONAL[kernel.package]
        message = f"attention_backend {name} needs {kernel.package}, which is not installed: {how}"
        yield conflict(setting, message, "attention_backend", nearest=PLAIN)
    if kernel.half and values["dtype"] == "float32":
        message = (
            f"attention_backend {name} computes in 16 bits only: use --dtype bfloat16 or another backend"
        )
        yield conflict(setting, message, "attention_backend", "dtype", nearest=PLAIN)
    yield from _one_kernel_rules(setting, name)


def _one_kernel_rules(setting: Setting, name: str) -> Iterator[Conflict]:
    for option in ("compile", "capture"):
        if setting.values[option] and not is_exact(name):
            message = (
                f"attention_backend {name} is less exact and serves only jobs of quality high, and {option} "
                f"settles one kernel for all: use --no-{option} or another backend"
            )
            yield conflict(setting, message, "attention_backend", option, nearest=PLAIN)


def quantize_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields why weights cannot be quantised as asked."""
    values, hardware = setting.values, setting.hardware
    wanted = values["quantize"]
    if wanted == "none":
        if values["quantize_text"] and "quantize_text" in setting.explicit:
            message = "quantize_text has no effect with quantize none: give --quantize int8 or leave it out"
            yield conflict(setting, message, "quantize_text", "quantize", nearest=False)
        return
    if not PLATFORMS[hardware.platform].quantises:
        words = PLATFORMS[hardware.platform].words
        message = f"quantize {wanted} works on an NVIDIA GPU or a CPU, and this is {words}: leave it out"
        yield conflict(setting, message, "quantize", limit="none", nearest="none")
    if "torchao" not in hardware.packages:
        message = f"quantize {wanted} needs torchao, which is not installed: {OPTIONAL['torchao']}"
        yield conflict(setting, message, "quantize", limit="none", nearest="none")
    if wanted == "fp8":
        yield from _fp8_rules(setting)


def _fp8_rules(setting: Setting) -> Iterator[Conflict]:
    hardware = setting.hardware
    if hardware.platform == "cpu" or (
        hardware.platform == "cuda" and (hardware.capability or (0, 0)) < _FP8_SINCE
    ):
        found = f" ({_dotted(hardware.capability)})" if hardware.capability else ""
        name = f"{hardware.name or PLATFORMS[hardware.platform].words}{found}"
        message = (
            f"quantize fp8 needs an NVIDIA GPU of compute capability {_dotted(_FP8_SINCE)} or later, and "
            f"this is {name}: use int8"
        )
        yield conflict(setting, message, "quantize", limit=["none", "int8"], nearest="int8")
    if setting.values["dtype"] != "bfloat16":
        message = (
            f"quantize fp8 needs dtype bfloat16, not {setting.values['dtype']}: use int8 or --dtype bfloat16"
        )
        yield conflict(setting, message, "quantize", "dtype", nearest="int8")


def graph_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields what stands against recording the transformer's work as CUDA graphs."""
    values, platform = setting.values, PLATFORMS[setting.hardware.platform]
    if not values["capture"]:
        return
    if not platform.records_graphs:
        message = f"capture records CUDA graphs, and {platform.words} has none: leave it off"
        yield conflict(setting, message, "capture", limit=False, nearest=False)
    if values["compile"]:
        message = "capture replays uncompiled work, which compile replaces: use --no-capture or --no-compile"
        yield conflict(setting, message, "capture", "compile", nearest=False)
    if values["cache"]:
        message = (
            "capture records CUDA graphs, which overwrite what the cache keeps and would repeat one step's "
            "decision in all: use --no-capture or --no-cache"
        )
        yield conflict(setting, message, "capture", "cache", nearest=False)
    if values["offload"] != "none":
        message = (
            f"capture records where the weights are, and offload {values['offload']} moves them: use "
            f"--no-capture{or_offload(setting, 'none')}"
        )
        yield conflict(setting, message, "capture", "offload", nearest=False)
    if not values["warmup"]:
        message = "capture records during the warm-up only: leave warmup on, or use --no-capture"
        yield conflict(setting, message, "capture", "warmup", nearest=False)


def compiler_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields compile settings that mean nothing on this platform."""
    values, platform = setting.values, PLATFORMS[setting.hardware.platform]
    if not values["compile"]:
        return
    if values["compile_mode"] not in platform.modes:
        usable = list(platform.modes)
        message = (
            f"compile_mode {values['compile_mode']} means nothing on {platform.words}: use {listing(usable)}"
        )
        yield conflict(setting, message, "compile_mode", "compile", limit=usable, nearest="default")
    if platform.fixed_shapes and values["compile_dynamic"] is not False:
        message = f"compile_dynamic must be false on {platform.words}, which compiles each shape for itself"
        yield conflict(setting, message, "compile_dynamic", "compile", limit=False, nearest=False)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
