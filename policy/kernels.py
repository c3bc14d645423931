"""Attention kernels: what each one needs, and whether it computes what the checkpoint means.

An exact kernel computes softmax attention in the number format of its inputs; kernels differ in the order of
their sums, as the same kernel does on two GPUs. One that is not exact first rounds its inputs to eight bits.
It serves jobs alone that ask for `quality = "high"`; all others run on torch's own attention.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PLAIN = "native"
"""Torch's own attention, which is everywhere."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of diffusers' attention backends.

    Attributes:
        platforms: Where it runs; empty: anywhere.
        capability: Smallest compute capability of an NVIDIA GPU.
        package: What has to be installed.
        half: Whether it takes bfloat16 and float16 only.
        exact: Whether it computes in the number format of its inputs.
        splits: Whether the tokens it attends to may lie on several GPUs, as Cache-DiT exchanges them.
    """

    platforms: tuple[str, ...] = ("cuda",)
    capability: tuple[int, int] = (8, 0)
    package: str | None = None
    half: bool = True
    exact: bool = True
    splits: bool = False


_AMPERE, _HOPPER = (8, 0), (9, 0)

# Names, platforms and packages as diffusers 0.42 has them; capabilities as each kernel's own documentation.
KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        PLAIN: Kernel((), half=False, splits=True),
        "_native_cudnn": Kernel(),
        "_native_flash": Kernel(("cuda", "rocm")),
        "flash": Kernel(("cuda", "rocm"), package="flash_attn"),
        "flash_hub": Kernel(package="kernels"),
        "_flash_3": Kernel(capability=_HOPPER, package="flash_attn_interface"),
        "_flash_3_hub": Kernel(capability=_HOPPER, package="kernels"),
        "xformers": Kernel(("cuda", "rocm"), capability=(7, 5), package="xformers", half=False),
        "sage": Kernel(package="sageattention", exact=False),
        "sage_hub": Kernel(package="kernels", exact=False),
    }
)


def is_exact(name: str) -> bool:
    """Tells whether a value of the option `attention_backend` serves every job."""
    return name == "auto" or KERNELS[name].exact


def splits(name: str) -> bool:
    """Tells whether the tokens may be split between GPUs under a value of the option `attention_backend`."""
    return name == "auto" or KERNELS[name].splits


def kernel_for(backend: str, quality: str) -> str:
    """Returns the kernel that a job of this quality runs on, under the worker's `attention_backend`."""
    return backend if is_exact(backend) or quality == "high" else PLAIN
