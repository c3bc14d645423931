"""What compilers made for workers of one kind, kept for the next of that kind: its hash stands here.

The files lie in a folder and in the artifact store. Whoever can write there could have code run by every
worker, so a worker believes only what has the hash in this table.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.tables import CompileCache

PREFIX = "compile-cache/"
"""Of the keys in the artifact store; nothing outside it is ever read as a cache."""


def archive_key(key: str, sha256: str) -> str:
    """Return where the artifact store keeps an archive."""
    return f"{PREFIX}{key}/{sha256}.tar.gz"


def find_kept(session: Session, key: str) -> CompileCache | None:
    """Return what is kept under ``key`` and count it as used."""
    session.execute(update(CompileCache).where(CompileCache.key == key).values(used_at=now()))
    return session.get(CompileCache, key, populate_existing=True)


def keep(session: Session, *, key: str, sha256: str, size: int, facts: Mapping[str, Any]) -> None:
    """Note the archive of ``key``, in place of the one that was noted before."""
    session.merge(
        CompileCache(key=key, sha256=sha256, bytes=size, facts=dict(facts), created_at=now(), used_at=now())
    )


def forget_unused(session: Session, older_than_s: float) -> int:
    """Remove what no worker used for that long; returns how many."""
    unused = CompileCache.used_at <= now(-older_than_s)
    return len(session.scalars(delete(CompileCache).where(unused).returning(CompileCache.key)).all())


def archive_keys(session: Session) -> set[str]:
    """Return the keys of all archives that are noted."""
    noted = session.execute(select(CompileCache.key, CompileCache.sha256))
    return {archive_key(key, sha256) for key, sha256 in noted}
