"""Exit codes of every command, and the error that carries one."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script can tell from the way a command ended."""

    OK = 0
    FAILED = 1
    """The job or one of the batch failed, a check of ``doctor`` failed, or an error that nobody expected."""
    USAGE = 2
    """Bad flags or bad input; the server refused the request as it stands."""
    UNAVAILABLE = 3
    """A server is not reachable or not able to answer; a port or data folder is in use."""
    NOT_RENDERED = 4
    """The job was canceled or expired, or the batch was canceled."""
    LOAD_FAILED = 70
    """The worker could not load or warm its model. Starting it again would not help."""
    DEAF = 75
    """No message reached the worker any more though Redis had some. Start it again."""
    OTHER_DATABASE = 78
    """The database has the tables of another version. Starting again would not help."""
    INTERRUPTED = 130
    """Ctrl-C."""


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the job or one of the batch failed, or an unexpected error",
    ExitCode.USAGE: "bad flags or input, or the server refused the request",
    ExitCode.UNAVAILABLE: "server not reachable or not able to answer; port or data folder in use",
    ExitCode.NOT_RENDERED: "the job or batch was canceled, or the job expired",
    ExitCode.LOAD_FAILED: "the worker could not load or warm its model",
    ExitCode.DEAF: "no message reached the worker, start it again",
    ExitCode.OTHER_DATABASE: "the database has the tables of another version",
    ExitCode.INTERRUPTED: "Ctrl-C",
}


class CliError(Exception):
    """Ends the command with ``code`` after telling the user ``message``."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
