"""Random-weight miniatures of every family, built offline as folders that the real loading code reads.

A miniature has the real classes throughout: pipeline, transformers, autoencoder, text encoders, tokenizers,
scheduler. What works with it works with the checkpoint, up to numbers: its pictures show nothing.
"""

from pathlib import Path
from typing import Any

import diffusers
import torch

from pipeline.errors import Unsupported
from pipeline.miniatures.families import BLOCKS, CACHED_BLOCKS, FAMILIES
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec

MAX_TEXT_TOKENS = 64
STEPS = 10


def build(model: str | ModelSpec, folder: Path, seed: int = 0) -> Path:
    """Write the miniature into ``folder``; the same seed gives the same bytes.

    Args:
        model: Id of a catalogue model, name of a family, or a spec of one's own.
        folder: Made when missing.
        seed: Of the weights.

    Raises:
        Unsupported: No miniature of that family is known.
    """
    spec = model if isinstance(model, ModelSpec) else _find(model)
    if spec.family not in FAMILIES:
        raise Unsupported(f"no miniature of the family {spec.family}; known: {', '.join(FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        components = FAMILIES[spec.family](spec)
    pipeline = getattr(diffusers, spec.pipeline_class)(**components)
    pipeline.save_pretrained(folder, safe_serialization=True, variant=spec.variant)
    return folder


def spec_of(spec: ModelSpec) -> ModelSpec:
    """The same model with sizes, frames, steps and text so short that a render takes about a second."""
    changes = {
        "dtype": "float32",
        "fixed_threads": 1,
        "blocks": CACHED_BLOCKS.get(spec.family, BLOCKS),
        "max_sequence_length": min(spec.max_sequence_length or MAX_TEXT_TOKENS, MAX_TEXT_TOKENS),
        "size": _small_sizes(spec.size.multiple),
        "steps": {**spec.steps.model_dump(), "default": min(spec.steps.default, STEPS)},
        "frames": _few_frames(spec),
        "call": _call_at_any_size(spec.call),
        "policy": {key: value for key, value in spec.policy.items() if key not in ("dtype", "warmup_sizes")},
        "residency": _small_residency(spec),
        "loras": (),  # made for other weights
    }
    return ModelSpec.model_validate({**spec.model_dump(), **changes})


def _find(name: str) -> ModelSpec:
    catalogue = Catalogue.load()
    if name in catalogue:
        return catalogue[name]
    found = next((spec for spec in catalogue.values() if spec.family == name), None)
    if found is None:
        raise Unsupported(f"{name} is neither a model of the catalogue nor a family in it")
    return found


def _small_sizes(multiple: int) -> dict[str, Any]:
    side = max(4 * multiple, 64)
    return {
        "default": (side, side),
        "multiple": multiple,
        "minimum": side // 2,
        "maximum": 2 * side,
        "max_pixels": 4 * side * side,
        "sizes": ((side, side), (side, side // 2)),
    }


def _few_frames(spec: ModelSpec) -> dict[str, Any] | None:
    if spec.frames is None:
        return None
    rule = spec.frames
    least, most = (rule.remainder + times * rule.multiple for times in (1, 4))
    return {**rule.model_dump(), "minimum": least, "default": least, "maximum": most}


def _call_at_any_size(call: dict[str, Any]) -> dict[str, Any]:
    """Without the rounding to the checkpoint's own sizes, all of which are large."""
    return {key: False if key == "use_resolution_binning" else value for key, value in call.items()}


def _small_residency(spec: ModelSpec) -> dict[str, Any]:
    sizes = dict.fromkeys(spec.residency.component_gb, 0.001)
    whole = spec.residency.model_dump()
    return {
        **whole,
        "component_gb": sizes,
        "working_gb": 0.1,
        "keep_resident_min_available_gb": 0.2,
        "streamed_gb": 0.001,
    }
