"""Walks through the jobs of a batch in the order of its rows, a page at a time.

Each page is read in a transaction of its own: a download may last hours, and the batch goes on meanwhile.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import batches
from core.db import Database
from core.tables import Job

PAGE = 200
FIELDS_PAGE = 1000


def each_job(database: Database, batch_id: str) -> Iterator[Job]:
    """Yield the current job of each row, with its files, as it stands when its page is read."""
    after = 0
    while True:
        with database.reading() as session:
            page = batches.batch_jobs(session, batch_id, after_row=after, limit=PAGE)
        if not page:
            return
        yield from page
        after = page[-1].batch_row or 0


def each_row(session: Session, batch_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and fields of each row, in order, without its job."""
    after = 0
    while True:
        statement = select(Job.batch_row, Job.batch_fields).where(
            Job.batch_id == batch_id, ~Job.superseded, Job.batch_row > after
        )
        page = session.execute(statement.order_by(Job.batch_row).limit(FIELDS_PAGE)).all()
        if not page:
            return
        yield from ((row or 0, fields or {}) for row, fields in page)
        after = page[-1].batch_row or 0
