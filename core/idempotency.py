"""The keys under which callers send an order, so that the same call again is the same order."""

from typing import Literal

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.clock import now
from core.errors import IdempotencyMismatch
from core.tables import IdempotencyKey


def peek_key(session: Session, caller: str, key: str) -> IdempotencyKey | None:
    """Return the record of an earlier call with this key, whatever that ordered; None when there was none."""
    return session.get(IdempotencyKey, (caller, key), populate_existing=True)


def find_key(session: Session, caller: str, key: str, fingerprint: str) -> IdempotencyKey | None:
    """Return the record of an earlier call with this key; None when there was none.

    Raises:
        IdempotencyMismatch: The key was used with another fingerprint.
    """
    record = peek_key(session, caller, key)
    if record is not None and record.fingerprint != fingerprint:
        raise IdempotencyMismatch(f"The idempotency key {key!r} was used before with another request.")
    return record


def find_earlier(
    session: Session, caller: str, idempotency: tuple[str, str] | None, kind: Literal["job", "batch"]
) -> str | None:
    """Return the id of what an earlier call with this key has made; None when there was none.

    Args:
        session: The unit of work.
        caller: Whose key it is.
        idempotency: Key and fingerprint; None for a call that names no key.
        kind: What this call makes.

    Raises:
        IdempotencyMismatch: The key was used with another fingerprint, or for the other kind.
    """
    if idempotency is None:
        return None
    key, fingerprint = idempotency
    record = find_key(session, caller, key, fingerprint)
    if record is None:
        return None
    made, other = (record.job_id, "a batch") if kind == "job" else (record.batch_id, "a single job")
    if made is None:
        raise IdempotencyMismatch(f"The idempotency key {key!r} was used before for {other}.")
    return made


def keep_key(
    session: Session,
    caller: str,
    idempotency: tuple[str, str] | None,
    *,
    job_id: str | None = None,
    batch_id: str | None = None,
) -> None:
    """Record key and fingerprint of the order that this transaction makes; nothing when it names no key."""
    if idempotency is not None:
        key, fingerprint = idempotency
        record = IdempotencyKey(
            caller=caller, key=key, fingerprint=fingerprint, job_id=job_id, batch_id=batch_id
        )
        session.add(record)
        session.flush()


def forget_idempotency_keys(session: Session, older_than_s: float) -> int:
    """Remove the keys of submissions that long ago; returns how many. Their jobs stay."""
    old = IdempotencyKey.created_at <= now(-older_than_s)
    removed = session.scalars(delete(IdempotencyKey).where(old).returning(IdempotencyKey.key))
    return len(removed.all())
