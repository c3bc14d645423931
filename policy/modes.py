"""Performance modes: what is derived from the hardware, which is given as values.

    manual   nothing
    auto     no compile; weights are offloaded when they do not fit in the free memory
    speed    compile where the model opts in; nothing is offloaded
    memory   no compile; weights are offloaded in any case, the VAE decodes in tiles

On a CPU the mode is checked and nothing else is derived: there is no second memory to move weights to.
"""

from dataclasses import dataclass
from typing import Literal

from policy.model_spec import ModelSpec, Residency

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device a worker has; memory in GB (10^9 bytes), of the host's memory on a CPU.

    Attributes:
        count: Devices visible.
        free_memory_gb: Free before anything is loaded.
        supports_bf16: Whether bfloat16 is computed natively.
    """

    device: Literal["cpu", "cuda", "mps"]
    name: str | None
    count: int
    total_memory_gb: float
    free_memory_gb: float
    supports_bf16: bool


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
    mode: str, spec: ModelSpec, hardware: Hardware, dtype: str, offload: str | None = None
) -> Placement:
    """Derives the placement of the weights.

    Args:
        mode: The performance mode.
        spec: The model.
        hardware: The device.
        dtype: Number format in effect; the sizes in the spec are for the checkpoint's own.
        offload: An explicit choice, which the rest is derived around; None: derive it too.
    """
    if hardware.device == "cpu":
        return Placement("none", (), False, "a CPU has no second memory to offload to", derived=False)
    if mode == "manual":
        return Placement(offload or "none", (), False, "manual mode derives nothing", derived=False)
    if hardware.device == "mps":
        return Placement("none", (), mode == "memory", "the device shares the host's memory")
    need = _Need(spec.residency, _BYTES[dtype] / _BYTES[spec.dtype], hardware.free_memory_gb)
    rules = {"auto": _auto, "speed": _speed, "memory": _memory}
    return _around(offload, need) if offload else rules[mode](need)


@dataclass(frozen=True, slots=True)
class _Need:
    residency: Residency
    scale: float
    free_gb: float

    @property
    def all_gb(self) -> float:
        return self.residency.weights_gb * self.scale + self.residency.working_gb

    @property
    def largest_gb(self) -> float:
        return self.residency.largest_gb * self.scale + self.residency.working_gb

    @property
    def threshold_gb(self) -> float:
        return self.residency.keep_resident_min_available_gb * self.scale

    @property
    def everything(self) -> str:
        return f"weights and working room need {self.all_gb:.1f} GB and {self.free_gb:.1f} GB are free"


def _auto(need: _Need) -> Placement:
    if need.all_gb <= need.free_gb:
        return Placement("none", (), False, f"everything fits: {need.everything}")
    if need.largest_gb > need.free_gb:
        reason = f"not even the largest component fits: {_largest(need)}"
        return Placement("sequential", (), True, reason)
    return _around("model", need)


def _speed(need: _Need) -> Placement:
    warning = "" if need.all_gb <= need.free_gb else "; expect to run out of memory"
    return Placement("none", (), False, f"speed mode offloads nothing: {need.everything}{warning}")


def _memory(need: _Need) -> Placement:
    if need.largest_gb > need.free_gb:
        return Placement(
            "sequential", (), True, f"memory mode, and the largest component is too big: {_largest(need)}"
        )
    return Placement("model", (), True, "memory mode keeps one component at a time on the GPU")


def _around(offload: str, need: _Need) -> Placement:
    """The rest of a placement whose offload is settled."""
    keep = need.residency.keep_resident
    if offload == "model" and need.free_gb >= need.threshold_gb:
        reason = (
            f"{need.everything}; from {need.threshold_gb:.1f} GB free, {', '.join(keep) or 'nothing'} stays"
        )
        return Placement(offload, keep, "vae" not in keep, reason)
    return Placement(offload, (), offload != "none", f"{need.everything}; offload={offload}")


def _largest(need: _Need) -> str:
    return f"it needs {need.largest_gb:.1f} GB and {need.free_gb:.1f} GB are free"
