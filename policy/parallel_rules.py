"""What stands against spreading one job over several GPUs as asked."""

from collections.abc import Iterator

from policy.advice import fitting, shares
from policy.kernels import KERNELS, splits
from policy.options import OPTIONS
from policy.parallel import NAMES, Degrees, has_branches, most_parts, unsplit_context
from policy.platforms import PLATFORMS
from policy.setting import Conflict, Setting, conflict
from policy.wording import listing

_PLATFORMS = ("cuda", "rocm", "cpu")


def parallel_rules(setting: Setting) -> Iterator[Conflict]:
    """Yields every reason, each with the option to change."""
    degrees = Degrees(*(_degree(setting, name) for name in NAMES))
    if degrees.world == 1:
        return
    used = tuple(name for name in NAMES if _degree(setting, name) > 1)
    yield from _hardware_rules(setting, degrees, used)
    yield from _model_rules(setting, degrees)
    yield from _placement_rules(setting, used, degrees.world)
    yield from _compile_rules(setting, used)
    yield from _kernel_rules(setting, degrees)
    if setting.values["microbatch"] != 1:
        message = f"microbatch has no way over several GPUs: use --microbatch 1, or {_all_off(used)}"
        yield conflict(setting, message, "microbatch", *used, limit=1, nearest=1)


def _degree(setting: Setting, name: str) -> int:
    value = setting.values[name]
    return value if isinstance(value, int) else 1


def _all_off(used: tuple[str, ...]) -> str:
    return listing((f"{OPTIONS[name].flag} 1" for name in used), "and")


def _hardware_rules(setting: Setting, degrees: Degrees, used: tuple[str, ...]) -> Iterator[Conflict]:
    hardware = setting.hardware
    platform = PLATFORMS[hardware.platform]
    if hardware.platform not in _PLATFORMS:
        message = f"{used[0]} works on several NVIDIA or AMD GPUs, and this is {platform.words}: use 1"
        yield conflict(setting, message, *used, limit=1, nearest=1)
    elif hardware.device != "cpu" and degrees.world > hardware.count:
        message = (
            f"{' x '.join(used)} needs {degrees.world} GPUs, and this worker sees {hardware.count}: name "
            "more in CUDA_VISIBLE_DEVICES, or use less"
        )
        nearest = hardware.count if len(used) == 1 else None
        yield conflict(setting, message, *used, limit=hardware.count, nearest=nearest)
    if degrees.fsdp > 1 and degrees.sharing not in (1, degrees.fsdp):
        message = (
            f"fsdp shares the weights among all GPUs of the worker, which are {degrees.sharing} by "
            f"cfg_parallel and context_parallel: use {degrees.sharing}"
        )
        yield conflict(setting, message, "fsdp", *used, limit=degrees.sharing, nearest=degrees.sharing)


def _model_rules(setting: Setting, degrees: Degrees) -> Iterator[Conflict]:
    spec, values = setting.spec, setting.values
    if degrees.cfg_parallel > 1 and not has_branches(spec):
        message = (
            f"cfg_parallel splits guidance into two predictions, and {spec.id} makes one: use "
            "context_parallel, or 1"
        )
        yield conflict(setting, message, "cfg_parallel", limit=1, nearest=1)
    why = unsplit_context(spec)
    if degrees.context_parallel > 1 and why is not None:
        other = "cfg_parallel" if has_branches(spec) else "one GPU"
        message = f"context_parallel cannot split the tokens of {spec.id}: {why}; use {other}"
        yield conflict(setting, message, "context_parallel", limit=1, nearest=1)
    yield from _text_rules(setting, degrees)
    presets = ("cache_preset", "secondary_cache_preset")
    if degrees.cfg_parallel > 1 and values["cache"] and "adaptive" in (values[name] for name in presets):
        message = (
            "cache_preset adaptive decides by what all GPUs see, and with cfg_parallel they see different "
            "predictions: use a static preset, or context_parallel"
        )
        yield conflict(setting, message, *presets, "cfg_parallel")


def _text_rules(setting: Setting, degrees: Degrees) -> Iterator[Conflict]:
    most = most_parts(setting.spec)
    if degrees.context_parallel > most:
        message = (
            f"context_parallel gives each GPU a part of the text as well, and an empty prompt of "
            f"{setting.spec.id} has {most} tokens: use {most} at most"
        )
        yield conflict(setting, message, "context_parallel", limit=most, nearest=most)


def _in_place(setting: Setting, used: tuple[str, ...], world: int) -> str:
    """A way to have the weights where they are used that fits; else to let the spreading be."""
    if "none" in fitting(setting, ("none",)):
        return "--offload none"
    return f"--offload none --fsdp {world}" if shares(setting, world) else _all_off(used)


def _placement_rules(setting: Setting, used: tuple[str, ...], world: int) -> Iterator[Conflict]:
    values = setting.values
    if values["offload"] != "none":
        message = (
            f"offload {values['offload']} moves the weights of one GPU, and {listing(used, 'and')} "
            f"needs them in place on each: use {_in_place(setting, used, world)}"
        )
        yield conflict(setting, message, "offload", *used, limit="none", nearest="none")
    if values["quantize"] != "none" and "fsdp" in used:
        message = (
            f"fsdp shares plain weights, and quantize {values['quantize']} makes others: use one of them"
        )
        yield conflict(setting, message, "quantize", "fsdp", limit="none", nearest="none")


def _compile_rules(setting: Setting, used: tuple[str, ...]) -> Iterator[Conflict]:
    values = setting.values
    if values["capture"]:
        alone = f", or {_all_off(used)}" if fitting(setting, ("none",)) else ""
        message = f"capture replays the work of one GPU without asking the others: use --no-capture{alone}"
        yield conflict(setting, message, "capture", *used, limit=False, nearest=False)
    if not values["compile"]:
        return
    if "fsdp" in used:
        alone = " or --fsdp 1" if fitting(setting, ("none", "model")) else ""
        message = (
            f"compile needs whole weights, and fsdp gathers them block by block: use --no-compile{alone}"
        )
        yield conflict(setting, message, "compile", "fsdp", limit=False, nearest=False)


def _kernel_rules(setting: Setting, degrees: Degrees) -> Iterator[Conflict]:
    name = str(setting.values["attention_backend"])
    if degrees.context_parallel == 1 or splits(name):
        return
    able = ["auto", *(kernel for kernel in KERNELS if KERNELS[kernel].splits)]
    message = f"attention_backend {name} cannot be split between GPUs: use {listing(able)}"
    yield conflict(setting, message, "attention_backend", "context_parallel", limit=able, nearest=able[0])
