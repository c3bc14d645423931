"""Asking a server of a deployment whether it can do its work, and the error that says it cannot."""

from typing import TYPE_CHECKING, Any

from cli.exits import CliError, ExitCode

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 5.0


class Unhealthy(CliError):
    """The process cannot do its work now; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.FAILED)


def ask_readiness(url: str) -> list[dict[str, Any]]:
    """The checks of ``/readyz``, which come with 200 and with 503."""
    answer = ask(f"{url.rstrip('/')}/readyz")
    try:
        return list(answer.json()["checks"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unhealthy(f"{url} is not renderq's API: it answers {answer.status_code}") from error


def ask(url: str) -> "httpx2.Response":
    """The answer of a server, whatever it is; raise `Unhealthy` where none comes."""
    import httpx2

    try:
        return httpx2.get(url, timeout=TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unhealthy(f"{url} does not answer: {error}") from error
