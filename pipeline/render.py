"""One denoising pass: plans and their seeds in, one finished picture or video out for each.

How the time is split: *encode* ends when the pipeline asks its sampler for the timesteps, which the
pipelines do after encoding the prompt and before the first step; *denoise* ends with the last step; *decode*
is the rest. Clocks are read after the device has caught up. Neither the transformer nor the text encoders are
hooked: a hook inside a compiled module is one more thing to compile.
"""

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipeline.errors import NotFinite, StepsMismatch, Unsupported
from pipeline.inputs import Fitted
from pipeline.load import Pipe
from pipeline.memory import synchronise
from policy.model_spec import ModelSpec
from policy.plan import RenderPlan

_CALLBACK = "callback_on_step_end"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One picture of a pass.

    Attributes:
        result: uint8, shape (H, W, 3) for an image and (F, H, W, 3) for a video; or why it is no picture.
        values: What it was rounded from, 0 to 1.
        latents: What they were decoded from, where the pipeline shows them.
    """

    result: "np.ndarray | NotFinite"
    values: np.ndarray
    latents: torch.Tensor | None

    @property
    def pixels(self) -> np.ndarray:
        """The result.

        Raises:
            NotFinite: It is not a picture.
        """
        if isinstance(self.result, NotFinite):
            raise self.result
        return self.result


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass gave.

    Attributes:
        drawn: One picture for each plan.
        timings_ms: ``encode``, ``denoise``, ``decode``, ``total``.
    """

    drawn: tuple[Drawn, ...]
    timings_ms: Mapping[str, float]


class _Watch:
    """Sees one pass from outside: its steps, their latents, and when each part was over."""

    def __init__(self, device: torch.device, steps: int, each_step: Callable[[int], None]) -> None:
        self._device = device
        self._planned = steps
        self._each_step = each_step
        self.steps = 0
        self.latents: torch.Tensor | None = None
        self.started = self._now()
        self.encoded: float | None = None
        self.denoised: float | None = None

    def _now(self) -> float:
        synchronise(self._device)
        return time.perf_counter()

    def encoding_done(self) -> None:
        if self.encoded is None:
            self.encoded = self._now()

    def step_done(self, latents: torch.Tensor) -> None:
        """Counts a step. An exception from here is the one clean way to stop a pipeline."""
        self.steps += 1
        self.latents = latents
        if self.steps >= self._planned:
            self.denoised = self._now()
        self._each_step(self.steps)

    def timings_ms(self) -> dict[str, float]:
        ended = self._now()
        encoded = self.started if self.encoded is None else self.encoded
        denoised = ended if self.denoised is None else self.denoised
        spans = {
            "encode": encoded - self.started,
            "denoise": denoised - encoded,
            "decode": ended - denoised,
            "total": ended - self.started,
        }
        return {name: round(seconds * 1000, 3) for name, seconds in spans.items()}


def render_pass(
    pipe: Pipe,
    spec: ModelSpec,
    plans: Sequence[RenderPlan],
    seeds: Sequence[int],
    *,
    device: torch.device,
    each_step: Callable[[int], None],
    given: Fitted | None = None,
) -> Pass:
    """Renders one picture of each plan, all in one call of the pipeline.

    Args:
        pipe: The pipeline of these plans; its transformers are ready for this pass.
        spec: The model.
        plans: What to render; all that is one value for the call is the same in each.
        seeds: Of each picture; its noise is drawn on the CPU, so that it is the same on every device.
        device: Where the pipeline computes.
        each_step: Told the steps done after each; what it raises leaves the pass at once.
        given: The pictures that a single plan draws from.

    Raises:
        StepsMismatch: Another number of steps was run than planned.
        Unsupported: The pipeline does not take what the plan or the spec sets, or not for so many pictures.
    """
    plan, count = plans[0], len(plans)
    watch = _Watch(device, plan.executed_steps, each_step)
    arguments = call_arguments(pipe, spec, plan, seeds[0], given)
    if count > 1:
        arguments |= _for_each(plans, seeds)
    with torch.no_grad(), _watched(pipe, watch, arguments):
        output = pipe(**arguments)
    values = np.asarray(output.frames if spec.kind == "video" else output.images)
    timings = watch.timings_ms()
    if watch.steps != plan.executed_steps:
        raise StepsMismatch(f"{watch.steps} steps were run, planned were {plan.executed_steps}")
    latents = watch.latents
    if len(values) != count or (latents is not None and count > 1 and len(latents) != count):
        # A pipeline that takes a list and draws something else of it.
        raise Unsupported(f"{type(pipe).__name__} gave {len(values)} pictures, asked for were {count}")
    each = [latents] * count if latents is None or count == 1 else list(latents)
    return Pass(tuple(map(functools.partial(_drawn, given), each, values)), timings)


def _for_each(plans: Sequence[RenderPlan], seeds: Sequence[int]) -> dict[str, Any]:
    """The arguments that have a value for each picture."""
    arguments: dict[str, Any] = {
        "prompt": [plan.prompt for plan in plans],
        "generator": [torch.Generator("cpu").manual_seed(seed) for seed in seeds],
    }
    if plans[0].negative_prompt is not None:
        arguments["negative_prompt"] = [plan.negative_prompt for plan in plans]
    return arguments


def _drawn(given: Fitted | None, latents: torch.Tensor | None, values: np.ndarray) -> Drawn:
    try:
        _check_latents(latents)
        _check_values(values)
    except NotFinite as problem:
        return Drawn(problem, values, latents)
    pixels = (values * 255).round().astype(np.uint8)
    return Drawn(pixels if given is None else given.restore(pixels), values, latents)


def call_arguments(
    pipe: Pipe, spec: ModelSpec, plan: RenderPlan, seed: int, given: Fitted | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of the pipeline call, each set on purpose.

    Raises:
        Unsupported: The pipeline has no such argument.
    """
    arguments: dict[str, Any] = {
        **spec.call,
        "prompt": plan.prompt,
        "width": plan.width,
        "height": plan.height,
        "num_inference_steps": plan.num_inference_steps,
        spec.guidance.parameter: plan.guidance_scale,
        "generator": torch.Generator("cpu").manual_seed(seed),
        "output_type": "np",
    }
    if plan.negative_prompt is not None:
        arguments["negative_prompt"] = plan.negative_prompt
    if spec.max_sequence_length is not None:
        arguments["max_sequence_length"] = spec.max_sequence_length
    if plan.num_frames is not None:
        arguments["num_frames"] = plan.num_frames
    if spec.frames is not None and spec.frames.fps_parameter is not None:
        arguments[spec.frames.fps_parameter] = plan.fps
    if given is not None:
        arguments |= {"image": given.image, "strength": plan.strength}
        arguments |= {} if given.mask is None else {"mask_image": given.mask}
    unknown = sorted(set(arguments) - _parameters(pipe))
    if unknown:
        raise Unsupported(f"{type(pipe).__name__} takes no {', '.join(unknown)}")
    return arguments


def _parameters(pipe: Pipe) -> frozenset[str]:
    return frozenset(inspect.signature(pipe.__call__).parameters)


@contextmanager
def _watched(pipe: Pipe, watch: _Watch, arguments: dict[str, Any]) -> Iterator[None]:
    """Lets ``watch`` see the pass: through the step callback, or the sampler where there is none."""
    scheduler = pipe.scheduler
    seen = {"set_timesteps": _before(scheduler.set_timesteps, watch.encoding_done)}
    if _CALLBACK in _parameters(pipe):
        arguments[_CALLBACK] = _callback(watch)
        arguments["callback_on_step_end_tensor_inputs"] = ["latents"]
    else:
        seen["step"] = _after(scheduler.step, lambda result: watch.step_done(result[0]))
    vars(scheduler).update(seen)
    try:
        yield
    finally:
        for name in seen:
            vars(scheduler).pop(name, None)


def _callback(watch: _Watch) -> Callable[..., dict[str, Any]]:
    def step_end(_pipe: Pipe, _step: int, _time: object, tensors: dict[str, Any]) -> dict[str, Any]:
        watch.step_done(tensors["latents"])
        return tensors

    return step_end


def _before(method: Callable[..., Any], notify: Callable[[], None]) -> Callable[..., Any]:
    # `wraps` keeps the signature, which pipelines look at to see what their sampler takes.
    @functools.wraps(method)
    def wrapped(*args: object, **kwargs: object) -> object:
        notify()
        return method(*args, **kwargs)

    return wrapped


def _after(method: Callable[..., Any], notify: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(*args: object, **kwargs: object) -> object:
        result = method(*args, **kwargs)
        notify(result)
        return result

    return wrapped


def _check_latents(latents: torch.Tensor | None) -> None:
    if latents is None:
        return
    if not torch.isfinite(latents).all():
        raise NotFinite("the latents hold NaN or infinity")
    if (latents.amax() == latents.amin()).item():
        raise NotFinite("the latents are one flat value")


def _check_values(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise NotFinite("the decoded picture holds NaN or infinity")
    if values.max() == values.min():
        raise NotFinite("the decoded picture is one flat value")
