"""ModelSpec and policy -> a diffusers pipeline on its device.

Weights are read from safetensors only: a file that has to be unpickled is never opened, and no code that
comes with a model is run. A folder and the bundled model are never looked up on the hub.
"""

import functools
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import diffusers
import torch
from diffusers.utils import logging as diffusers_logging
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.utils import logging as transformers_logging

from pipeline.attention import switch_attention
from pipeline.errors import LoadFailed, PipelineError, Unsupported, WeightsMissing
from pipeline.fingerprint import BUNDLED
from pipeline.memory import catching_out_of_memory, is_out_of_memory
from pipeline.offload import offload_components
from pipeline.parallel import Ranks
from pipeline.quantize import quantisation
from pipeline.sharding import shard_modules
from pipeline.spec_check import check_classes, check_loaded
from pipeline.streaming import offload_in_groups
from policy.model_spec import ModelSpec
from policy.resolve import Policy
from policy.weights import text_encoders

Pipe: TypeAlias = Any  # a diffusers pipeline; diffusers publishes no types

# Families whose decoder loses detail or overflows below float32; their own documentation loads it so.
_FLOAT32_COMPONENTS = {"wan": ("vae",), "wan2.2": ("vae",)}
# How diffusers, transformers and the hub client say that a file is not there.
_ABSENT = (
    "no file named",
    "not fully cached",
    "cannot find an appropriate cached snapshot",
    "is neither a valid local path",
    "repository not found",
    "revision not found",
    "does not appear to have a file",
    "couldn't connect",
)
_LONGEST_SAID = 300  # characters of a library's own words
_GATED = ("gated repo", "401 client error", "403 client error", "awaiting a review")


def load_pipeline(
    spec: ModelSpec,
    policy: Policy,
    device: torch.device,
    source: str | None = None,
    ranks: Ranks | None = None,
) -> Pipe:
    """Loads the pipeline of a checkpoint and places it.

    Args:
        spec: The checkpoint.
        policy: ``dtype``, ``quantize``, ``quantize_text``, ``offload``, ``keep_resident``, ``vae_tiling`` and
            ``attention_backend`` are used.
        device: Where to compute.
        source: A folder or hub id that replaces the spec's own.
        ranks: Those that may share the weights; None: this process holds all of them.

    Returns:
        A pipeline of class ``spec.pipeline_class``, ready to be called.

    Raises:
        WeightsMissing: Files are not where they were looked for.
        LoadFailed: Files are there and cannot be used.
        OutOfMemory: The weights do not fit.
    """
    _be_quiet()
    check_classes(spec)
    pipe = catching_out_of_memory(lambda: _read(spec, policy, device, source), f"to load {spec.id}")
    check_loaded(pipe, spec)
    _check_complete(pipe)
    _set_options(pipe, spec, policy)
    shards = None if ranks is None else ranks.shards
    place = functools.partial(_place, pipe, spec, policy, device, shards)
    catching_out_of_memory(place, f"to place {spec.id} on {device}")
    return pipe


def _check_complete(pipe: Pipe) -> None:
    """A tensor that no file had is left without data; placing it would fail in words about that alone."""
    for part, module in pipe.components.items():
        if isinstance(module, nn.Module):
            missing = [name for name, tensor in module.named_parameters() if tensor.is_meta]
            if missing:
                more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
                raise LoadFailed(f"the weights of {part} lack {', '.join(missing[:3])}{more}")


def locate(source: str) -> tuple[str, bool]:
    """Returns where to load from, and whether that is a folder of this machine.

    Raises:
        WeightsMissing: It names a folder, which is not there or holds no pipeline.
    """
    folder = find_bundled(source)
    if not source.startswith(BUNDLED):
        # A hub id is "owner/name"; everything else that is not a folder was meant as one.
        looks_like_hub = source.count("/") == 1 and not source.startswith(("/", ".", "~"))
        if looks_like_hub and not folder.is_dir():
            return source, False
    if not folder.is_dir():
        raise WeightsMissing(f"there is no folder {folder}; give the folder that holds model_index.json")
    if not (folder / "model_index.json").is_file():
        raise WeightsMissing(f"{folder} has no model_index.json; give a folder in the diffusers layout")
    return str(folder), True


def find_bundled(source: str) -> Path:
    """Returns the path that a source names: inside this package after `bundled:`, else as it stands."""
    if source.startswith(BUNDLED):
        return Path(__file__).parent / source.removeprefix(BUNDLED)
    return Path(source).expanduser()


def _be_quiet() -> None:
    """The libraries' bars and notes are for people at a terminal; errors still come as exceptions."""
    diffusers_logging.disable_progress_bar()
    diffusers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _read(spec: ModelSpec, policy: Policy, device: torch.device, source: str | None) -> Pipe:
    place, is_folder = locate(source or spec.source)
    try:
        return getattr(diffusers, spec.pipeline_class).from_pretrained(
            place,
            dtype=_dtypes(spec, policy, device),
            revision=None if is_folder else spec.revision,
            variant=spec.variant,
            use_safetensors=True,
            local_files_only=is_folder,
            **_quantised(spec, policy),
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _in_words(error, spec, place) from error


def _dtypes(spec: ModelSpec, policy: Policy, device: torch.device) -> torch.dtype | dict[str, torch.dtype]:
    name = policy["dtype"]
    if name == "auto":
        name = "float32" if device.type == "cpu" else spec.dtype
    dtype: torch.dtype = getattr(torch, name)
    exceptions = dict.fromkeys(_FLOAT32_COMPONENTS.get(spec.family, ()), torch.float32)
    return {"default": dtype, **exceptions} if exceptions else dtype


def _quantised(spec: ModelSpec, policy: Policy) -> dict[str, Any]:
    config = quantisation(spec, policy)
    return {} if config is None else {"quantization_config": config}


def _in_words(error: Exception, spec: ModelSpec, place: str) -> PipelineError:
    text = " ".join(str(error).split())
    low = text.lower()
    if any(words in low for words in _GATED):
        return WeightsMissing(
            f"{place} is gated: accept its licence on the hub and log in there with a token, "
            "or give a folder that holds the weights"
        )
    said = shorten(text, _LONGEST_SAID, placeholder=" [...]")
    if any(words in low for words in _ABSENT):
        if not Path(place).is_dir():
            return WeightsMissing(
                f"the weights of {spec.id} are not on this machine and cannot be fetched from the hub "
                f"({place}): let the machine reach the hub once, or give a folder that holds them"
            )
        return WeightsMissing(f"files of {spec.id} are missing in {place}: {said}")
    return LoadFailed(f"{spec.id} cannot be loaded from {place}: {type(error).__name__}: {said}")


def _set_options(pipe: Pipe, spec: ModelSpec, policy: Policy) -> None:
    pipe.set_progress_bar_config(disable=True)
    if spec.boundary_ratio is not None:
        pipe.register_to_config(boundary_ratio=spec.boundary_ratio)
    if policy["vae_tiling"] is True:
        pipe.vae.enable_tiling()
    if policy["microbatch"] > 1 and hasattr(pipe.vae, "enable_slicing"):
        # The pictures of a shared pass are decoded one by one, as they are when alone.
        pipe.vae.enable_slicing()
    switch_attention((getattr(pipe, name) for name in spec.transformers), policy["attention_backend"])


def _place(
    pipe: Pipe, spec: ModelSpec, policy: Policy, device: torch.device, shards: DeviceMesh | None
) -> None:
    offload = policy["offload"]
    if shards is not None:
        _share(pipe, spec, device, shards)
    elif offload in ("none", "auto"):
        pipe.to(device)
    elif device.type == "cpu":
        raise Unsupported(f"offload {offload} needs a GPU to offload from; this worker computes on the CPU")
    elif offload == "sequential":
        pipe.enable_sequential_cpu_offload(device=device)
    elif offload == "group":
        offload_in_groups(pipe, spec.transformers, text_encoders(spec), policy["keep_resident"], device)
    else:
        offload_components(pipe, policy["keep_resident"], device)


def _share(pipe: Pipe, spec: ModelSpec, device: torch.device, shards: DeviceMesh) -> None:
    """Transformers and text encoders in parts, everything else whole on each rank."""
    whole = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    transformers = [whole.pop(name) for name in spec.transformers]
    encoders = [whole.pop(name) for name in text_encoders(spec) if name in whole]
    shard_modules(transformers, encoders, shards)
    for module in whole.values():
        module.to(device)
