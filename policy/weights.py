"""How large a model's weights are as they are loaded: in another number format, or quantised."""

from policy.model_spec import ModelSpec
from policy.spec_tables import Residency

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# A byte per weight; its scale, one per row of at least a hundred weights, is within the hundredth.
QUANTISED_BYTES = {"int8": 1.01, "fp8": 1.01}
# Text encoders keep their embeddings as they are: a quarter at most of those in the catalogue (Gemma 2).
_TEXT_LINEAR_SHARE = 0.75
_TEXT = "text_encoder"


def text_encoders(spec: ModelSpec) -> tuple[str, ...]:
    """Returns the components that read the prompt."""
    return tuple(name for name in spec.residency.component_gb if name.startswith(_TEXT))


def quantised_components(spec: ModelSpec, *, text: bool) -> tuple[str, ...]:
    """Returns what is quantised where quantising is asked for; `text`: the text encoders too."""
    return (*spec.transformers, *(text_encoders(spec) if text else ()))


def loaded(spec: ModelSpec, dtype: str, quantize: str = "none", *, text: bool = False) -> Residency:
    """Returns the model's residency with the sizes that its weights have once loaded.

    Args:
        spec: The model; its own sizes are for the checkpoint's dtype.
        dtype: Number format of what is not quantised.
        quantize: A value of the option `quantize`.
        text: Whether the text encoders are quantised too.
    """
    own = spec.residency
    widened = BYTES[dtype] / BYTES[spec.dtype]
    sizes = {
        name: size * widened * _shrunk(spec, name, dtype, quantize, text=text)
        for name, size in own.component_gb.items()
    }
    saved = own.largest_gb * widened - max(sizes.values(), default=0.0)
    together = own.fsdp_min_available_gb
    streamed = own.streamed_gb
    if streamed is not None:
        streamed *= widened * _shrunk(spec, spec.transformers[0], dtype, quantize, text=text)
    changes = {
        "component_gb": sizes,
        "streamed_gb": streamed,
        "fsdp_min_available_gb": None if together is None else together * widened,
        "keep_resident_min_available_gb": own.keep_resident_min_available_gb * widened - saved,
    }
    return own.model_copy(update=changes)


def shared(spec: ModelSpec, sizes: Residency, count: int) -> Residency:
    """Returns what each of `count` GPUs holds of weights that they share (FSDP2).

    Transformers and text encoders are in equal parts; of the one that computes, the blocks in use are
    gathered on each GPU, which takes what `streamed_gb` says of the transformer.
    """
    parts = {*spec.transformers, *text_encoders(spec)}
    held = {name: size / count if name in parts else size for name, size in sizes.component_gb.items()}
    room = sizes.working_gb + (sizes.streamed_gb or sizes.largest_gb)
    return sizes.model_copy(update={"component_gb": held, "working_gb": room})


def _shrunk(spec: ModelSpec, name: str, dtype: str, quantize: str, *, text: bool) -> float:
    """The part that is left of a component; only its linear layers are quantised."""
    if quantize == "none" or name not in quantised_components(spec, text=text):
        return 1.0
    share = spec.residency.linear_share if name in spec.transformers else _TEXT_LINEAR_SHARE
    return 1.0 - share * (1.0 - QUANTISED_BYTES[quantize] / BYTES[dtype])
