import pytest

from cli.rendered import describe_rendering
from tests.cli.job_answers import job

REUSED = {"mounted": True, "cache": "balanced", "cached_steps": 12, "steps": 24, "compiled": True}


@pytest.mark.parametrize(
    ("acceleration", "words"),
    [
        (REUSED, "0.13 s, 12 of 24 steps from the cache (balanced), compiled"),
        ({"mounted": False, "cache": None, "steps": 24}, "0.13 s, no cache"),
        (
            REUSED | {"compiled": False, "microbatch": 4, "likeness": "close"},
            "0.13 s, 12 of 24 steps from the cache (balanced), 4 pictures in its pass (close)",
        ),
        (None, None),
    ],
)
def test_a_line_says_how_a_job_was_rendered(
    acceleration: dict[str, object] | None, words: str | None
) -> None:
    done = job("completed", acceleration=acceleration, timings_ms={"total": 129.6})
    assert describe_rendering(done) == words
