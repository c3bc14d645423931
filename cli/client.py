"""Calls the HTTP API: retries while the server is away for a moment, and says in words what it refused.

A call is repeated where that is harmless: reading changes nothing, cancelling twice is cancelling, and an
order carries an idempotency key. What would happen twice is asked once.
"""

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import stamina

from cli.exits import CliError, ExitCode
from cli.lost import (
    PATIENCE_S,
    RETRIED_STATUS,
    Fate,
    never_arrived,
    rest_s,
    should_retry,
    told_where_to_look,
    was_not_done,
)
from cli.terminal import printable

DEFAULT_URL = "http://127.0.0.1:8700"
TRY_S = 3.0
"""How long a command tries to reach the server."""
SEND_S = 180.0
POLL_S = 0.5
LISTS = {
    "/v1/jobs/": "renderq list",
    "/v1/batches/": "renderq batch list",
    "/v1/schedules/": "renderq schedule list",
}
"""Where an id that is not there might have come from, and the command that shows the ids."""
TERMINAL = frozenset({"completed", "failed", "canceled", "expired"})
PATIENT_STATUS = frozenset({408, *RETRIED_STATUS})

Job = dict[str, Any]
T = TypeVar("T")


class Client:
    """One server. Raises `CliError` with exit code 2 for a refused call and 3 for a server that is away."""

    def __init__(self, url: str, *, patience_s: float = TRY_S) -> None:
        stamina.instrumentation.set_on_retry_hooks([])  # the terminal belongs to the user
        self.url = check_url(url).rstrip("/")
        self.patience_s = patience_s
        try:
            # Reading the certificates takes a tenth of a second, and without TLS they are not needed.
            with_tls = urlsplit(self.url).scheme == "https"
            self._http = httpx2.Client(base_url=self.url, timeout=30.0, verify=with_tls)
        except (httpx2.InvalidURL, ValueError) as error:
            raise CliError(f"RENDERQ_URL {self.url!r} cannot be called: {error}") from error
        weakref.finalize(self, self._http.close)  # connections are kept between calls, and no longer

    def submit(self, request: Mapping[str, object], key: str) -> Job:
        """Send an order so that it becomes one job."""
        return self.order("/v1/jobs", key, json=dict(request))

    def order(self, path: str, key: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx2's own
        """Send an order under its key, by which the server takes it once, until an answer comes.

        Raises:
            CliError: It was refused, or no answer came; then it says whether it may have been taken all the
                same, and how it is sent again safely.
        """
        fate = Fate(key, self.patience_s)
        headers = {"Idempotency-Key": key}
        with fate.told(), self._in_words():
            return self._read(
                self._retried(
                    lambda: self._http.request("POST", path, headers=headers, **arguments),
                    fate.send_again,
                    limited=False,
                )
            )

    def get(self, job_id: str) -> Job:
        return self.ask("GET", job_path(job_id))

    def list_jobs(self, **query: object) -> dict[str, Any]:
        return self.ask("GET", "/v1/jobs", params={k: v for k, v in query.items() if v is not None})

    def requeue(self, job_id: str, **limits: float | None) -> Job:
        """The job that repeats this one; there is one at most, however often it is asked for.

        ``limits``: its own seconds of waiting and running, instead of the old one's.
        """
        params = {name: seconds for name, seconds in limits.items() if seconds is not None}
        return self.ask("POST", f"{job_path(job_id)}/requeue", params=params)

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        return list(self.ask("GET", f"{job_path(job_id)}/attempts")["data"])

    def cancel(self, job_id: str) -> Job:
        return self.ask("POST", f"{job_path(job_id)}/cancel")

    def models(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "/v1/models")["data"])

    def workers(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "/v1/workers")["data"])

    def send_picture(self, data: bytes) -> str:
        """Keep a picture on the server and return its id; sent again it is the same one."""
        form = {"file": ("picture", data, "application/octet-stream")}
        return str(self.ask("POST", "/v1/files", files=form, timeout=SEND_S)["id"])

    def content(self, job_id: str, index: int) -> bytes:
        """The bytes of one picture."""
        path = f"{job_path(job_id)}/content"
        return self.call("GET", path, params={"index": index}).content

    def follow(self, job_id: str, rest: Callable[[float], None] = time.sleep) -> Iterator[Job]:
        """The job as it is now and after each rest, up to and including its terminal state."""
        return self.follow_path(job_path(job_id), rest)

    def follow_path(self, path: str, rest: Callable[[float], None] = time.sleep) -> Iterator[dict[str, Any]]:
        """The same for whatever has a ``status``."""
        while True:
            answer = patiently(lambda: self.call("GET", path), rest)
            found = self._read(answer)
            yield found
            if found["status"] in TERMINAL:
                return
            rest(rest_s(answer) or POLL_S)

    def ask(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx2's own
        """One call whose answer is a JSON object."""
        return self._read(self.call(method, path, **arguments))

    def ask_once(self, method: str, path: str, *, look: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx2's own
        """The same for what must not happen twice: repeated only where it surely has not happened.

        ``look`` is the command that shows whether it happened when no answer tells.
        """
        with told_where_to_look(look), self._in_words():
            return self._read(
                self._retried(lambda: self._http.request(method, path, **arguments), was_not_done)
            )

    def _read(self, answer: httpx2.Response) -> dict[str, Any]:
        try:
            return dict(answer.json())
        except (ValueError, TypeError) as error:
            raise CliError(f"{self.url} does not answer like renderq", ExitCode.UNAVAILABLE) from error

    def call(self, method: str, path: str, **arguments: Any) -> httpx2.Response:  # noqa: ANN401 - httpx2's own
        """One call with its retries; raise `CliError` unless it went well."""
        with self._in_words():
            return self._retried(lambda: self._http.request(method, path, **arguments))

    @contextmanager
    def stream(self, path: str, query: Mapping[str, Any]) -> Iterator[httpx2.Response]:
        """An answer whose body has not been read yet; a line that breaks meanwhile is a `CliError`."""
        with self._in_words():
            params = {name: value for name, value in query.items() if value is not None}
            answer = self._retried(
                lambda: self._http.send(self._http.build_request("GET", path, params=params), stream=True)
            )
        try:
            yield answer
        except httpx2.TransportError as error:
            raise CliError(f"the answer of {self.url} broke off: {error}", ExitCode.UNAVAILABLE) from error
        finally:
            answer.close()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPStatusError as error:
            raise refusal(error.response) from error
        except httpx2.TransportError as error:
            advice = ". Start a server with `renderq up`, or set RENDERQ_URL" if never_arrived(error) else ""
            raise CliError(f"no answer from {self.url} ({error}){advice}", ExitCode.UNAVAILABLE) from error
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise CliError(f"cannot call {self.url}: {error}") from error

    def _retried(
        self,
        send: Callable[[], httpx2.Response],
        on: Callable[[Exception], bool | float] | None = None,
        *,
        limited: bool = True,
    ) -> httpx2.Response:
        """Send until it went well; unless ``limited``, it is ``on`` alone that says when to give up."""
        timeout = self.patience_s if limited else None
        for attempt in stamina.retry_context(
            on=on or should_retry, attempts=None, timeout=timeout, wait_initial=0.1, wait_max=2.0
        ):
            with attempt:
                answer = send()
                if answer.is_error:
                    answer.read()  # the reason stands in the body, also of a stream
                answer.raise_for_status()
        return answer


class Refusal(CliError):
    """The server's no; ``problem`` is its document, empty where it sent none."""

    def __init__(self, message: str, code: ExitCode, problem: dict[str, Any]) -> None:
        super().__init__(message, code)
        self.problem = problem


def job_path(job_id: str) -> str:
    """The address of a job, from which no id can lead away; an empty one is refused."""
    if not job_id.strip():
        raise CliError("the id is empty; `renderq list` shows the ids")
    return f"/v1/jobs/{quote(job_id, safe='')}"


def patiently(call: Callable[[], T], rest: Callable[[float], None]) -> T:
    """Call again for `PATIENCE_S` while the server is away; ``rest`` may look after other things."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except CliError as error:
            cause = error.__cause__
            away = isinstance(cause, Exception) and should_retry(cause)
            if not away or time.monotonic() > deadline:
                raise
        rest(POLL_S)


def check_url(url: str) -> str:
    """The URL of a server, or `CliError`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its end, a port above 65535
        usable = False
    if not usable:
        raise CliError(f"RENDERQ_URL must look like {DEFAULT_URL}, not {url!r}")
    return url


def connect(*, patience_s: float = TRY_S) -> Client:
    """The server named by RENDERQ_URL, else the local one."""
    return Client(os.environ.get("RENDERQ_URL") or DEFAULT_URL, patience_s=patience_s)


def refusal(answer: httpx2.Response) -> Refusal:
    """A problem document in words: each wrong field on its own line."""
    problem: dict[str, Any] = {}
    try:
        problem = dict(answer.json())
        messages = [item["message"] for item in problem.get("errors", [])] or [_detail(problem)]
    except (ValueError, KeyError, TypeError, AttributeError):
        messages = [f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}"]
    if problem.get("code") == "not_found":
        messages[-1] = _with_source(messages[-1], answer.request.url.path)
    away = answer.status_code >= 500 or answer.status_code in PATIENT_STATUS
    code = ExitCode.UNAVAILABLE if away else ExitCode.USAGE
    return Refusal("\n".join(map(printable, messages)), code, problem)


def _with_source(message: str, path: str) -> str:
    """The message that an id is none, and which command shows those that there are."""
    command = next((command for start, command in LISTS.items() if path.startswith(start)), None)
    return f"{message.rstrip('.')}; `{command}` shows the ids" if command else message


def _detail(problem: Mapping[str, Any]) -> str:
    """The sentence; with the request's id where it is a fault of the server, whose log has it."""
    is_fault = problem.get("code") == "internal_error" and problem.get("request_id")
    return f"{problem['detail']}: {problem['request_id']}" if is_fault else str(problem["detail"])
