"""Whether pictures of the bundled model show what their prompt says, where the judge of its training is here.

The judge comes with the source tree and not with the installed package.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.distance import Pixels
    from policy.model_spec import ModelSpec

JUDGED = "bundled:tiny"
CAPTIONS_SET = 1
"""The same captions as those of `benchmarks/adherence.py`."""


def find_captions(spec: "ModelSpec", count: int) -> list[str] | None:
    """Captions that the model's training never saw and that can be judged here; None: there are none."""
    if spec.source != JUDGED:
        return None
    try:
        from training.examples import held_out_landscapes
    except ImportError:
        return None
    return [caption for caption, _ in held_out_landscapes(count, CAPTIONS_SET)]


def judge_pictures(captions: Sequence[str], pictures: Sequence["Pixels"]) -> float:
    """The share of pictures, uint8 (H, W, 3), that show all that their caption says."""
    from PIL import Image

    from training.checker import judge

    right = [
        judge(caption, Image.fromarray(picture)).correct
        for caption, picture in zip(captions, pictures, strict=True)
    ]
    return round(sum(right) / len(right), 4)
