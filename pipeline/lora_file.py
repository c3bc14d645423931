"""Reads a LoRA's file: checks that it is the one meant, and computes what it adds to each weight.

The formats are diffusers' and peft's to know. They work on a skeleton of the transformer, whose parameters
have a shape and no storage, so that the transformer itself is never touched.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import torch
from accelerate import init_empty_weights
from huggingface_hub import hf_hub_download
from peft.tuners.lora import LoraLayer
from torch import nn

from pipeline.errors import LoraFailed, PipelineError, WeightsMissing
from pipeline.load import find_bundled
from policy.lora import LoraSpec

Deltas: TypeAlias = Mapping[str, Callable[[], torch.Tensor]]
"""Name of a weight -> what computes its delta at scale 1, of the weight's shape, float32."""

_ADAPTER = "lora"


def locate_lora(lora: LoraSpec) -> Path:
    """Returns the file of a LoRA, fetched from the hub where it is not on this machine.

    Raises:
        WeightsMissing: It is not there.
        LoraFailed: It is another file than the catalogue means.
    """
    path = _local(lora)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != lora.sha256:
        raise LoraFailed(
            f"the file of LoRA {lora.name} has sha256 {found}, and the catalogue means {lora.sha256}"
        )
    return path


def _local(lora: LoraSpec) -> Path:
    if lora.file is None:
        path = find_bundled(lora.source)
        if not path.is_file():
            raise WeightsMissing(f"there is no file {path}, which LoRA {lora.name} of {lora.model} needs")
        return path
    try:
        return Path(hf_hub_download(lora.source, lora.file, revision=lora.revision))
    except Exception as error:
        said = shorten(" ".join(str(error).split()), 300, placeholder=" [...]")
        raise WeightsMissing(
            f"LoRA {lora.name} ({lora.source}, {lora.file}) is not on this machine and cannot be fetched "
            f"from the hub: {said}"
        ) from error


def read_deltas(path: Path, lora: LoraSpec, pipe: Any, transformer: nn.Module) -> Deltas:  # noqa: ANN401
    """Reads the file for this transformer of this pipeline.

    Raises:
        LoraFailed: It holds something else, or more, than a LoRA of this transformer within the rank bound.
    """
    if not hasattr(pipe, "lora_state_dict"):
        raise LoraFailed(f"{type(pipe).__name__} takes no LoRA")
    try:
        layers = _layers(path, lora, pipe, transformer)
    except PipelineError:
        raise
    except Exception as error:
        said = shorten(" ".join(str(error).split()), 300, placeholder=" [...]")
        raise LoraFailed(
            f"LoRA {lora.name} cannot be read from {path.name}: {type(error).__name__}: {said}"
        ) from error
    return {f"{name}.weight": partial(_delta, layer) for name, layer in layers.items()}


def _layers(path: Path, lora: LoraSpec, pipe: Any, transformer: nn.Module) -> dict[str, LoraLayer]:  # noqa: ANN401
    state, alphas, metadata = _state(path, pipe)
    foreign = sorted({key.partition(".")[0] for key in state} - {"transformer"})
    if foreign:
        raise LoraFailed(
            f"LoRA {lora.name} changes {', '.join(foreign)} too; only transformers are supported"
        )
    skeleton = _skeleton(transformer)
    skeleton.load_lora_adapter(
        state, network_alphas=alphas, metadata=metadata, adapter_name=_ADAPTER, low_cpu_mem_usage=True
    )
    layers = {name: layer for name, layer in skeleton.named_modules() if isinstance(layer, LoraLayer)}
    _check_layers(lora, layers, keys=len(state))
    return layers


def _state(path: Path, pipe: Any) -> tuple[dict[str, torch.Tensor], Any, Any]:  # noqa: ANN401
    """The file in diffusers' own naming; older formats have their alphas beside it."""
    read = partial(
        pipe.lora_state_dict,
        str(path.parent),
        weight_name=path.name,
        use_safetensors=True,
        local_files_only=True,
        return_lora_metadata=True,
    )
    answer = read(return_alphas=True)
    if len(answer) == 3:
        return answer  # type: ignore[no-any-return]
    return answer[0], None, answer[1]


def _skeleton(transformer: Any) -> Any:  # noqa: ANN401
    """The transformer's modules on the CPU, each parameter one number stretched to its shape."""
    with init_empty_weights():
        skeleton = type(transformer).from_config(transformer.config)
    for module in skeleton.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            flat = torch.zeros((), dtype=torch.float32).expand(parameter.shape)
            setattr(module, name, nn.Parameter(flat, requires_grad=False))
    return skeleton


def _check_layers(lora: LoraSpec, layers: Mapping[str, LoraLayer], keys: int) -> None:
    if not layers or 2 * len(layers) != keys:
        raise LoraFailed(
            f"LoRA {lora.name} has {keys} matrices, of which {2 * len(layers)} fit {lora.model}: it was made "
            "for another model, or is of a kind that is not supported (DoRA, bias)"
        )
    if any(layer.use_dora.get(_ADAPTER) for layer in layers.values()):
        raise LoraFailed(f"LoRA {lora.name} is a DoRA, which is not supported")
    rank = max(layer.r[_ADAPTER] for layer in layers.values())
    if rank > lora.max_rank:
        raise LoraFailed(f"LoRA {lora.name} has rank {rank}, and the catalogue allows {lora.max_rank}")


@torch.no_grad()
def _delta(layer: LoraLayer) -> torch.Tensor:
    delta: torch.Tensor = layer.get_delta_weight(_ADAPTER)  # type: ignore[attr-defined]
    return delta.to(torch.float32)
