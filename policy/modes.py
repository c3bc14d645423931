"""Performance modes: what is derived from the hardware, which is given as values.

    manual   nothing
    auto     no compile; weights are offloaded when they do not fit in the free memory
    speed    compile where the model opts in; nothing is offloaded
    memory   no compile; weights are offloaded in any case, one component at a time where the largest
             fits and in smaller parts where it does not; the VAE decodes in tiles

On a CPU the mode is checked and nothing else is derived: there is no second memory to move weights to.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from policy.fits import Need, need_of
from policy.model_spec import ModelSpec
from policy.platforms import PLATFORMS
from policy.spec_tables import Residency
from policy.weights import shared

BF16_SINCE = (8, 0)
"""Compute capability of the first GPUs that compute bfloat16."""

# What a mode would choose before anything that moves more, and how that is told.
_EASIER = {"auto": ("none", "model", "group"), "speed": ("none",), "memory": ("model", "group")}
_PIECES = {"none": "it", "model": "the largest component", "group": "block by block it"}


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device a worker has; memory in GB (10^9 bytes), of the host's memory on a CPU.

    Attributes:
        device: As torch names it; an AMD GPU is "cuda" too.
        count: Devices visible. A worker uses as many as its degrees say, the first ones.
        free_memory_gb: Free before anything is loaded.
        supports_bf16: Whether bfloat16 is computed natively.
        capability: Compute capability of an NVIDIA GPU.
        rocm: Whether "cuda" is an AMD GPU.
        packages: Which of the optional packages in `policy.packages` are installed.
        least_free_memory_gb: Free on the fullest of the visible devices; None: the same as on the first.
    """

    device: Literal["cpu", "cuda", "mps", "npu"]
    name: str | None
    count: int
    total_memory_gb: float
    free_memory_gb: float
    supports_bf16: bool
    capability: tuple[int, int] | None = None
    rocm: bool = False
    packages: tuple[str, ...] = ()
    least_free_memory_gb: float | None = None

    @property
    def least_free_gb(self) -> float:
        """Free memory that every visible device has."""
        least = self.least_free_memory_gb
        return self.free_memory_gb if least is None else least

    @property
    def platform(self) -> str:
        """The platform: cuda (NVIDIA), rocm (AMD), npu, mps or cpu."""
        return "rocm" if self.rocm else self.device


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the weights wait, and why; `derived` tells whether the mode had a say."""

    offload: str
    keep_resident: tuple[str, ...]
    vae_tiling: bool
    reason: str
    derived: bool = True


def choose_dtype(spec: ModelSpec, hardware: Hardware) -> tuple[str, str]:
    """Returns the number format for `auto` and the reason."""
    if hardware.device == "cpu":
        return "float32", "auto: a CPU computes in float32"
    if spec.dtype == "bfloat16" and not hardware.supports_bf16:
        name = hardware.name or "this device"
        return (
            "float32",
            f"auto: {name} does not compute bfloat16, and float16 overflows in some text encoders",
        )
    return spec.dtype, f"auto: the checkpoint's own {spec.dtype}"


def choose_placement(
    mode: str,
    spec: ModelSpec,
    hardware: Hardware,
    dtype: str,
    offload: str | None = None,
    *,
    quantize: str = "none",
    quantize_text: bool = False,
    fsdp: int = 1,
) -> Placement:
    """Derives the placement of the weights.

    Args:
        mode: The performance mode.
        spec: The model.
        hardware: The device.
        dtype: Number format in effect; the sizes in the spec are for the checkpoint's own.
        offload: An explicit choice, which the rest is derived around; None: derive it too.
        quantize: Quantisation in effect. It is never derived: it changes the picture.
        quantize_text: Whether it reaches the text encoders.
        fsdp: GPUs that share the weights.
    """
    if hardware.device == "cpu":
        return Placement("none", (), False, "a CPU has no second memory to offload to", derived=False)
    if mode == "manual":
        return Placement(offload or "none", (), False, "manual mode derives nothing", derived=False)
    if hardware.device == "mps":
        return Placement("none", (), mode == "memory", "the device shares the host's memory")
    need = need_of(spec, hardware.free_memory_gb, dtype, quantize, text=quantize_text)
    if fsdp > 1 and offload is None:
        return _shared(shared(spec, need.residency, fsdp), hardware, fsdp)
    if quantize == "none" and PLATFORMS[hardware.platform].quantises:
        among = _EASIER[mode] if offload is None else ("none",)
        need = replace(need, hint=_hint(need, need_of(spec, need.free_gb, dtype, "int8"), among))
    rules = {"auto": _auto, "speed": _speed, "memory": _memory}
    return _around(offload, need) if offload else rules[mode](need)


def _shared(sizes: Residency, hardware: Hardware, count: int) -> Placement:
    need = sizes.weights_gb + sizes.working_gb
    warning = "" if need <= hardware.least_free_gb else "; expect to run out of memory"
    reason = (
        f"{count} GPUs share the weights: {need:.1f} GB on each with working room, and "
        f"{hardware.least_free_gb:.1f} GB are free on the fullest{warning}"
    )
    return Placement("none", (), False, reason)


def _hint(need: Need, quantised: Need, among: Collection[str]) -> str:
    """That less would have to be moved of quantised weights; empty where that is not so."""
    better = [name for name in quantised.fitting if name in among and name not in need.fitting]
    if not better:
        return ""
    size = f"{quantised.by_offload[better[0]]:.1f} GB"
    return f"; with --quantize int8 {_PIECES[better[0]]} would be {size}"


def _auto(need: Need) -> Placement:
    if need.all_gb <= need.free_gb:
        return Placement("none", (), False, f"everything fits: {need.everything}")
    if need.largest_gb > need.free_gb:
        return _piecemeal("not even the largest component fits", need)
    return _around("model", need)


def _speed(need: Need) -> Placement:
    warning = "" if need.all_gb <= need.free_gb else f"; expect to run out of memory{need.hint}"
    return Placement("none", (), False, f"speed mode offloads nothing: {need.everything}{warning}")


def _memory(need: Need) -> Placement:
    if need.largest_gb > need.free_gb:
        return _piecemeal("memory mode, and the largest component is too big", need)
    return Placement("model", (), True, "memory mode keeps one component at a time on the GPU")


def _piecemeal(why: str, need: Need) -> Placement:
    """Block by block where that fits, else layer by layer."""
    largest = f"it needs {need.largest_gb:.1f} GB and {need.free_gb:.1f} GB are free"
    streamed = need.streamed_gb
    if streamed is None or streamed > need.free_gb:
        return Placement("sequential", (), True, f"{why}: {largest}{need.hint}")
    return Placement(
        "group", (), True, f"{why}: {largest}; block by block it is {streamed:.1f} GB{need.hint}"
    )


def _around(offload: str, need: Need) -> Placement:
    """The rest of a placement whose offload is settled."""
    keep = need.residency.keep_resident
    if offload == "model" and need.free_gb >= need.threshold_gb:
        kept = ", ".join(keep) or "nothing"
        reason = f"{need.everything}; from {need.threshold_gb:.1f} GB free, {kept} stays{need.hint}"
        return Placement(offload, keep, "vae" not in keep, reason)
    return Placement(offload, (), offload != "none", f"{need.everything}; offload={offload}{need.hint}")
