"""Ids of jobs, workers and calls: UUIDv7 in text, so that they sort by the time they were made."""

import uuid

from uuid_utils import compat


def new_id() -> str:
    """Return a new id, 36 characters, later ids of one process being greater."""
    return str(compat.uuid7())


def is_id(text: str) -> bool:
    """Whether ``text`` is a UUID in its canonical, lower-case spelling."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
