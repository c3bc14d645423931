"""Device memory and time: free it, wait for it, and turn running out of it into one clean error."""

import gc
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from pipeline.errors import OutOfMemory
from policy.modes import Hardware
from policy.packages import installed

Result = TypeVar("Result")

#: A device is up to a step behind its host, and no step of any model takes longer.
STEP_S = 120.0
_GB = 1e9

# What the CPU allocator and CUDA libraries say when they do not use the exception made for it.
_WORDS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")


def find_device() -> torch.device:
    """Returns the accelerator of this process, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def find_hardware() -> Hardware:
    """Returns what the policy has to know of the device, as torch sees it; this takes hold of a GPU."""
    if not torch.cuda.is_available():
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GB
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / _GB
        return Hardware("cpu", None, 1, total, free, supports_bf16=True, packages=installed())
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return Hardware(
        "cuda",
        torch.cuda.get_device_name(),
        torch.cuda.device_count(),
        total_bytes / _GB,
        free_bytes / _GB,
        supports_bf16=torch.cuda.is_bf16_supported(),
        capability=torch.cuda.get_device_capability(),
        rocm=torch.version.hip is not None,
        packages=installed(),
    )


def find_platform() -> str:
    """Returns the platform of this process, as `policy.platforms` names it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    if accelerator.type == "cuda" and torch.version.hip is not None:
        return "rocm"
    return accelerator.type


def synchronise(device: torch.device) -> None:
    """Waits until the device has done what it was given, so that a clock read next is true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def settles(device: torch.device, timeout_s: float | None) -> bool:
    """Tells whether the device comes to the end of what it was given, in this time.

    It does not where it waits for an exchange that another rank has not begun, or where it has failed.
    """
    if device.type == "cpu":
        return True
    done = threading.Event()

    def wait() -> None:
        synchronise(device)
        done.set()

    waiting = threading.Thread(target=wait, name="settle", daemon=True)
    waiting.start()
    waiting.join(timeout_s)
    return done.is_set()


def device_is_sound() -> bool:
    """Tells whether the device still computes.

    After a fault in a kernel (an illegal address, a device-side assert) CUDA refuses every later call of the
    process; nothing but a new process helps. Always True where this process has not used CUDA.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:  # torch.AcceleratorError is one
        return False
    return True


def free_memory() -> None:
    """Gives back what nothing refers to any more, to the device as well."""
    gc.collect()
    release_cached()


def release_cached() -> None:
    """Gives back to the device what the allocator holds for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an exception means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def catching_out_of_memory(work: Callable[[], Result], doing: str) -> Result:
    """Runs ``work``; when memory runs out, frees all that the attempt held and raises `OutOfMemory`.

    The tensors of a failed attempt are held by the frames of its traceback, so memory is freed only after the
    exception is gone. That is why this is a function and not a context manager, which would still hold it.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    free_memory()
    raise OutOfMemory(f"not enough memory {doing}: {words[:300]}")
