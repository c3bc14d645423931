"""Asks Redis whether it takes writes: one that is full, or a replica, answers a PING all the same."""

from __future__ import annotations

from typing import Any

KEY = "renderq.probe"
KEPT_S = 60


def try_write(client: Any) -> None:  # noqa: ANN401 - redis through kombu has no types
    """Write something small that ends by itself; raises what the client raises when that is refused."""
    client.set(KEY, "1", ex=KEPT_S)
