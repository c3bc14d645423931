"""What a row of a batch becomes on the contact sheet."""

from typing import Any

import pytest

from api.tiles import Tile, tile_of
from core.artifacts import ArtifactStore
from core.lifecycle import JobState
from core.tables import Artifact, Job

STORE = ArtifactStore("memory://tiles")


def made(index: int = 0, media_type: str = "image/png", **values: Any) -> Artifact:
    return Artifact(index=index, key=f"jobs/j/1/{index}.png", media_type=media_type, **values)


def tile(state: str = "completed", *artifacts: Artifact, **values: Any) -> Tile:
    plan = {"prompt": "a red house"}
    fields = {"sku": "A-1", "seed": "7", "lit": True}
    columns = {"batch_row": 3, "batch_fields": fields, "plan": plan, **values}
    return tile_of(Job(artifacts=list(artifacts), **columns | {"state": JobState(state)}), STORE)


def test_a_tile_is_called_by_its_row_and_the_columns_that_are_no_fields_of_a_request() -> None:
    assert (tile("queued").title, tile("queued").words) == ("3 | A-1 | true", "a red house")


def test_the_first_of_several_pictures_stands_for_all() -> None:
    STORE.put("jobs/j/1/0.png", b"first")
    several = tile("completed", made(0), made(1))
    assert several.title == "3 | A-1 | true (1 of 2)"
    assert several.read is not None
    assert several.read() == b"first"


def test_a_picture_that_was_deleted_is_none() -> None:
    STORE.delete("jobs/j/1/0.png")
    deleted = tile("completed", made(0)).read
    assert deleted is not None
    assert deleted() is None


@pytest.mark.parametrize(
    ("state", "said"),
    [("queued", "queued"), ("in_progress", "in progress"), ("expired", "expired"), ("completed", "deleted")],
)
def test_a_row_without_a_picture_says_why(state: str, said: str) -> None:
    assert (tile(state).state, tile(state).read) == (said, None)


def test_a_failed_row_says_what_failed() -> None:
    failed = tile("failed", error_code="out_of_memory", error_message="the GPU has no room")
    assert (failed.state, failed.note) == ("failed", "the GPU has no room")


def test_a_video_shows_its_first_frame() -> None:
    STORE.put("jobs/j/1/0-thumbnail.webp", b"small")
    video = tile("completed", made(0, "video/mp4", duration_s=2.5, thumbnail_key="jobs/j/1/0-thumbnail.webp"))
    assert video.note == "2.5 s"
    assert video.read is not None
    assert video.read() == b"small"


def test_a_video_without_a_thumbnail_says_how_long_it_is_and_is_not_read() -> None:
    video = tile("completed", made(0, "video/mp4", duration_s=2.5))
    assert (video.state, video.note, video.read) == ("video", "2.5 s", None)
