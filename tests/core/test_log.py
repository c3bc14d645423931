"""One line per unit of work, JSON off a terminal."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import stamina
import structlog
from structlog.contextvars import bound_contextvars

from core.log import QUIET, configure_logging, get_logger


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, [logging.getLogger(name).level for name in QUIET])
    yield
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    stamina.instrumentation.set_on_retry_hooks(None)
    root.handlers, level, levels = before
    root.setLevel(level)
    for name, quiet_level in zip(QUIET, levels, strict=True):
        logging.getLogger(name).setLevel(quiet_level)


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    configure_logging("worker", stream=stream)
    return stream


def lines(out: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_off_a_terminal_is_json(out: io.StringIO) -> None:
    get_logger().info("job.claimed", job="j-1", attempt=2)
    (line,) = lines(out)
    assert line["event"] == "job.claimed"
    assert (line["job"], line["attempt"], line["level"], line["process"]) == ("j-1", 2, "info", "worker")
    assert line["timestamp"].endswith("Z")


def test_a_line_on_a_terminal_is_for_people() -> None:
    terminal = Terminal()
    configure_logging("api", stream=terminal)
    get_logger().info("job.claimed", job="j-1")
    assert "job.claimed" in terminal.getvalue()
    assert "{" not in terminal.getvalue()


def test_the_format_can_be_chosen() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    configure_logging("api", log_format="json", stream=terminal)
    get_logger().info("x")
    assert terminal.getvalue().startswith("{")
    configure_logging("api", log_format="console", stream=pipe)
    get_logger().info("x")
    assert "{" not in pipe.getvalue()


def test_what_is_less_than_the_level_is_not_written() -> None:
    out = io.StringIO()
    configure_logging("api", level="warning", stream=out)
    get_logger().info("quiet")
    get_logger().warning("loud")
    assert [line["event"] for line in lines(out)] == ["loud"]


def test_other_libraries_come_out_the_same_way(out: io.StringIO) -> None:
    logging.getLogger("celery.worker").warning("lost %s", "connection")
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["process"]) == ("lost connection", "celery.worker", "worker")


def test_a_chatty_library_is_heard_from_warning_on(out: io.StringIO) -> None:
    logging.getLogger("alembic.runtime").info("Context impl SQLiteImpl.")
    logging.getLogger("alembic.runtime").warning("careful")
    assert [line["event"] for line in lines(out)] == ["careful"]


def test_a_warning_becomes_a_line(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)  # pytest has its own hook in between
        logging.captureWarnings(capture=True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "old call" in lines(out)[0]["event"]


def test_setting_up_twice_writes_each_line_once(out: io.StringIO) -> None:
    configure_logging("worker", stream=out)
    get_logger().info("once")
    assert len(lines(out)) == 1


def test_what_is_bound_holds_for_every_line_inside_and_none_after(out: io.StringIO) -> None:
    with bound_contextvars(job="j-1", attempt=2):
        get_logger().info("inside")
        logging.getLogger("library").warning("inside, too")
    get_logger().info("after")
    inside, library, after = lines(out)
    assert (inside["job"], inside["attempt"], library["job"]) == ("j-1", 2, "j-1")
    assert "job" not in after


def test_a_value_that_json_does_not_know_is_written_as_text(out: io.StringIO) -> None:
    get_logger().info("x", value={1, 2}.__class__)
    assert lines(out)[0]["value"] == "<class 'set'>"


def test_a_traceback_on_a_terminal_shows_no_values_of_variables() -> None:
    terminal = Terminal()
    configure_logging("worker", stream=terminal)
    password = "geheim" + "nis"
    try:
        password.index("absent")
    except ValueError:
        get_logger().exception("job.attempt_failed")
    assert "ValueError" in terminal.getvalue()
    assert "geheimnis" not in terminal.getvalue()


def test_a_repeated_call_is_told_without_its_arguments(out: io.StringIO) -> None:
    @stamina.retry(on=KeyError, attempts=2, wait_initial=0, wait_jitter=0)
    def look(where: str) -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        look("postgresql://bob:geheimnis@host/db")
    (line,) = lines(out)
    assert line["event"] == "call.repeated"
    assert "gone" in line["error"]
    assert "geheimnis" not in out.getvalue()
