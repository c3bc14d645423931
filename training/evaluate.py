"""Measures how often a pipeline folder draws held-out captions entirely right.

    python -m training.evaluate pipeline/tiny --captions 128 --steps 24 --guidance 2.5 --json

Picture i starts from noise seed i, so two folders are compared on the same captions and noise.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from diffusers import FluxPipeline
from PIL import Image

from training.checker import check
from training.examples import held_out_landscapes, held_out_shapes
from training.scenes import Scene
from training.vocabulary import TEXT_TOKENS

SIZE: Final = 64
_BATCH: Final = 16
_KINDS: Final = {"landscapes": held_out_landscapes, "shapes": held_out_shapes}


@dataclass(frozen=True, slots=True)
class Report:
    """How many pictures were right.

    Attributes:
        captions: Number of pictures judged.
        correct: Share of pictures on which everything is right.
        details: Share of single things (sky, roof, ...) that are right.
        by_detail: The same for each kind of thing.
        wrong: Each wrong picture's caption and what is wrong on it.
    """

    captions: int
    correct: float
    details: float
    by_detail: dict[str, float]
    wrong: dict[str, tuple[str, ...]]


def load_pipeline(folder: Path, device: str = "cpu") -> Any:  # noqa: ANN401 - diffusers publishes no types
    """The folder's pipeline in float32, without a progress bar and without asking any hub."""
    kind: Any = FluxPipeline
    pipeline = kind.from_pretrained(folder, local_files_only=True, dtype=torch.float32).to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def render(
    pipeline: Any,  # noqa: ANN401 - diffusers publishes no types
    prompts: Sequence[str],
    *,
    steps: int = 24,
    guidance: float = 1.0,
    first_seed: int = 0,
) -> Iterator[Image.Image]:
    """Render one picture per prompt; a guidance of one costs one transformer call per step, else two."""
    for first in range(0, len(prompts), _BATCH):
        batch = list(prompts[first : first + _BATCH])
        seeds = range(first_seed + first, first_seed + first + len(batch))
        negative = {"negative_prompt": [""] * len(batch)} if guidance > 1 else {}
        yield from pipeline(
            batch,
            height=SIZE,
            width=SIZE,
            num_inference_steps=steps,
            true_cfg_scale=guidance,
            max_sequence_length=TEXT_TOKENS,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            **negative,
        ).images


def judge_all(examples: Iterable[tuple[str, Scene]], pictures: Iterable[Image.Image]) -> Report:
    """Check each picture against its scene."""
    by_detail: dict[str, list[bool]] = defaultdict(list)
    wrong: dict[str, tuple[str, ...]] = {}
    captions = 0
    for (caption, scene), picture in zip(examples, pictures, strict=True):
        captions += 1
        found = check(scene, picture)
        for detail, is_right in found.items():
            by_detail[detail].append(is_right)
        if not all(found.values()):
            wrong[caption] = tuple(detail for detail, is_right in found.items() if not is_right)
    everything = [is_right for answers in by_detail.values() for is_right in answers]
    shares = {detail: _share(answers) for detail, answers in by_detail.items()}
    return Report(captions, round(1 - len(wrong) / captions, 4), _share(everything), shares, wrong)


def _share(answers: list[bool]) -> float:
    return round(sum(answers) / len(answers), 4)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate")
    parser.add_argument("folder", type=Path, help="pipeline folder")
    parser.add_argument("--captions", type=int, default=128)
    parser.add_argument("--kind", choices=_KINDS, default="landscapes")
    parser.add_argument("--seed", type=int, default=20_000, help="which held-out captions")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--guidance", type=float, default=1.0, help="true_cfg_scale; 1 is without")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Evaluate as the command line says."""
    chosen = _parse(arguments)
    torch.set_num_threads(chosen.threads)
    examples = _KINDS[chosen.kind](chosen.captions, chosen.seed)
    pipeline = load_pipeline(chosen.folder, "cuda" if torch.cuda.is_available() else "cpu")
    prompts = [caption for caption, _ in examples]
    report = judge_all(examples, render(pipeline, prompts, steps=chosen.steps, guidance=chosen.guidance))
    if chosen.json:
        print(json.dumps(asdict(report)))
        return
    for caption, details in report.wrong.items():
        print(f"{caption}: {', '.join(details)}")
    print(
        f"{report.correct:.1%} of {report.captions} pictures entirely right, {report.details:.1%} of details"
    )


if __name__ == "__main__":
    main()
