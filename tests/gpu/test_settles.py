"""On an NVIDIA GPU: a device that is behind its host is waited for, and not for longer than was said."""

import pytest
import torch

from pipeline.memory import settles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
#: Some seconds of any GPU.
CYCLES = 6_000_000_000


def test_a_device_that_still_waits_has_not_settled() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert settles(device, None)
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    assert not settles(device, 0.1)
    assert settles(device, None)
