"""Performance modes: what is derived from the hardware, which is given as values."""

from dataclasses import dataclass
from typing import Literal


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
