"""Whether there is room to write, asked without writing: for questions after the state of the service."""

import os
from pathlib import Path

from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

LEAST_FREE_BYTES = 8 * 1024**2
"""Below this a disk counts as full: SQLite takes half of it between two checkpoints, a picture the rest."""

_IS_STANDBY = text("SELECT pg_is_in_recovery()")


def lacks_room(folder: Path) -> str | None:
    """Return in words that the disk below ``folder`` is full; None when it is not."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    free = found.f_bavail * found.f_frsize
    return f"the disk of {folder} is full: {free} bytes are left" if free < LEAST_FREE_BYTES else None


def refuses_writes(session: Session) -> str | None:
    """Return in words why the database would take no order now; None when it would.

    A full disk below SQLite, or a PostgreSQL that is a standby, as after another server took over.
    """
    url = make_url(session.connection().engine.url)
    if url.get_backend_name() == "sqlite":
        return lacks_room(Path(url.database).absolute().parent) if url.database else None
    standby = session.scalars(_IS_STANDBY).one()
    return "it is a standby, which takes no writes" if standby else None
