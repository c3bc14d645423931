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
    if _is(error, "core.errors", "AppError"):
        return CliError(str(error), _code_of(error))
    if _is(error, "sqlalchemy.exc", "DatabaseError"):
        return CliError(_database_words(error), ExitCode.UNAVAILABLE)
    if isinstance(error, UnicodeEncodeError):
        return CliError(f"{error.object!r} cannot be sent: it is not {error.encoding} text")
    return None


def _code_of(error: Exception) -> ExitCode:
    if _is(error, "core.errors", "DatabaseNotUpgraded"):
        return ExitCode.OTHER_DATABASE
    return ExitCode.USAGE if _is(error, "core.errors", "InvalidSettings") else ExitCode.UNAVAILABLE


def _database_words(error: Exception) -> str:
    """The driver's words; a file that is no database is named, since they do not say which."""
    reason = str(getattr(error, "orig", error)).strip()
    if "not a database" not in reason:
        away = _is(error, "sqlalchemy.exc", "OperationalError")
        return f"the database {'does not answer' if away else 'fails'}: {reason}"
    from sqlalchemy import make_url

    from core.settings import get_settings

    return f"{make_url(get_settings().database_url).database} is not a SQLite database"


def describe_unexpected(error: Exception) -> CliError:
    """The last resort: the kind of the error and its message, without a traceback."""
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    return CliError(f"unexpected error: {words}\nRENDERQ_DEBUG=1 shows where", ExitCode.FAILED)


def _is(error: Exception, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


def _lines(errors: "Iterable[object]") -> str:
    return "\n".join(str(getattr(error, "message", error)) for error in errors)
