"""Where evidence is kept, and writing a row of it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    from policy.evidence import Evidence

HEAD = "# Made by `renderq bench model --write`. Times in seconds, memory in 10^6 bytes.\n\n"


def folders() -> list[Path]:
    """Where rows are read: those that come with renderq, and those beside the operator's model files."""
    from core.settings import get_settings
    from policy.evidence import BUNDLED, FOLDER

    own = get_settings().catalogue_dir
    return [BUNDLED, *([own / FOLDER] if own else [])]


def choose_folder() -> Path:
    """Where a row is written: the operator's folder if there is one; raises `CliError` if that cannot be."""
    folder = folders()[-1]
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error.strerror) from error
    if not os.access(folder, os.W_OK):
        raise _unwritable(folder, "it takes no files")
    return folder


def _unwritable(folder: Path, reason: str | None) -> CliError:
    hint = "name a folder of your own in RENDERQ_CATALOGUE_DIR"
    return CliError(f"no row can be kept in {folder} ({reason}); {hint}", ExitCode.USAGE)


def write_row(row: "Evidence", folder: Path) -> Path:
    """Add the row to its model's file, in the place of one of the same command, checkpoint and device."""
    import tomli_w

    from policy.evidence import read_evidence

    path = folder / f"{row.model}.toml"
    kept = [old for old in (read_evidence(path) if path.exists() else ()) if _key(old) != _key(row)]
    rows = [item.model_dump(exclude_none=True) for item in (*kept, row)]
    fresh = path.with_suffix(".new")
    fresh.write_text(HEAD + tomli_w.dumps({"rows": rows}), encoding="utf-8")
    fresh.replace(path)
    return path


def _key(row: "Evidence") -> tuple[object, ...]:
    return (row.command, row.revision, row.weights, row.device, row.device_name)
