"""Jobs through the running system: API, Valkey, worker with the real model, files."""

import io
import os
import signal

import pytest
from PIL import Image, ImageStat

from pipeline.encode import read_provenance
from tests.fixtures.plain import http
from tests.fixtures.processes import is_gone
from tests.fixtures.stack import TERMINAL, RunningStack
from tests.fixtures.waiting import wait_until
from training.checker import judge
from training.examples import held_out_landscapes

pytestmark = pytest.mark.xdist_group("stack")
PROMPT = "a white house with a blue roof and an orange tree on a beach and mountains at sunset"
LONG = {"seed": 7, "n": 3, "num_inference_steps": 50, "guidance_scale": 2.5}
"""A job that runs for some seconds: 300 passes through the transformer."""


def content(stack: RunningStack, job_id: str, index: int = 0) -> bytes:
    answer = http.get(f"{stack.url}/v1/jobs/{job_id}/content", params={"index": index})
    return answer.raise_for_status().content


def picture(stack: RunningStack, job_id: str, index: int = 0) -> Image.Image:
    return Image.open(io.BytesIO(content(stack, job_id, index)))


def wait_rendering(stack: RunningStack, job_id: str, attempt: int = 1) -> None:
    def is_rendering() -> bool:
        job = stack.get(job_id)
        assert job["status"] not in TERMINAL, job
        return job["attempt"] == attempt and bool(job["progress"]) and job["progress"]["step"] > 0

    wait_until(is_rendering, 60, "the first steps of the job")


def test_a_prompt_becomes_its_picture_with_its_making_inside(stack: RunningStack) -> None:
    job_id = stack.submit(PROMPT, seed=7)
    job = stack.wait_for(job_id, *TERMINAL)
    assert job["status"] == "completed", job["error"]
    data = content(stack, job_id)
    assert judge(PROMPT, Image.open(io.BytesIO(data))).correct
    provenance = read_provenance(data)
    assert provenance["plan"]["seed"] == 7  # type: ignore[index]
    assert job["acceleration"]["cached_steps"] > 0


def test_captions_that_the_model_never_saw_are_drawn(stack: RunningStack) -> None:
    captions = [caption for caption, _ in held_out_landscapes(8, seed=3)]
    ids = [stack.submit(caption, seed=100 + number) for number, caption in enumerate(captions)]
    right = 0
    for caption, job_id in zip(captions, ids, strict=True):
        assert stack.wait_for(job_id, *TERMINAL)["status"] == "completed"
        right += judge(caption, picture(stack, job_id)).correct
    assert right >= 5


def test_a_picture_of_several_is_the_picture_of_its_own_seed(stack: RunningStack) -> None:
    pair = stack.submit(PROMPT, seed=40, n=2)
    single = stack.submit(PROMPT, seed=41)
    for job_id in (pair, single):
        assert stack.wait_for(job_id, *TERMINAL)["status"] == "completed"
    assert picture(stack, pair, 1).tobytes() == picture(stack, single).tobytes()


def test_a_running_job_stops_at_its_next_step_and_the_next_one_runs(stack: RunningStack) -> None:
    long = stack.submit(PROMPT, **LONG)
    after = stack.submit(PROMPT, seed=7)
    wait_rendering(stack, long)
    answer = http.post(f"{stack.url}/v1/jobs/{long}/cancel")
    assert answer.status_code == 202
    job = stack.wait_for(long, *TERMINAL, timeout_s=20)
    assert job["status"] == "canceled"
    assert 0 < job["stopped_at_step"] < 150
    assert stack.wait_for(after, *TERMINAL)["status"] == "completed"


def test_a_job_whose_renderer_is_killed_is_rendered_again(stack: RunningStack) -> None:
    job_id = stack.submit(PROMPT, **LONG)
    wait_rendering(stack, job_id)
    [child] = [worker["child_pid"] for worker in stack.workers() if worker["current_job_id"] == job_id]
    os.kill(child, signal.SIGKILL)
    job = stack.wait_for(job_id, *TERMINAL, timeout_s=120)
    assert job["status"] == "completed", job
    assert job["attempt"] == 2
    assert [artifact["index"] for artifact in job["artifacts"]] == list(range(3))


def test_a_job_whose_whole_worker_is_killed_is_rendered_by_the_next(stack: RunningStack) -> None:
    job_id = stack.submit(PROMPT, **LONG)
    wait_rendering(stack, job_id)
    before = stack.find("renderq worker")
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in before), 10, "the end of the killed worker's child")
    job = stack.wait_for(job_id, *TERMINAL, timeout_s=120)
    assert job["status"] == "completed", job
    assert not set(stack.find("renderq worker")) & set(before)
    assert "starting it again" in stack.said()


def test_a_lora_takes_the_colours_from_its_own_picture_only(stack: RunningStack) -> None:
    def drawn(**fields: object) -> Image.Image:
        job_id = stack.submit(PROMPT, seed=7, **fields)
        job = stack.wait_for(job_id, *TERMINAL)
        assert job["status"] == "completed", job["error"]
        return picture(stack, job_id)

    def colourfulness(image: Image.Image) -> float:
        return ImageStat.Stat(image.convert("HSV")).mean[1]

    before = drawn()
    mono = drawn(lora=[{"name": "mono"}])
    assert colourfulness(mono) < colourfulness(before) / 4
    assert drawn().tobytes() == before.tobytes()
