"""The stage of the worker's tests."""

from tests.fixtures.workers import shared_stage, stage

__all__ = ["shared_stage", "stage"]
