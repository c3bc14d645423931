"""What decides whether one worker can use what another one's compiler made, as plain values.

The compiler's own cache looks at every graph and finds by itself what fits, so these facts need not be
complete; they keep apart what can never fit (another processor, another version) and what belongs to others.
"""

import platform
import shutil

import torch

from pipeline.versions import collect
from policy.model_spec import ModelSpec
from policy.resolve import Policy

FORMAT = 1
"""Of the archive; another one is never read."""

_OPTIONS = (
    *("compile_scope", "compile_mode", "compile_dynamic", "dtype", "attention_backend"),
    *("quantize", "offload"),
    *("cfg_parallel", "context_parallel", "fsdp"),
)


def compile_facts(spec: ModelSpec, policy: Policy, device: torch.device) -> dict[str, object]:
    """Returns model, versions, device and options."""
    return {
        "format": FORMAT,
        "model": spec.id,
        "revision": spec.revision,
        "versions": {name: version for name, version in collect().items() if name != "renderq"},
        "device": _device(device),
        "options": {name: policy[name] for name in _OPTIONS},
    }


def _device(device: torch.device) -> dict[str, object]:
    facts: dict[str, object] = {
        "type": device.type,
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "compiler": shutil.which("g++") is not None,
    }
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts |= {
            "name": torch.cuda.get_device_name(device),
            "capability": f"{major}.{minor}",
            "cuda": torch.version.cuda or torch.version.hip,
        }
    return facts
