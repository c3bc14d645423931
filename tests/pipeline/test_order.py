"""Mount, then compile, then warm up: after that, no request waits for the compiler."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from pipeline.engine import Engine
from pipeline.miniature import spec_of
from pipeline.order import Order, measure_order
from pipeline.rendering import PreparationStep
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from tests.fixtures.models import GraphCounter, pixels, planned, resolved

pytestmark = pytest.mark.usefixtures("fresh_compiler")

OURS: Order = "mount>compile>warmup"
FAULTY: Order = "compile>warmup>mount"


class Prepared:
    """An engine that was prepared, and what was on its transformer at each report."""

    def __init__(self, spec: ModelSpec, scope: str) -> None:
        self.backend = GraphCounter()
        self.seen: list[tuple[str, str, object, object]] = []
        # Requests may compile here, so that the rule against it cannot hide what is still to be compiled.
        policy = resolved(spec, compile=True, compile_scope=scope, new_shape="compile")
        self.engine = Engine(spec, policy, device="cpu", backend=self.backend, report=self.note)
        self.engine.prepare()

    def note(self, step: PreparationStep) -> None:
        if step.state == "done" or step.name in ("compile", "warmup"):
            now = self.engine.effective()
            self.seen.append((step.name, step.state, now["mounted"], now["compile_scope"]))


@pytest.fixture(scope="module", params=["whole", "regional"])
def prepared(
    request: pytest.FixtureRequest, shallow_spec: ModelSpec, fresh_compiler: None
) -> Iterator[Prepared]:
    torch._dynamo.reset()
    prepared = Prepared(shallow_spec, request.param)
    yield prepared
    prepared.engine.close()


def test_the_cache_is_mounted_before_anything_is_compiled(prepared: Prepared) -> None:
    scope = prepared.engine.policy["compile_scope"]
    assert prepared.seen == [
        ("load", "done", False, "none"),
        ("mount", "done", True, "none"),
        ("compile", "started", True, "none"),
        ("compile", "done", True, scope),
        ("warmup", "started", True, scope),
        ("warmup", "done", True, scope),
    ]


def test_the_warm_up_compiles_and_the_requests_after_it_do_not(prepared: Prepared) -> None:
    spec = prepared.engine.spec
    assert prepared.backend.graphs > 0
    before = prepared.backend.graphs
    clear_compilation_metrics()
    requests: list[dict[str, Any]] = [
        {},
        {"guidance_scale": 2.5},
        {"cache": "fast"},
        {"cache": "off"},
        {"num_inference_steps": 9, "negative_prompt": "a boat"},
        {"n": 2, "prompt": "a boat"},
        {},
    ]
    with torch.compiler.set_stance("fail_on_recompile"):
        renderings = [prepared.engine.render(planned(spec, **fields)) for fields in requests]
    assert get_compilation_metrics() == []
    assert prepared.backend.graphs == before
    assert [rendering.acceleration["compiles"] for rendering in renderings] == [0] * len(requests)
    # Also without the cache: compiled whole with it, the pieces of code that were made for it run.
    assert all(rendering.acceleration["compiled"] for rendering in renderings)
    assert pixels(renderings[0]) == pixels(renderings[-1])


@pytest.mark.parametrize(("order", "first"), [(OURS, False), (FAULTY, True)])
def test_compiled_before_the_mount_the_first_request_compiles(
    order: Order, first: bool, miniature_folder: Callable[[str], Path]
) -> None:
    torch._dynamo.reset()
    spec, source = spec_of(Catalogue.load()["flux.1-dev"]), str(miniature_folder("flux.1-dev"))
    policy, counter = resolved(spec, compile=True), GraphCounter()
    result = measure_order(
        spec, policy, order, "whole", source=source, device="cpu", backend=counter, requests=1
    )
    assert (result["compiles_first_request"] > 0) is first
    assert (result["compiles_warmup"] > 5) is not first
    assert result["compiles_later_requests"] == 0
    assert result["compile_scope"] == "whole"
    assert result["cache_mounted"] is True
