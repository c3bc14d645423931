"""Ways out that a refusal may name: those that fit in the memory that is free here."""

from collections.abc import Collection

from policy.fits import Need, need_of
from policy.platforms import PLATFORMS
from policy.setting import Setting
from policy.weights import loaded, shared
from policy.wording import listing

EVERYWHERE = ("none",)


def fitting(setting: Setting, among: Collection[str]) -> list[str]:
    """Returns those values of `offload` with which the model fits on one GPU, the fastest first."""
    return [name for name in _fitting(setting, str(setting.values["quantize"])) if name in among]


def or_offload(setting: Setting, *among: str) -> str:
    """Returns the end of an advice: `, or --offload ...` with what fits of `among`, else why nothing does."""
    fit = fitting(setting, among)
    if fit:
        return f", or --offload {listing(fit)}"
    need = _need(setting, str(setting.values["quantize"]))
    sizes = {name: size for name, size in need.by_offload.items() if name in among}
    needed = listing((f"{size:.1f} GB with --offload {name}" for name, size in sizes.items()), "and")
    quantised = _or_quantised(setting, among)
    return f"{quantised} (the weights as they are need {needed}, and {need.free_gb:.1f} GB are free)"


def _or_quantised(setting: Setting, among: Collection[str]) -> str:
    if setting.values["quantize"] != "none" or not PLATFORMS[setting.hardware.platform].quantises:
        return ""
    fit = [name for name in _fitting(setting, "int8") if name in among]
    return f", or --quantize int8 --offload {fit[0]}, which changes the picture" if fit else ""


def shares(setting: Setting, count: int) -> bool:
    """Tells whether the weights fit when `count` GPUs share them."""
    need = shared(setting.spec, loaded(setting.spec, str(setting.values["dtype"])), count)
    return need.weights_gb + need.working_gb <= setting.hardware.least_free_gb


def _fitting(setting: Setting, quantize: str) -> tuple[str, ...]:
    if setting.hardware.device in ("cpu", "mps"):
        return EVERYWHERE
    return _need(setting, quantize).fitting


def _need(setting: Setting, quantize: str) -> Need:
    text = bool(setting.values["quantize_text"])
    return need_of(
        setting.spec, setting.hardware.free_memory_gb, str(setting.values["dtype"]), quantize, text=text
    )
