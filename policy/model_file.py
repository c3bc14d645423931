"""Finds the file of a model, as a start for one of the operator's own."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from policy.catalogue import BUNDLED, unknown_model


def find_file(model_id: str, *folders: Path) -> Path:
    """Returns the file that is in effect: that of the last folder that has one, else the bundled one.

    What cannot be read as TOML is passed over: `> FOLDER/tiny.toml` has emptied that file before we look.

    Raises:
        UnknownModel: No file has this id.
    """
    files = {found: path for folder in (BUNDLED, *folders) for found, path in _ids(folder)}
    if model_id not in files:
        raise unknown_model(model_id, dict(sorted(files.items())))
    return files[model_id]


def _ids(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*.toml")):
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8")).get("id")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        if isinstance(found, str):
            yield found, path
