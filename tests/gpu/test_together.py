"""On an NVIDIA GPU: what the warm-up finds of shared passes is true of whole jobs. Skipped without one."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.distance import measure_distance
from pipeline.engine import Engine
from pipeline.memory import find_hardware
from pipeline.miniature import spec_of
from pipeline.rendering import Rendering
from pipeline.together import CLOSE_DB
from policy.catalogue import Catalogue
from policy.resolve import resolve
from tests.fixtures.models import pixels, planned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(280),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

PROMPTS = ("a house", "a red boat on the sea by night", "a green tree in the snow", "a beach")


@pytest.fixture
def prepare(miniature_folder: Callable[[str], Path]) -> Iterator[Callable[[str], Engine]]:
    engines: list[Engine] = []

    def prepared(model_id: str) -> Engine:
        spec, source = Catalogue.load().get_model(model_id), None
        if model_id != "tiny":
            spec, source = spec_of(spec), str(miniature_folder(model_id))
        policy = resolve(spec, flags={"microbatch": 4}, env={}, hardware=find_hardware())
        engines.append(Engine(spec, policy, source=source))
        engines[-1].prepare()
        return engines[-1]

    yield prepared
    for engine in engines:
        engine.close()


def pictures(renderings: Sequence[Any]) -> list[Any]:
    return [np.asarray(rendering.pictures[0].image) for rendering in renderings]


@pytest.mark.parametrize("model_id", ["tiny", "flux.1-dev", "qwen-image"])
def test_what_the_warm_up_found_holds_for_whole_jobs(
    model_id: str, prepare: Callable[[str], Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = prepare(model_id)
    with capsys.disabled():
        print(model_id, engine.preparation[-1].detail["shared_passes"])  # noqa: T201 - a finding of its own
    steps = {} if model_id == "tiny" else {"num_inference_steps": 12}
    for quality in ("lossless", "high"):
        plans = [
            planned(engine.spec, prompt=prompt, seed=seed, quality=quality, **steps)
            for seed, prompt in enumerate(PROMPTS)
        ]
        alone = [engine.render(plan) for plan in plans]
        for size in engine.shared_sizes(plans[0]).mixed:
            drawn = engine.render_together(plans[:size])
            assert all(isinstance(each, Rendering) for each in drawn)
            if quality == "lossless":
                assert [pixels(each) for each in drawn] == [pixels(each) for each in alone[:size]]
            worst = measure_distance(pictures(drawn), pictures(alone[:size])).worst_db
            assert worst is None or worst >= CLOSE_DB
