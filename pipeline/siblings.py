"""The pipelines of one family side by side, over the same modules: text to image, image to image, inpaint.

A sibling is made of the loaded pipeline's own parts, so there is one copy of the weights, and a mount or a
compiled transformer is the same for all. diffusers' own way from one to the other casts the weights to
float32 on the way, so it is not taken.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import diffusers
from torch import nn

from pipeline.errors import Unsupported
from pipeline.load import Pipe
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan


class Siblings:
    """The loaded pipeline, and its siblings as the plans need them."""

    def __init__(self, pipe: Pipe, spec: ModelSpec) -> None:
        """Takes the loaded pipeline; siblings are made when they are first asked for."""
        self._pipe = pipe
        self._spec = spec
        self._made: dict[str, Pipe] = {}

    def of(self, plan: RenderPlan) -> Pipe:
        """Returns the pipeline that draws this plan.

        Raises:
            Unsupported: The family has none for it.
        """
        if plan.image is None:
            return self._pipe
        inputs = self._spec.inputs
        name = None if inputs is None else inputs.inpaint if plan.mask else inputs.image_to_image
        if name is None:
            way = "inside a mask" if plan.mask else "without a mask"
            raise Unsupported(f"{self._spec.id} has no pipeline that changes a picture {way}")
        if name not in self._made or not self._is_current(self._made[name]):
            self._made[name] = self._make(name)
        return self._made[name]

    def _is_current(self, sibling: Pipe) -> bool:
        """Whether it still has the modules of the loaded pipeline, which may have been loaded anew."""
        ours = self._pipe.components
        return all(
            part is ours[name] for name, part in sibling.components.items() if isinstance(part, nn.Module)
        )

    def _make(self, name: str) -> Pipe:
        made = getattr(diffusers, name)  # that there is one was checked when the model was loaded
        known = inspect.signature(made.__init__).parameters
        settings = {key: value for key, value in self._pipe.config.items() if key in known}
        sibling = made(**{**settings, **_shared(self._pipe, known)})
        sibling.set_progress_bar_config(disable=True)
        # Where weights wait between two passes, and where it computes, is the loaded pipeline's say.
        sibling._exclude_from_cpu_offload = self._pipe._exclude_from_cpu_offload  # noqa: SLF001 (no other way)
        sibling.maybe_free_model_hooks = self._pipe.maybe_free_model_hooks
        return sibling


def _shared(pipe: Pipe, known: Mapping[str, object]) -> dict[str, Any]:
    return {name: part for name, part in pipe.components.items() if name in known}
