"""The real compiler, once: its results are the eager ones, and requests find everything compiled."""

import gc
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from core import archive
from pipeline.engine import Engine
from policy.model_spec import ModelSpec
from tests.fixtures.models import pixels, planned, resolved

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler for the CPU needs g++"),
]


def test_compiled_blocks_draw_the_eager_picture_and_requests_compile_nothing(
    tiny_spec: ModelSpec, tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # One process compiles faster than a pool of them that has to be started first.
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "first"))
    policy = resolved(tiny_spec, compile=True, new_shape="compile")
    engine = Engine(tiny_spec, policy, device="cpu")
    engine.prepare()
    assert engine.preparation[-1].detail["compiles"] == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled = engine.render(planned(tiny_spec))
        again = engine.render(planned(tiny_spec))
        guided = engine.render(planned(tiny_spec, guidance_scale=2.5))
    assert pixels(compiled) == pixels(again)
    assert (compiled.acceleration["compiles"], guided.acceleration["compiles"]) == (0, 0)
    eager = tiny_engine.render(planned(tiny_spec))
    images = [np.asarray(one.pictures[0].image).astype(int) for one in (compiled, eager)]
    assert np.abs(images[0] - images[1]).max() <= 2
    assert compiled.acceleration["cached_steps"] == eager.acceleration["cached_steps"]
    engine.close()

    # The next start, elsewhere and with what this one made: it finds all of it, and draws the same.
    (tmp_path / "second").mkdir()
    archive.unpack(archive.pack(tmp_path / "first"), tmp_path / "second", most_bytes=10**8)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "second"))
    gc.collect()
    torch._dynamo.reset()
    counters.clear()
    second = Engine(tiny_spec, policy, device="cpu")
    second.prepare()
    found = counters["inductor"]
    assert (found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]) == (3, 0)
    assert pixels(second.render(planned(tiny_spec))) == pixels(compiled)
    second.close()
