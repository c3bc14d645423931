"""What the callers of a run order, drawn from a seed: single jobs, batches, repeats, cancels."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

How = Literal["once", "repeat", "at once", "other body", "cancel"]
HOW: Sequence[tuple[How, int]] = (
    ("once", 72),
    ("repeat", 8),
    ("at once", 6),
    ("other body", 4),
    ("cancel", 10),
)
BATCH_SHARE = 0.03
BATCH_ROWS = (4, 12)
_HOW_BATCH: Sequence[How] = ("once", "once", "repeat", "cancel")
STEPS = 8
PROMPT = "picture"
HURRIED_SHARE = 0.03
"""Of the jobs that expire when no worker takes them within a second."""
TEMPLATE: dict[str, Any] = {"model": "tiny", "num_inference_steps": STEPS, "cache": "off"}


@dataclass(frozen=True, slots=True)
class Order:
    """One call and what its caller does about it.

    Attributes:
        body: Of ``POST /v1/jobs``, or of ``POST /v1/batches`` when it has ``rows``.
        jobs: How many jobs it makes.
        how: ``repeat``: the same call once more; ``at once``: twice in parallel; ``other body``: then another
            body under the same key, which must be refused; ``cancel``: it is cancelled after ``wait_s``.
        key: Its idempotency key.
        wait_s: See there.
    """

    body: dict[str, Any]
    jobs: int
    how: How
    key: str
    wait_s: float

    @property
    def is_batch(self) -> bool:
        return "rows" in self.body


def draw_orders(seed: int, jobs: int) -> list[Order]:
    """Orders that make exactly so many jobs."""
    draw = random.Random(f"orders {seed}")
    orders: list[Order] = []
    left = jobs
    while left > 0:
        rows = min(left, draw.randint(*BATCH_ROWS)) if draw.random() < BATCH_SHARE else 0
        orders.append(_draw_batch(draw, rows) if rows else _draw_single(draw))
        left -= orders[-1].jobs
    return orders


def is_ours(request: Mapping[str, Any]) -> bool:
    """Whether a single job's request is one that was drawn here."""
    return str(request["prompt"]).startswith(PROMPT)


def _draw_single(draw: random.Random) -> Order:
    number = draw.randrange(2**31)
    body = TEMPLATE | {
        "prompt": f"{PROMPT} {number}",
        "seed": number,
        "n": 2 if draw.random() < 0.1 else 1,
        "priority": draw.choice(("low", "normal", "normal", "high")),
    }
    if draw.random() < HURRIED_SHARE:
        body["queue_timeout_s"] = 1
    [how] = draw.choices([how for how, _ in HOW], [weight for _, weight in HOW])
    return Order(body, 1, how, f"single-{number}-{draw.randrange(2**31)}", draw.random() / 2)


def _draw_batch(draw: random.Random, rows: int) -> Order:
    number = draw.randrange(2**31)
    body = {
        "name": f"batch {number}",
        "template": TEMPLATE | {"prompt": "picture {row} of the batch"},
        "rows": [{"seed": number + row} for row in range(rows)],
    }
    how = draw.choice(_HOW_BATCH)
    return Order(body, rows, how, f"batch-{number}", draw.random() * 2)
