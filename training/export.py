"""Writes a run's averaged weights as a pipeline folder that FluxPipeline.from_pretrained loads.

    python -m training.export RUN FOLDER [--vae FOLDER]

The weights are stored as float16 safetensors. The decoder comes from another pipeline folder.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline

from training import checkpoint
from training import model as models
from training.vocabulary import make_tokenizer

BUNDLED: Final = Path(__file__).parent.parent / "pipeline" / "tiny"
_SHIFT: Final = 3.0  # of the scheduler: spends more steps on high noise, where the scene is decided


def export(run: Path, folder: Path, vae: Path = BUNDLED) -> None:
    """Write the pipeline folder; other files that it holds, such as a model card, stay."""
    parts = _averaged(run)
    kinds: tuple[Any, ...] = (FluxPipeline, FlowMatchEulerDiscreteScheduler, AutoencoderKL)
    pipeline_kind, scheduler_kind, vae_kind = kinds
    pipeline = pipeline_kind(
        scheduler=scheduler_kind(shift=_SHIFT),
        vae=vae_kind.from_pretrained(vae / "vae", local_files_only=True, dtype=torch.float16),
        tokenizer=make_tokenizer(),
        tokenizer_2=make_tokenizer(),
        **dict(parts.half().named_children()),
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    _tidy(folder)


def _averaged(run: Path) -> models.TextToLatents:
    state = checkpoint.load(run)
    if state is None:
        raise FileNotFoundError(f"{run} holds no {checkpoint.NAME}")
    parts = models.build(seed=0)
    parts.load_state_dict(state["average"], strict=False)
    missing = {name for name, _ in parts.named_parameters()} - set(state["average"])
    if missing:
        raise ValueError(f"the checkpoint in {run} lacks weights: {sorted(missing)}")
    return parts.eval()


def _tidy(folder: Path) -> None:
    """Name the tokenizer's class as transformers 4 and 5 both know it, and no path of this machine."""
    for file in ("model_index.json", "tokenizer/tokenizer_config.json", "tokenizer_2/tokenizer_config.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("TokenizersBackend", "PreTrainedTokenizerFast"))
    for config in folder.glob("*/config.json"):
        values = json.loads(config.read_text())
        values.pop("_name_or_path", None)
        config.write_text(json.dumps(values, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Export as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.export")
    parser.add_argument("run", type=Path, help="folder of a training run")
    parser.add_argument("folder", type=Path, help="pipeline folder to write")
    parser.add_argument("--vae", type=Path, default=BUNDLED, help="pipeline folder with the decoder")
    chosen = parser.parse_args(arguments)
    export(chosen.run, chosen.folder, chosen.vae)


if __name__ == "__main__":
    main()
