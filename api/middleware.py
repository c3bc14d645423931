"""What every call passes on its way in and out: an id, one log line, safe headers, a guard against browsers.

Without keys anybody who reaches the port may render, and a browser on this machine reaches it for any web
page it shows. So a call is refused when it names a host that is not ours (a page that points its own name at
127.0.0.1) or when a browser says that another site sent it.
"""

import re
import time
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem_response
from core.ids import new_id

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
HUNG_UP = 499
"""What proxies write into their logs for a caller who left before the answer; it is never sent."""
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

log = structlog.get_logger(__name__)


class RequestLog:
    """Gives each call its id, answers a fault with a problem and no traceback, and writes one line."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope["renderq_request_id"] = request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._answer(scope, receive, _Answer(send, request_id))

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        begun = time.perf_counter()
        try:
            await self._run(scope, receive, answer)
        finally:
            log.info(
                "http.answered",
                method=scope["method"],
                path=_printable(scope),
                status=answer.status,
                duration_ms=round((time.perf_counter() - begun) * 1000, 1),
            )

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        try:
            await self.app(_head_as_get(scope), receive, answer.send)
        except ClientDisconnect:  # nobody is there to be answered
            answer.status = answer.status or HUNG_UP
        except Exception:
            log.exception("http.failed", method=scope["method"], path=_printable(scope))
            if answer.status is not None:
                raise  # half of it is out: the server must break the connection, not end it nicely
            detail = "the service failed; its log has the reason under this request id"
            await problem_response(Request(scope), "internal_error", detail)(scope, receive, answer.send)


class _Answer:
    """Watches the answer of one call go out and adds the headers that all answers carry."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._request_id
            for name, value in _SAFE_HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


class Guard:
    """Refuses calls for foreign host names and writing calls that a browser sends for another site."""

    def __init__(self, app: ASGIApp, *, public_url: str | None = None, any_host: bool = False) -> None:
        """``public_url`` names one more host of ours; ``any_host`` leaves host names to a proxy in front."""
        self.app = app
        self.public_host = (urlsplit(public_url).netloc if public_url else "").lower()
        self.any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await problem_response(Request(scope), *refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not (self.any_host or self._is_ours(host)):
            hint = "call it by address, as localhost, or set RENDERQ_PUBLIC_URL to its name"
            return "misdirected_request", f"this API does not answer as {host[:100]!r}; {hint}"
        if scope["method"] not in _READING and self._is_foreign(headers, host):
            hint = "behind a proxy with another host name set RENDERQ_PUBLIC_URL"
            return "cross_site", f"a page of another site sent this call; {hint}"
        return None

    def _is_ours(self, host: str) -> bool:
        name = _host_name(host)
        return not name or host == self.public_host or name == _host_name(self.public_host) or _is_local(name)

    def _is_foreign(self, headers: Headers, host: str) -> bool:
        origin = headers.get("origin")
        if origin is not None:
            return _origin_host(origin) not in {host, self.public_host} - {""}
        return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}


def _origin_host(origin: str) -> str | None:
    """The host that an Origin header names; None when it is none."""
    try:
        return urlsplit(origin.lower()).netloc
    except ValueError:
        return None


def _is_local(name: str) -> bool:
    """A name that no foreign web page can own: an address, or localhost."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    """Return ``host`` without its port and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else new_id()


def _printable(scope: Scope) -> str:
    """The path as it came, percent signs and all: a decoded one could forge lines of the log."""
    raw: bytes = scope.get("raw_path") or b""
    return raw.decode("ascii", "backslashreplace")


def _head_as_get(scope: Scope) -> Scope:
    """HEAD is answered as GET; the server below leaves the body out. ``renderq_head`` saves making one."""
    return {**scope, "method": "GET", "renderq_head": True} if scope["method"] == "HEAD" else scope
