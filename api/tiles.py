"""What stands on a contact sheet; drawn by ``api.sheet``, which alone loads Pillow."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from api.file_names import as_text
from core.artifacts import ArtifactStore
from core.errors import Gone
from core.lifecycle import JobState
from core.tables import Job
from policy.expansion import FIELDS

ROWS_PER_PAGE: Final = 200
MOST_COLUMNS: Final = 20


@dataclass(frozen=True, slots=True)
class Tile:
    """One place of the sheet."""

    title: str
    """First line under the picture."""
    words: str
    """Second line."""
    state: str
    read: Callable[[], bytes | None] | None = None
    """Gives the picture, None when it has been deleted; without it the tile says ``state``."""
    note: str = ""
    """Said below the state, such as the reason of a failure."""


def tile_of(job: Job, store: ArtifactStore) -> Tile:
    """Return the tile of one row: its first picture, or why there is none."""
    own = (as_text(value) for name, value in (job.batch_fields or {}).items() if name not in FIELDS)
    title = " | ".join([f"{job.batch_row}", *own])
    words = str(job.plan["prompt"])
    if not job.artifacts:
        return Tile(title, words, _why_empty(job.state), note=job.error_message or "")
    first, count = job.artifacts[0], len(job.artifacts)
    title += f" (1 of {count})" if count > 1 else ""
    if first.media_type.startswith("video/"):
        length = "" if first.duration_s is None else f"{first.duration_s:g} s"
        small = first.thumbnail_key
        read = None if small is None else partial(_read, store, small)
        return Tile(title, words, "video", read=read, note=length)
    return Tile(title, words, job.state.value, read=partial(_read, store, first.key))


def _why_empty(state: JobState) -> str:
    return "deleted" if state == JobState.COMPLETED else state.value.replace("_", " ")


def _read(store: ArtifactStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except Gone:
        return None
