"""Runs the API in this process until it is told to stop: `renderq api`.

There are no keys yet, so whoever reaches the port may render. The port is therefore opened on this machine
only, unless the operator says that something in front of it decides who may call.
"""

import os
import signal
import socket
from contextlib import suppress

import structlog
import uvicorn

from api.app import create_app
from core.addresses import is_loopback
from core.db import Database
from core.errors import DatabaseUnavailable
from core.settings import Settings

GRACE_S = 10
BACKLOG = 512
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger(__name__)


class CannotServe(Exception):
    """The API cannot be started as asked; the message says why and what to do."""


def serve(
    settings: Settings, host: str = "127.0.0.1", port: int = 8700, *, trust_network: bool = False
) -> None:
    """Answer calls on ``host:port`` until SIGTERM or SIGINT, then finish those in hand, ``GRACE_S`` at most.

    Port 0 takes a free one; the line ``api.listening`` of the log has the address. With ``trust_network`` any
    address may be bound and any host name is answered: a proxy that authenticates must stand in front.

    Raises:
        CannotServe: ``host`` is not this machine's loopback, or the address cannot be bound.
        DatabaseNotUpgraded: The tables are not those of this installation.
    """
    if not (trust_network or is_loopback(host)):
        raise CannotServe(
            f"refusing to listen on {host}: this version has no keys, so everyone who reaches the port could "
            "render. Put an authenticating proxy in front and pass --trust-network, or stay on 127.0.0.1."
        )
    _check_tables(settings)
    app = create_app(settings, any_host=trust_network)
    listener = _bind(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)
    app.state.is_stopping = lambda: server.should_exit
    _end_with_success_on_signals(server)
    log.info("api.listening", url=_url(listener), trust_network=trust_network)
    server.run(sockets=[listener])
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # any other handler is taken away while the interpreter ends
    log.info("api.stopped")


def _check_tables(settings: Settings) -> None:
    """Refuse a database of another version; one that is away may come back, and calls say 503 till then."""
    with suppress(DatabaseUnavailable):
        Database(settings.database_url, keeps=False).check_revision()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _end_with_success_on_signals(server: uvicorn.Server) -> None:
    """Before the server hears signals itself there is no call to finish; afterwards it raises them again."""

    def end(*_: object) -> None:
        if not server.should_exit:
            os._exit(0)

    for number in STOP_SIGNALS:
        signal.signal(number, end)
