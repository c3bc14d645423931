"""The stage of the worker's tests, and log lines that cost little to write."""

import pytest
import structlog

from tests.fixtures.workers import (
    Stage,
    WorkerProcess,
    crew_stage,
    quick_stage,
    shared_stage,
    stage,
    stage_of_own_valkey,
)

__all__ = [
    "crew_stage",
    "plain_logs",
    "quick_stage",
    "shared_stage",
    "stage",
    "stage_of_own_valkey",
    "worker",
]


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> None:
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )


@pytest.fixture
def worker(quick_stage: Stage) -> WorkerProcess:
    """The warm worker of `quick_stage`."""
    return quick_stage.first_worker()
