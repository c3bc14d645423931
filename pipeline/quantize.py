"""Quantises linear layers while they are read: policy -> what diffusers hands to torchao."""

from typing import Any

import torch
from diffusers.quantizers.pipe_quant_config import PipelineQuantizationConfig
from diffusers.quantizers.quantization_config import TorchAoConfig
from transformers import TorchAoConfig as TextTorchAoConfig

from policy.model_spec import ModelSpec
from policy.resolve import Policy
from policy.weights import quantised_components


def quantisation(spec: ModelSpec, policy: Policy) -> Any | None:  # noqa: ANN401 (diffusers publishes no types)
    """Returns what `from_pretrained` takes as its quantisation, None where nothing is quantised."""
    if policy["quantize"] == "none":
        return None
    names = quantised_components(spec, text=policy["quantize_text"])
    mapping: dict[str, Any] = {
        name: (TorchAoConfig if name in spec.transformers else TextTorchAoConfig)(_scheme(policy["quantize"]))
        for name in names
    }
    return PipelineQuantizationConfig(quant_mapping=mapping)


def quantised_layers(module: torch.nn.Module) -> int:
    """Returns how many linear layers of a module hold quantised weights."""
    from torchao.utils import TorchAOBaseTensor  # noqa: PLC0415 (optional, and slow to import)

    linear = (part for part in module.modules() if isinstance(part, torch.nn.Linear))
    return sum(isinstance(part.weight, TorchAOBaseTensor) for part in linear)


def _scheme(name: str) -> Any:  # noqa: ANN401
    """Rows are scaled one by one. torchao's compiler settings, which are of the whole process, stay off."""
    from torchao import quantization  # noqa: PLC0415 (optional, and slow to import)

    if name == "int8":
        return quantization.Int8WeightOnlyConfig(set_inductor_config=False)
    rows = quantization.PerRow()
    return quantization.Float8DynamicActivationFloat8WeightConfig(granularity=rows, set_inductor_config=False)
