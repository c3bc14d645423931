"""Turns what went wrong into one message and an exit code; nowhere else do errors become words."""

import sys
from typing import TYPE_CHECKING

from cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable


def translate(error: Exception) -> CliError | None:
    """The error as the user should see it; None for one that nobody expected.

    Packages are asked for only if they are loaded: an error of a package that was never imported cannot be.
    """
    if isinstance(error, CliError):
        return error
    if _is(error, "policy.errors", "PolicyError"):
        return CliError(_lines(getattr(error, "errors", None) or [error]))
    if _is(error, "core.errors", "InvalidSettings"):
        return CliError(str(error))
    if _is(error, "core.errors", "AppError"):
        return CliError(str(error), ExitCode.UNAVAILABLE)
    if _is(error, "sqlalchemy.exc", "OperationalError"):
        reason = str(getattr(error, "orig", error)).strip()
        return CliError(f"the database does not answer: {reason}", ExitCode.UNAVAILABLE)
    return None


def describe_unexpected(error: Exception) -> CliError:
    """The last resort: the kind of the error and its message, without a traceback."""
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    return CliError(f"unexpected error: {words}\nRENDERQ_DEBUG=1 shows where", ExitCode.FAILED)


def _is(error: Exception, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


def _lines(errors: "Iterable[object]") -> str:
    return "\n".join(str(getattr(error, "message", error)) for error in errors)
