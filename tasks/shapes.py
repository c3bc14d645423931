"""What a worker's row says of shapes, and how its parent learns that some are wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core import workers
from core.log import get_logger
from tasks.engine import LearnsShapes
from tasks.patience import DATABASE_ERRORS

if TYPE_CHECKING:
    from pipeline.rendering import ShapeReport
    from tasks.child import Child

#: What the row says of a worker whose children died of it.
NO_MORE = (
    "shapes are not warmed while idle any more, because the worker's process was killed {} times while it "
    "did so: is there memory enough to compile? Starting the worker anew has it try again"
)

_log = get_logger()


def tell_shapes(me: Child) -> None:
    """Let the row say which shapes are warm, and the parent know whether some are wanted."""
    engine = me.engine
    if not isinstance(engine, LearnsShapes):
        return
    me.setup.board.cells.wanted = engine.wants_warm_up
    report = _report(engine, me)
    if report == me.shapes_told:
        return
    try:
        with me.database.transaction() as session:
            workers.tell_shapes(session, me.setup.worker_id, report.warm, report.cold, report.note)
    except DATABASE_ERRORS:
        _log.warning("worker.row_not_written")
    else:
        me.shapes_told = report


def _report(engine: LearnsShapes, me: Child) -> ShapeReport:
    report, board = engine.shapes, me.setup.board
    if not board.warms_no_more:
        return report
    said = NO_MORE.format(board.cells.died_warming)
    return replace(report, note=f"{said}; {report.note}" if report.note else said)
