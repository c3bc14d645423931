"""What it means that no answer came: whether to call again, and what the user has to know.

An order carries a key under which the server takes it once. So it is sent again until an answer comes, and
when none does, the user is given the key.
"""

import email.utils
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from cli.exits import CliError, ExitCode
from cli.terminal import printable, say

PATIENCE_S = 60.0
"""How long a command that already has a job, or may have one, waits for the server to come back."""
LEAST_SENDS = 2
"""How often an order is sent at least when answers get lost, however long each was waited for."""
LONGEST_REST_S = 30.0
RETRIED_STATUS = frozenset({429, 502, 503, 504})
NOT_DONE_STATUS = frozenset({429, 503})


class Fate:
    """What is known of an order without an answer: whether it may have been taken all the same."""

    def __init__(self, key: str, patience_s: float) -> None:
        self.key = key
        self.patience_s = patience_s
        self.began = time.monotonic()
        self.sends = 0
        self.lost = False
        """Whether an answer did not come, so that more are waited for."""
        self.unclear = False
        """Whether the order may have been taken."""

    def send_again(self, error: Exception) -> bool | float:
        """Whether to send it once more after this error, or after how many seconds."""
        self.sends += 1
        self.unclear = self.unclear or may_be_done(error)
        if not self.lost and should_retry(error) and not was_not_done(error):
            self.lost = True
            say(f"no answer to the order yet; it is sent again, as the same one (key {printable(self.key)})")
        return self._is_patient(time.monotonic() - self.began) and should_retry(error)

    def _is_patient(self, spent_s: float) -> bool:
        if not self.lost:
            return spent_s < self.patience_s
        return self.sends < LEAST_SENDS or spent_s < PATIENCE_S

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say how to go on at an end without an answer, at Ctrl-C, and when a later sending was refused."""
        words = (
            "the order may have been taken. To send it again without a second one, repeat the command with\n"
            f"  --idempotency-key {shlex.quote(printable(self.key))}"
        )
        try:
            yield
        except KeyboardInterrupt:
            say(words)
            raise
        except CliError as error:
            if self.unclear and error.code == ExitCode.UNAVAILABLE:
                error.message = f"{error.message}; {words}"
            elif self.lost:  # the refusal is of a later sending, and says nothing of the one before
                say(words)
            raise


@contextmanager
def told_where_to_look(command: str) -> Iterator[None]:
    """Where no answer came to what must not happen twice: name the command that shows whether it happened."""
    try:
        yield
    except CliError as error:
        cause = error.__cause__
        if isinstance(cause, httpx2.TransportError) and not never_arrived(cause):
            error.message += (
                f"; it may have been done all the same. `{command}` shows it: look before you repeat it"
            )
        raise


def should_retry(error: Exception) -> bool | float:
    """Whether to try again, or after how many seconds where the server said so."""
    if isinstance(error, httpx2.HTTPStatusError):
        return error.response.status_code in RETRIED_STATUS and (rest_s(error.response) or True)
    return isinstance(error, httpx2.TransportError)


def was_not_done(error: Exception) -> bool | float:
    """Whether the call never arrived, or was sent away for the moment before anything was done."""
    if isinstance(error, httpx2.TransportError):
        return never_arrived(error)
    return isinstance(error, httpx2.HTTPStatusError) and (
        error.response.status_code in NOT_DONE_STATUS and should_retry(error)
    )


def may_be_done(error: Exception) -> bool:
    """Whether the call may have been carried out though this came instead of an answer."""
    if isinstance(error, httpx2.TransportError):
        return not never_arrived(error)
    return isinstance(error, httpx2.HTTPStatusError) and error.response.is_server_error


def never_arrived(error: httpx2.TransportError) -> bool:
    """Whether no server was reached."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def rest_s(answer: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait (Retry-After, as a number or a date), at most `LONGEST_REST_S`."""
    text = answer.headers.get("Retry-After")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text)
    return min(max(seconds, 0.0), LONGEST_REST_S)


def _until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return 0.0
