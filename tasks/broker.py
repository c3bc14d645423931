"""What is asked of Redis: how many messages stand in a queue, and whether it is the same server as before."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from core.log import get_logger
from tasks.app import PRIORITY_STEPS, eviction_policy, make_app, queue_of, tell_eviction
from tasks.probe import try_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from core.settings import Settings

#: How kombu joins a queue's name and a priority other than the highest.
PRIORITY_SEPARATOR = "\x06\x16"

_log = get_logger()


class Broker:
    """Looks at Redis, within short timeouts; the answer is None while Redis is away. For one thread.

    What kombu makes of the URL is kept, since it is a class for each channel, hundreds of bytes of which stay
    with the process; the connection is closed after each look, so that no child inherits it.
    """

    def __init__(self, settings: Settings) -> None:
        self._connection = make_app(settings).connection_for_read()
        self._run_id = ""

    def look(self, models: Iterable[str]) -> tuple[str, dict[str, int]] | None:
        """The server's run id, and the number of messages in each model's queue.

        Of a server that was not seen before it is told if it drops messages.
        """
        try:
            with self._connected() as client:
                run_id = str(client.info("server")["run_id"])
                if run_id != self._run_id:
                    tell_eviction(eviction_policy(client))
                    self._run_id = run_id
                return run_id, {model: _length(client, queue_of(model)) for model in models}
        except (KombuError, RedisError, OSError) as error:
            _log.warning("redis.not_seen", error=str(error))
            return None

    def waiting(self, model: str) -> int | None:
        """The number of messages in one model's queue; silent, for a look that is taken all the time.

        None also while Redis takes no writes: a worker cannot take a message from it then.
        """
        try:
            with self._connected() as client:
                try_write(client)
                return _length(client, queue_of(model))
        except (KombuError, RedisError, OSError):
            return None

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        client: Any = self._connection.default_channel.client  # type: ignore[attr-defined]
        try:
            yield client
        finally:
            client.connection_pool.disconnect()


def _length(client: Any, queue: str) -> int:  # noqa: ANN401 - redis through kombu has no types
    names = [queue if step == 0 else f"{queue}{PRIORITY_SEPARATOR}{step}" for step in PRIORITY_STEPS]
    return sum(client.llen(name) for name in names)
