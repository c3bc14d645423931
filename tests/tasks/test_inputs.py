"""Jobs that draw from a picture: read from the store, proved, rendered, told of; and the upkeep of files."""

import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import update

from core import files, store
from core.clock import now
from core.hardware import detect
from core.ids import new_id
from core.lifecycle import JobState
from core.tables import File, Job
from pipeline.encode import read_provenance
from pipeline.engine import Engine
from pipeline.rendering import Picture, Rendering
from policy.plan import RenderPlan
from policy.resolve import resolve
from tasks import attempt, upkeep
from tasks.board import Board
from tasks.child import Child, Setup
from tests.fixtures.workers import Stage

SHORT: dict[str, Any] = {"num_inference_steps": 6, "cache": "off", "seed": 11, "strength": 0.5}


def png(colour: str, size: tuple[int, int] = (90, 64)) -> bytes:
    image = Image.new("RGB", size, colour)
    image.paste("white", (20, 20, 60, 40))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def me(stage: Stage, tiny_engine: Engine) -> Child:
    spec = stage.catalogue["tiny"]
    policy = resolve(spec, flags={}, env={}, hardware=detect())
    setup = Setup(stage.settings, spec, policy, new_id(), "tiny@test", Board())
    return Child(setup, tiny_engine, stage.database, stage.artifacts)


def run(stage: Stage, me: Child, job_id: str) -> Job:
    with stage.database.transaction() as session:
        job = store.claim(session, job_id, me.setup.worker_id, 60)
    assert job is not None
    attempt.run(me, job)
    return stage.job(job_id)


def content(stage: Stage, job: Job) -> bytes:
    return stage.artifacts.get(job.artifacts[0].key)


def test_a_job_is_drawn_from_its_picture_and_the_file_says_from_which(stage: Stage, me: Child) -> None:
    red, blue = stage.keep(png("red")), stage.keep(png("blue"))
    drawn = [run(stage, me, stage.submit(send=False, image=image, **SHORT)) for image in (red, blue, red)]
    assert [job.state for job in drawn] == [JobState.COMPLETED] * 3
    first, other, again = (content(stage, job) for job in drawn)
    assert first == again != other
    told: dict[str, Any] = read_provenance(first)
    named = f"sha256:{hashlib.sha256(png('red')).hexdigest()}"
    assert told["request"]["image"] == named
    assert told["plan"]["image"]["sha256"] == named.removeprefix("sha256:")
    assert told["plan"]["image"]["crop"] == [13, 0, 77, 64]
    assert told["plan"]["strength"] == told["request"]["strength"] == 0.5
    assert told["acceleration"]["steps"] == 3
    assert red not in str(told)
    repeated = run(stage, me, stage.submit(send=False, **told["request"]))
    assert content(stage, repeated) == first


def test_progress_counts_the_steps_that_are_run(stage: Stage, me: Child) -> None:
    job = run(stage, me, stage.submit(send=False, image=stage.keep(png("red")), **SHORT))
    assert (job.progress_step, job.progress_steps) == (3, 3)


def test_what_a_mask_keeps_is_kept(stage: Stage, me: Child) -> None:
    picture, mask = Image.new("RGB", (64, 64), (200, 30, 90)), Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    kept = []
    for image in (picture, mask):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        kept.append(stage.keep(buffer.getvalue()))
    job = run(stage, me, stage.submit(send=False, image=kept[0], mask=kept[1], **SHORT))
    drawn = np.asarray(Image.open(io.BytesIO(content(stage, job))))
    assert (drawn[:, 32:] == (200, 30, 90)).all()
    assert not (drawn[:, :32] == (200, 30, 90)).all()


def forget(stage: Stage, file_id: str) -> None:
    with stage.database.transaction() as session:
        session.execute(update(File).where(File.id == file_id).values(gone_at=now()))
    with stage.database.transaction() as session:
        files.forget(session, [file_id])


@pytest.mark.parametrize(
    ("harm", "code", "words"),
    [
        ("row", "input_gone", "is not kept any more. Upload it and order anew."),
        ("bytes", "input_gone", "has been deleted. Upload it and order anew."),
        ("content", "input_damaged", "is not what was uploaded"),
    ],
)
def test_a_picture_that_is_gone_or_damaged_fails_the_job_at_once(
    stage: Stage, me: Child, harm: str, code: str, words: str
) -> None:
    file_id = stage.keep(png("red"))
    job_id = stage.submit(send=False, image=file_id, **SHORT)
    with stage.database.reading() as session:
        key = files.get_file(session, file_id, "local").key
    if harm == "row":
        forget(stage, file_id)
    elif harm == "bytes":
        stage.artifacts.delete(key)
    else:
        stage.artifacts.put(key, png("blue"))
    job = run(stage, me, job_id)
    assert (job.state, job.error_code, job.attempt) == (JobState.FAILED, code, 1)
    assert words in (job.error_message or "")


class Filming(Engine):
    """An engine whose pictures are videos of four frames."""

    def render(self, plan: RenderPlan, *_: Any, **__: Any) -> Rendering:
        frames = np.zeros((4, 600, 800, 3), np.uint8)
        frames[0, :, :400] = (250, 10, 10)
        return Rendering((Picture(0, plan.seed, None, frames),), {"total": 1.0}, {"steps": 1})


def test_a_video_gets_a_thumbnail_of_its_first_frame_that_upkeep_keeps(
    stage: Stage, me: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    me.engine = Filming(me.setup.spec, me.setup.policy)
    video = attempt.read_plan  # the plan of an image model, as that of a video
    monkeypatch.setattr(
        attempt,
        "read_plan",
        lambda me, job: video(me, job).model_copy(update={"output_format": "mp4", "fps": 8, "kind": "video"}),
    )
    job = run(stage, me, stage.submit(send=False))
    (artifact,) = job.artifacts
    assert (artifact.media_type, artifact.frames) == ("video/mp4", 4)
    assert artifact.thumbnail_key is not None
    data = stage.artifacts.get(artifact.thumbnail_key)
    assert (artifact.thumbnail_bytes, artifact.thumbnail_sha256) == (
        len(data),
        hashlib.sha256(data).hexdigest(),
    )
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == ("WEBP", (512, 384))
    left, right = image.convert("RGB").getpixel((100, 100)), image.convert("RGB").getpixel((400, 100))
    assert left[0] > 200  # type: ignore[index]
    assert right[0] < 50  # type: ignore[index]
    assert read_provenance(data)["seed"] == artifact.seed
    with upkeep.opened(stage.settings) as duties:
        assert upkeep.sweep_orphans(duties) == 0
    assert stage.artifacts.get(artifact.thumbnail_key) == data


def test_upkeep_deletes_files_that_nobody_needs(stage: Stage) -> None:
    needed, old, young = (stage.keep(png(colour)) for colour in ("red", "green", "blue"))
    stage.submit(send=False, image=needed, **SHORT)
    life_s = stage.settings.file_life_s
    with stage.database.transaction() as session:
        keys = {name: files.get_file(session, name, "local").key for name in (needed, old, young)}
        session.execute(update(File).where(File.id != young).values(sent_at=now(-2 * life_s)))
    with upkeep.opened(stage.settings) as duties:
        assert upkeep.give_up_old_files(duties) == 1
        assert upkeep.give_up_old_files(duties) == 0
    assert set(stage.artifacts.list("files/")) == {keys[needed], keys[young]}
