"""Which weights a folder holds, as one hash. Loads nothing of the GPU stack."""

import hashlib
import json
from pathlib import Path

BUNDLED = "bundled:"
"""How a model spec names weights inside this package."""


def hash_weights(folder: Path) -> str:
    """SHA-256 over the names and contents of the components' safetensors files.

    What else lies in the folder, such as LoRAs, is not of the checkpoint.
    """
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    whole = hashlib.sha256()
    for path in sorted(path for name in index for path in (folder / name).glob("*.safetensors")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    return whole.hexdigest()


def hash_bundled(source: str) -> str | None:
    """The hash of weights inside this package; None for a source elsewhere."""
    if not source.startswith(BUNDLED):
        return None
    return hash_weights(Path(__file__).parent / source.removeprefix(BUNDLED))
