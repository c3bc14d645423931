"""Random sequences of jobs, some of them stopped or failed: each job draws what it draws in a fresh process.

`pytest --hypothesis-profile=thorough` tries 200 sequences instead of a few.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.engine import Engine
from pipeline.errors import Stopped
from policy.catalogue import Catalogue
from tests.fixtures.models import pixels, planned, resolved

THOROUGH = settings.get_current_profile_name() == "thorough"
SEQUENCES = 200 if THOROUGH else 8
MODELS = ("tiny", "qwen-image", "wan2.2-t2v-a14b", "flux.2-klein-4b")

Job = dict[str, Any]
Fresh = Callable[[str, Job], str]


class Interrupted(Exception):
    """What leaves a job in its middle, as a lost lease does."""


def digest(engine: Engine, job: Job, until: int | None = None, error: type[Exception] | None = None) -> str:
    """Of all pictures of the job; empty when it was left after ``until`` steps."""

    def on_step(done: int, _total: int) -> bool:
        if done == until and error is not None:
            raise error
        return done != until

    try:
        return sha256(b"".join(pixels(engine.render(planned(engine.spec, **job), on_step)))).hexdigest()
    except (Stopped, Interrupted):
        return ""


@pytest.fixture(scope="module")
def engines(heavy_modules: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    from pipeline.miniature import build, spec_of

    made = {}
    for model in MODELS:
        spec, source = Catalogue.load()[model], None
        if model != "tiny":
            source = str(build(model, tmp_path_factory.mktemp("sequences") / model))
            spec = spec_of(spec)
        made[model] = Engine(spec, resolved(spec), source=source, device="cpu")
        made[model].prepare()
    return made


def serve(pipe: Connection, engines: dict[str, Engine]) -> None:
    """Draw what is asked for, each job in a process of its own, until the other end is closed."""
    with suppress(EOFError):
        while True:
            model, job = pipe.recv()
            child = os.fork()
            if child == 0:
                pipe.send(digest(engines[model], job))
                os._exit(0)
            os.waitpid(child, 0)
    os._exit(0)


@pytest.fixture(scope="module")
def fresh(engines: dict[str, Engine]) -> Iterator[Fresh]:
    """Draws a job in a process that was forked from one whose engines have drawn nothing."""
    known: dict[str, str] = {}
    ours, theirs = multiprocessing.Pipe()
    server = os.fork()
    if server == 0:
        ours.close()
        serve(theirs, engines)
    theirs.close()

    def draw(model: str, job: Job) -> str:
        key = json.dumps([model, job])
        if key not in known:
            ours.send((model, job))
            known[key] = ours.recv()
        return known[key]

    yield draw
    ours.close()
    os.waitpid(server, 0)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "num_inference_steps": st.sampled_from([4, 7, 8, 13]),
    "cache": st.sampled_from(["default", "off", {"scm": "2:1:2", "fn": 1}, {"warmup_steps": 1}]),
    "seed": st.sampled_from([1, 2]),
    "n": st.sampled_from([1, 2]),
    "guided": st.booleans(),
    "small": st.booleans(),
    "long": st.booleans(),
}
JOBS = st.fixed_dictionaries(VALUES)
#: What another job has otherwise, the step at which it ends if it does not come through, and how.
ACTS = st.tuples(
    st.fixed_dictionaries({}, optional=VALUES),
    st.none() | st.integers(1, 4),
    st.sampled_from([None, Interrupted]),
)


def fields(engine: Engine, job: Job) -> Job:
    """The job in the words of this engine's model."""
    spec, asked = engine.spec, {name: job[name] for name in ("num_inference_steps", "cache", "seed")}
    width, height = spec.size.default
    if job["small"] and width // 2 >= spec.size.minimum:
        asked |= {"width": width // 2, "height": height}
    if job["guided"] and spec.limits.negative_prompt:
        asked |= {"negative_prompt": "a tree", "guidance_scale": spec.guidance.with_negative or 3.0}
    if job["long"]:
        asked["prompt"] = "a boat with a yellow sail on the sea " * 3
    return asked | {"n": min(job["n"], spec.limits.n)}


@pytest.mark.timeout(3600 if THOROUGH else 300)
@settings(max_examples=SEQUENCES, deadline=None, suppress_health_check=list(HealthCheck))
@given(model=st.sampled_from(MODELS), first=JOBS, between=st.lists(ACTS, min_size=1, max_size=5))
def test_a_job_draws_what_it_draws_in_a_fresh_process_whatever_came_before(
    engines: dict[str, Engine], fresh: Fresh, model: str, first: Job, between: list[Any]
) -> None:
    engine = engines[model]
    job = fields(engine, first)
    expected = fresh(model, job)
    assert expected
    assert digest(engine, job) == expected
    for changes, until, error in between:
        digest(engine, fields(engine, first | changes), until, error)
        assert digest(engine, job) == expected
