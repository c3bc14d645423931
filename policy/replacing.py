"""What a model's file that replaces another of the same id takes over: the step masks and the LoRAs.

Both were made for weights. So they stay as long as everything that says which weights those are, and how they
are put together, is the same in both files.
"""

from policy.model_spec import ModelSpec
from policy.wording import listing, quote

WEIGHTS = (
    *("source", "revision", "variant", "family", "pipeline_class"),
    *("transformers", "boundary_ratio", "blocks"),
)


def take_over(old: ModelSpec, new: ModelSpec) -> tuple[ModelSpec, str | None]:
    """Returns the new model with what it takes over of the old, and a sentence on what it does not."""
    if not (old.curve or old.loras):
        return new, None
    difference = find_difference(old, new)
    if difference is None:
        return new.model_copy(update={"curve": old.curve, "loras": old.loras}), None
    lost = listing(_made_for(old), "and")
    return new, f"not taken over from the model that it replaces: {lost}, because {difference}"


def find_difference(old: ModelSpec, new: ModelSpec) -> str | None:
    """Returns in words what makes these other weights, None where they are the same."""
    for name in WEIGHTS:
        before, after = getattr(old, name), getattr(new, name)
        unknown = name == "blocks" and None in (before, after)
        if before != after and not unknown:
            return f"its {name} is {_text(after)}, the other's {_text(before)}"
    return None


def _made_for(spec: ModelSpec) -> list[str]:
    masks = [str(fit.steps) for fit in spec.curve.fits] if spec.curve else []
    names = [lora.name for lora in spec.loras]
    return [
        *([f"the step masks for {listing(masks, 'and')} steps"] if masks else []),
        *([f"the LoRA{'s' * (len(names) > 1)} {listing(names, 'and')}"] if names else []),
    ]


def _text(value: object) -> str:
    return "not set" if value is None else ", ".join(value) if isinstance(value, tuple) else quote(value)
