"""Performance modes: what is derived from the hardware, which is given as values.

    manual   nothing
    auto     no compile; weights are offloaded when they do not fit in the free memory
    speed    compile where the model opts in; nothing is offloaded
    memory   no compile; weights are offloaded in any case, one component at a time where the largest
             fits and in smaller parts where it does not; the VAE decodes in tiles

On a CPU the mode is checked and nothing else is derived: there is no second memory to move weights to.
"""

from dataclasses import dataclass
from typing import Literal

from policy.model_spec import ModelSpec, Residency
from policy.weights import loaded, shared, text_encoders

BF16_SINCE = (8, 0)
"""Compute capability of the first GPUs that compute bfloat16."""


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
    sizes = loaded(spec, dtype, quantize, text=quantize_text)
    if fsdp > 1 and offload is None:
        return _shared(shared(spec, sizes, fsdp), hardware, fsdp)
    need = _Need(
        sizes,
        (*spec.transformers, *text_encoders(spec)),
        hardware.free_memory_gb,
        _smaller(spec, dtype, quantize),
    )
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


def _smaller(spec: ModelSpec, dtype: str, quantize: str) -> str:
    if quantize != "none":
        return ""
    sizes = loaded(spec, dtype, "int8")
    return f"; with --quantize int8 it would be {sizes.weights_gb + sizes.working_gb:.1f} GB"


@dataclass(frozen=True, slots=True)
class _Need:
    """What has to fit.

    Attributes:
        residency: With the sizes that the weights have once loaded.
        streaming: Components that `offload=group` fetches bit by bit; any other moves as a whole.
        smaller: What else could be done where it does not fit.
    """

    residency: Residency
    streaming: tuple[str, ...]
    free_gb: float
    smaller: str

    @property
    def hint(self) -> str:
        return "" if self.all_gb <= self.free_gb else self.smaller

    @property
    def all_gb(self) -> float:
        return self.residency.weights_gb + self.residency.working_gb

    @property
    def largest_gb(self) -> float:
        return self.residency.largest_gb + self.residency.working_gb

    @property
    def streamed_gb(self) -> float | None:
        if self.residency.streamed_gb is None:
            return None
        whole = [size for name, size in self.residency.component_gb.items() if name not in self.streaming]
        return max(self.residency.streamed_gb, *whole) + self.residency.working_gb

    @property
    def threshold_gb(self) -> float:
        return self.residency.keep_resident_min_available_gb

    @property
    def everything(self) -> str:
        return f"weights and working room need {self.all_gb:.1f} GB and {self.free_gb:.1f} GB are free"


def _auto(need: _Need) -> Placement:
    if need.all_gb <= need.free_gb:
        return Placement("none", (), False, f"everything fits: {need.everything}")
    if need.largest_gb > need.free_gb:
        return _piecemeal("not even the largest component fits", need)
    return _around("model", need)


def _speed(need: _Need) -> Placement:
    warning = "" if need.all_gb <= need.free_gb else f"; expect to run out of memory{need.hint}"
    return Placement("none", (), False, f"speed mode offloads nothing: {need.everything}{warning}")


def _memory(need: _Need) -> Placement:
    if need.largest_gb > need.free_gb:
        return _piecemeal("memory mode, and the largest component is too big", need)
    return Placement("model", (), True, "memory mode keeps one component at a time on the GPU")


def _piecemeal(why: str, need: _Need) -> Placement:
    """Block by block where that fits, else layer by layer."""
    largest = f"it needs {need.largest_gb:.1f} GB and {need.free_gb:.1f} GB are free"
    streamed = need.streamed_gb
    if streamed is None or streamed > need.free_gb:
        return Placement("sequential", (), True, f"{why}: {largest}{need.hint}")
    return Placement(
        "group", (), True, f"{why}: {largest}; block by block it is {streamed:.1f} GB{need.hint}"
    )


def _around(offload: str, need: _Need) -> Placement:
    """The rest of a placement whose offload is settled."""
    keep = need.residency.keep_resident
    if offload == "model" and need.free_gb >= need.threshold_gb:
        kept = ", ".join(keep) or "nothing"
        reason = f"{need.everything}; from {need.threshold_gb:.1f} GB free, {kept} stays{need.hint}"
        return Placement(offload, keep, "vae" not in keep, reason)
    return Placement(offload, (), offload != "none", f"{need.everything}; offload={offload}{need.hint}")
