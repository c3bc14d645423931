"""What upkeep asks Redis: how many messages stand in a queue, and whether it is the same server as before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from core.log import get_logger
from tasks.app import PRIORITY_STEPS, make_app, queue_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.settings import Settings

#: How kombu joins a queue's name and a priority other than the highest.
PRIORITY_SEPARATOR = "\x06\x16"

_log = get_logger()


class Broker:
    """Looks at Redis through one connection with short timeouts; the answer is None while Redis is away."""

    def __init__(self, settings: Settings) -> None:
        self._connection: Any = make_app(settings).connection_for_read()

    def look(self, models: Iterable[str]) -> tuple[str, dict[str, int]] | None:
        """The server's run id, and the number of messages in each model's queue."""
        try:
            client = self._connection.default_channel.client
            run_id = str(client.info("server")["run_id"])
            return run_id, {model: _length(client, queue_of(model)) for model in models}
        except (KombuError, RedisError, OSError) as error:
            _log.warning("redis.not_seen", error=str(error))
            self._connection.collapse()
            return None

    def close(self) -> None:
        self._connection.release()


def _length(client: Any, queue: str) -> int:  # noqa: ANN401 - redis through kombu has no types
    names = [queue if step == 0 else f"{queue}{PRIORITY_SEPARATOR}{step}" for step in PRIORITY_STEPS]
    return sum(client.llen(name) for name in names)
