"""What a worker's row says of shapes, and how its parent learns that some are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import workers
from core.log import get_logger
from tasks.engine import LearnsShapes
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from tasks.child import Child

_log = get_logger()


def tell_shapes(me: Child) -> None:
    """Let the row say which shapes are warm, and the parent know whether some are wanted."""
    engine = me.engine
    if not isinstance(engine, LearnsShapes):
        return
    me.setup.board.cells.wanted = engine.wants_warm_up
    report = engine.shapes
    if report == me.shapes_told:
        return
    try:
        with me.database.transaction() as session:
            workers.tell_shapes(session, me.setup.worker_id, report.warm, report.cold, report.note)
    except DATABASE_ERRORS:
        _log.warning("worker.row_not_written")
    else:
        me.shapes_told = report
