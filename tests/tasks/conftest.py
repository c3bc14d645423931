"""The stage of the worker's tests, and log lines that cost little to write."""

import pytest
import structlog

from tests.fixtures.workers import shared_stage, stage

__all__ = ["plain_logs", "shared_stage", "stage"]


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> None:
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
