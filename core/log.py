"""Logging of one process: one line per unit of work, pretty on a terminal, JSON anywhere else.

Lines go to standard error, because the commands print their results on standard output. Event names are
constant (``job.claimed``), what varies is a field, and what holds for a whole unit (job, attempt, model,
worker) is bound once at its start. Loggers of other libraries come out the same way.
"""

import logging
import sys
from typing import Any, TextIO

import stamina
import structlog
from structlog.contextvars import merge_contextvars
from structlog.typing import FilteringBoundLogger, Processor

from core.settings import get_settings

QUIET = ("alembic", "httpx2", "httpcore2", "uvicorn.access")
"""Loggers that tell of every small thing at level info; ours say it better."""


def configure_logging(
    process: str, *, log_format: str | None = None, level: str | None = None, stream: TextIO | None = None
) -> None:
    """Set up logging for the whole process, replacing what was set up before.

    Args:
        process: Name of the process, a field of every line: ``api``, ``worker``, ``upkeep``.
        log_format: ``console``, ``json`` or ``auto`` (by what ``stream`` is); default: the settings'.
        level: Least level that is written; default: the settings'.
        stream: Default: standard error.
    """
    stream = stream or sys.stderr
    log_format = log_format or get_settings().log_format
    pretty = stream.isatty() if log_format == "auto" else log_format == "console"
    shared = _shared(process)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_last(pretty=pretty))
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel((level or get_settings().log_level).upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    stamina.instrumentation.set_on_retry_hooks([_note_retry])


def _note_retry(details: stamina.instrumentation.RetryDetails) -> None:
    """Tell of a repeated call by name alone: its arguments may hold settings, and with them passwords."""
    wait_s = round(details.wait_for, 1)
    get_logger().warning("call.repeated", call=details.name, wait_s=wait_s, error=str(details.caused_by))


def get_logger() -> FilteringBoundLogger:
    """Return a logger; fields given to its methods join those that are bound."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _shared(process: str) -> list[Processor]:
    def name_process(_logger: object, _method: str, line: Any) -> Any:  # noqa: ANN401 - structlog's own type
        line["process"] = process
        return line

    return [
        merge_contextvars,
        name_process,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _last(*, pretty: bool) -> list[Processor]:
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if pretty:
        # Plain: the pretty one prints local variables, and with them passwords.
        plain = structlog.dev.plain_traceback
        return [without_meta, structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [
        without_meta,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("event"),
        structlog.processors.JSONRenderer(default=str),
    ]
