"""What device this process may use, asked without touching it.

The driver's management library (NVML) answers without a CUDA context, so a parent process may ask before
it forks. A GPU that is cut into instances (MIG) counts as its instances.
"""

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.settings import cuda_visible_devices
from policy.modes import BF16_SINCE, Hardware
from policy.packages import installed

_GB = 1e9


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One device as NVML reports it; memory in bytes."""

    uuid: str
    name: str
    capability: tuple[int, int]
    total: int
    free: int


def detect(visible: str | None = None) -> Hardware:
    """Return the first device that CUDA would show this process, and how many more, else the machine's CPU.

    Args:
        visible: What ``CUDA_VISIBLE_DEVICES`` says; default: the variable itself. NVML numbers devices by
            bus, and so does CUDA where ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or where all devices are of one kind.
    """
    gpus = visible_gpus(_gpus(), cuda_visible_devices() if visible is None else visible)
    if not gpus:
        return _without_gpu()
    first = gpus[0]
    return Hardware(
        device="cuda",
        name=first.name,
        count=len(gpus),
        total_memory_gb=first.total / _GB,
        free_memory_gb=first.free / _GB,
        supports_bf16=first.capability >= BF16_SINCE,
        capability=first.capability,
        packages=installed(),
        least_free_memory_gb=min(gpu.free for gpu in gpus) / _GB,
    )


def visible_gpus(gpus: Sequence[_Gpu], visible: str | None) -> list[_Gpu]:
    """Choose and order devices as CUDA does: by number or start of a UUID, up to the first bad entry."""
    if visible is None:
        return list(gpus)
    chosen: list[_Gpu] = []
    for entry in visible.split(","):
        gpu = _find(gpus, entry.strip())
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return chosen


def _find(gpus: Sequence[_Gpu], entry: str) -> _Gpu | None:
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    matching = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _gpus() -> list[_Gpu]:
    """Return all NVIDIA devices; none where there is no driver or no ``nvidia-ml-py``."""
    try:
        import pynvml  # noqa: PLC0415 - optional

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a missing or broken driver raises more than NVMLError, and means "no GPU"
        return []
    try:
        return [gpu for number in range(pynvml.nvmlDeviceGetCount()) for gpu in _read(pynvml, number)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _read(pynvml: Any, number: int) -> Iterator[_Gpu]:  # noqa: ANN401 - the library has no types
    whole = pynvml.nvmlDeviceGetHandleByIndex(number)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(whole))
    for handle in _instances(pynvml, whole) or [whole]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        yield _Gpu(
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            capability=capability,
            total=memory.total,
            free=memory.free,
        )


def _instances(pynvml: Any, whole: Any) -> list[Any]:  # noqa: ANN401 - the library has no types
    """Return the instances of a cut GPU; none when it is whole or cannot be cut."""
    try:
        if pynvml.nvmlDeviceGetMigMode(whole)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
    except pynvml.NVMLError:
        return []
    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
        with suppress(pynvml.NVMLError_NotFound):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _without_gpu() -> Hardware:
    total, free = host_memory()
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return Hardware(
        device="mps" if apple else "cpu",
        name=platform.processor() or platform.machine() or None,
        count=1,
        total_memory_gb=total / _GB,
        free_memory_gb=free / _GB,
        supports_bf16=False,
        packages=installed(),
    )


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Return the host's total and available memory in bytes; (0, 0) where the kernel does not tell."""
    try:
        lines = {name: value for name, _, value in map(_parted, meminfo.read_text().splitlines())}
        return _bytes(lines["MemTotal"]), _bytes(lines["MemAvailable"])
    except (OSError, KeyError, ValueError):
        return 0, 0


def _bytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")
