"""Runs the API in this process until it is told to stop: `renderq api`.

There are no keys yet, so whoever reaches the port may render. The port is therefore opened on this machine
only, unless the operator says that something in front of it decides who may call.
"""

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
    _end_quietly_on_signals()
    log.info("api.listening", url=_url(listener), trust_network=trust_network)
    server.run(sockets=[listener])
    log.info("api.stopped")


def _check_tables(settings: Settings) -> None:
    """Refuse a database of another version; one that is away may come back, and calls say 503 till then."""
    database = Database(settings.database_url)
    try:
        with suppress(DatabaseUnavailable):
            database.check_revision()
    finally:
        database.dispose()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _end_quietly_on_signals() -> None:
    """The server raises the signal again when all is closed; the process then ends with status 0."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: None)
