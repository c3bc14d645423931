"""The running system for these tests."""

from tests.fixtures.stack import stack

__all__ = ["stack"]
