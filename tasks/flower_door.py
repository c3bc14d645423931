"""Who may see Flower: one rule before all its pages, since some of them ask nobody by themselves.

With credentials, everything wants them, also ``/metrics`` and the style sheets; only ``/healthcheck`` answers
a caller of this machine without. Without credentials Flower is bound to loopback, and then a request must
name this machine as its host: a web page of the internet whose name is made to lead to 127.0.0.1 reads
nothing. Its API is closed then, in our words: Flower's own recommend a variable that has no effect here.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flower.app import Flower
from tornado.web import RequestHandler

from core.addresses import is_loopback

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

API = "/api/"
CLOSED = "closed: set RENDERQ_FLOWER_BASIC_AUTH"
REALM = 'Basic realm="renderq flower", charset="UTF-8"'


class GuardedFlower(Flower):  # type: ignore[misc]  # flower publishes no types
    """Flower with a door."""

    def find_handler(self, request: HTTPServerRequest, **more: Any) -> Any:  # noqa: ANN401 - as tornado's
        """Lead to the page, or to a refusal."""
        credentials = self.options.basic_auth
        if credentials:
            if not (holds(request, credentials[0]) or is_own_health_check(request)):
                return self.get_handler_delegate(request, Refusal, {"status": HTTPStatus.UNAUTHORIZED})
        elif not is_loopback(request.host_name.strip("[]")):
            return self.get_handler_delegate(request, Refusal, {"status": HTTPStatus.FORBIDDEN})
        elif request.path.startswith(API):
            return self.get_handler_delegate(
                request, Refusal, {"status": HTTPStatus.FORBIDDEN, "words": CLOSED}
            )
        return super().find_handler(request, **more)


class Refusal(RequestHandler):
    """Answers every method with one status and no page."""

    def initialize(self, status: HTTPStatus, words: str | None = None) -> None:
        self.status = status
        self.words = words or status.phrase

    def check_xsrf_cookie(self) -> None:
        """Refuse by our own rule only."""

    def prepare(self) -> None:
        self.set_status(self.status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if self.status == HTTPStatus.UNAUTHORIZED:
            self.set_header("WWW-Authenticate", REALM)
        self.finish(f"{self.words}\n")


def holds(request: HTTPServerRequest, credentials: str) -> bool:
    """Whether the request carries ``credentials`` (``user:password``)."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    try:
        given = b64decode(encoded.strip(), validate=True)
    except ValueError:
        return False
    return scheme.lower() == "basic" and hmac.compare_digest(given, credentials.encode())


def is_own_health_check(request: HTTPServerRequest) -> bool:
    """Whether a process of this machine asks if Flower answers."""
    return request.path == "/healthcheck" and is_loopback(request.remote_ip or "")
