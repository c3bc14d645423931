"""What torch.compile is told, by platform."""

import pytest

from pipeline.compilation import CompilePlan
from pipeline.memory import find_platform
from policy.platforms import PLATFORMS
from tests.policy.parts import FLUX, resolved


@pytest.mark.parametrize(
    ("platform", "mode", "backend"),
    [
        ("cuda", "max-autotune", "inductor"),
        ("rocm", "max-autotune", "inductor"),
        ("npu", None, "npu"),
        ("cpu", "max-autotune", "inductor"),
    ],
)
def test_the_mode_is_passed_on_where_the_backend_takes_one(
    platform: str, mode: str | None, backend: str
) -> None:
    flags = {"compile": True, "compile_mode": "max-autotune", "cache": False, "compile_dynamic": "false"}
    plan = CompilePlan.from_policy(resolved(FLUX, flags), platform)
    assert (plan.wanted, plan.mode, plan.backend, plan.dynamic) == (True, mode, backend, False)
    assert plan.capture is False


def test_this_process_has_a_platform_of_the_table() -> None:
    assert find_platform() in PLATFORMS
    graphs = resolved(FLUX, {"capture": True, "cache": False})
    assert CompilePlan.from_policy(graphs).capture is True
