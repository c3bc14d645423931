"""Which device a process has, without touching it."""

# ruff: noqa: N801, N802 - the names of the driver's library

import sys
import types
from pathlib import Path

import pytest

from core import hardware
from core.hardware import detect, host_memory, visible_gpus


def gpu(number: int, *, capability: tuple[int, int] = (9, 0), prefix: str = "GPU") -> hardware._Gpu:
    return hardware._Gpu(f"{prefix}-{number}abc", f"H{number}00", capability, 80 * 10**9, 79 * 10**9)


GPUS = [gpu(number) for number in range(3)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("0,0", [0]),
        ("GPU-2abc,GPU-0", [2, 0]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_devices_are_chosen_as_cuda_chooses_them(visible: str | None, expected: list[int]) -> None:
    assert visible_gpus(GPUS, visible) == [GPUS[number] for number in expected]


def test_an_instance_of_a_cut_gpu_is_chosen_by_its_name() -> None:
    instances = [gpu(0, prefix="MIG"), gpu(1, prefix="MIG")]
    assert visible_gpus(instances, "MIG-1abc") == [instances[1]]


class Nvml(types.ModuleType):
    """The driver's library, as far as we ask it; a stand-in for a machine with two GPUs, one of them cut."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self, *, broken: str = "", major: int = 9, cut: bool = True) -> None:
        super().__init__("pynvml")
        self.broken, self.major, self.cut, self.open = broken, major, cut, 0

    def nvmlInit(self) -> None:
        if self.broken == "driver":
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.broken == "count":
            raise self.NVMLError
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"whole-{number}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        assert handle.startswith("whole")
        return (self.major, 0)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "whole-0":
            raise self.NVMLError  # this kind cannot be cut
        return [int(self.cut), int(self.cut)]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: str) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: str, number: int) -> str:
        if number == 1:
            raise self.NVMLError_NotFound
        return f"part-{number}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        total = 80 if handle.startswith("whole") else 20
        return types.SimpleNamespace(total=total * 10**9, free=(total - 1) * 10**9)

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"GPU-{handle}" if handle.startswith("whole") else f"MIG-{handle}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return f"H200 {handle}".encode()


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, Nvml())
    found = detect()
    assert (found.device, found.name, found.count) == ("cuda", "H200 whole-0", 3)
    assert (found.total_memory_gb, found.free_memory_gb, found.supports_bf16) == (80, 79, True)
    assert nvml.open == 0


def test_a_cut_gpu_counts_as_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml())
    found = detect("MIG-part-2")
    assert (found.name, found.count, found.total_memory_gb) == ("H200 part-2", 1, 20)


def test_a_gpu_that_could_be_cut_and_is_not_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml(cut=False))
    assert detect().count == 2


def test_an_old_gpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml(major=7))
    assert not detect().supports_bf16


def test_the_environment_hides_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect().device != "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert detect().count == 1


@pytest.mark.parametrize("broken", ["driver", "count"])
def test_a_broken_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    nvml = install(monkeypatch, Nvml(broken=broken))
    assert detect().device != "cuda"
    assert nvml.open == 0


def test_a_machine_without_the_library_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert detect().device != "cuda"


def test_a_machine_without_a_gpu_is_its_cpu_and_memory() -> None:
    found = detect("")
    assert found.device in ("cpu", "mps")
    assert found.count == 1
    assert not found.supports_bf16
    if sys.platform == "linux":
        assert 0 < found.free_memory_gb <= found.total_memory_gb


def test_the_memory_of_the_host_is_what_the_kernel_says(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree:    10 kB\nMemAvailable:    600 kB\n")
    assert host_memory(meminfo) == (1_024_000, 614_400)
    meminfo.write_text("strange")
    assert host_memory(meminfo) == (0, 0)
    assert host_memory(tmp_path / "none") == (0, 0)


def test_looking_for_a_device_loads_no_torch() -> None:
    import subprocess

    code = "import sys, core.hardware as h; h.detect(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
