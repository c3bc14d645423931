"""What the engine hands out: pictures with their timings, and the record of its preparation.

No module of the GPU stack is imported here, so that what encodes or reports can use these types alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

StepName = Literal["followers", "load", "mount", "compile", "warmup"]


@dataclass(frozen=True, slots=True)
class PreparationStep:
    """One step of getting ready, reported when it starts and when it is done.

    Attributes:
        name: Which step.
        state: ``started`` or ``done``.
        seconds: Wall time of the step, known when it is done.
        detail: Facts worth keeping, plain JSON values.
    """

    name: StepName
    state: Literal["started", "done"]
    seconds: float | None = None
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Picture:
    """One result: an image, or the frames of a video.

    Attributes:
        index: Position in the job, from 0.
        seed: The seed of this picture alone.
        image: RGB image, None for a video.
        frames: Video frames, shape (F, H, W, 3), uint8; None for an image.
    """

    index: int
    seed: int
    image: Image | None
    frames: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Rendering:
    """Everything one job produced.

    Attributes:
        pictures: In the order of their index.
        timings_ms: ``encode``, ``denoise``, ``decode``, ``total``, wall time over all pictures.
        acceleration: What really ran: cache preset and reason, reused steps, compile scope, compiles.
    """

    pictures: tuple[Picture, ...]
    timings_ms: dict[str, float]
    acceleration: dict[str, object]


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """Which shapes run compiled, and which do not although requests had them.

    Attributes:
        warm: Shapes at which a request runs compiled; None where nothing is compiled, so that all run alike.
        cold: Shapes not warm yet -> requests that ran uncompiled there; None where nothing is compiled.
        note: One sentence for a person; None when there is nothing to say.
    """

    warm: tuple[str, ...] | None = None
    cold: dict[str, int] | None = None
    note: str | None = None
