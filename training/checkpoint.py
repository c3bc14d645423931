"""Keeps what a run needs to go on after it was stopped."""

from pathlib import Path
from typing import Any, Final

import torch

NAME: Final = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, replacing the last one only when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{NAME}.part"
    torch.save(state, unfinished)
    unfinished.replace(folder / NAME)


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The folder's checkpoint, or None when there is none. Only tensors and plain values are read."""
    if not (folder / NAME).exists():
        return None
    state: dict[str, Any] = torch.load(folder / NAME, map_location=device, weights_only=True)
    return state
