"""What the leader and a follower tell each other: JSON objects, one a line, over a pair of sockets.

The kernel closes a dead process's end, so the other one hears of its death at once.
"""

import base64
import io
import json
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from PIL import Image

from pipeline.inputs import Inputs

Message = dict[str, Any]


class Channel:
    """One end."""

    def __init__(
        self, end: socket.socket, on_end: Callable[[], None], heard: Callable[[Message], None] | None = None
    ) -> None:
        """Begins to listen, in a thread of its own.

        Args:
            end: A connected socket; it is the channel's from now on.
            on_end: Called in that thread when the other process is gone.
            heard: Called in that thread with each message, before it can be received.
        """
        self._end = end
        self._on_end = on_end
        self._heard = heard
        self._received: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def send(self, **message: object) -> None:
        """Sends a message; to one who is gone, it is lost."""
        with suppress(OSError):  # the listening thread tells it
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Returns the next message, None when none came in time or none will come any more."""
        try:
            return self._received.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Lets the other process hear the end."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _listen(self) -> None:
        # A line may have been cut by a death.
        with suppress(OSError, ValueError), self._end.makefile("rb") as lines:
            for line in lines:
                self._take(json.loads(line))
        self._received.put(None)
        self._on_end()

    def _take(self, message: Message) -> None:
        if self._heard is not None:
            self._heard(message)
        self._received.put(message)


def write_inputs(inputs: Inputs | None) -> Message | None:
    """Returns pictures as JSON can carry them, without loss."""
    if inputs is None:
        return None
    mask = None if inputs.mask is None else _write(inputs.mask)
    return {"image": _write(inputs.image), "mask": mask}


def read_inputs(written: Message | None) -> Inputs | None:
    """Returns the pictures that `write_inputs` wrote."""
    if written is None:
        return None
    mask = written["mask"]
    return Inputs(_read(written["image"]), None if mask is None else _read(mask))


def _write(picture: Image.Image) -> str:
    content = io.BytesIO()
    picture.save(content, "PNG", compress_level=1)
    return base64.b64encode(content.getvalue()).decode()


def _read(text: str) -> Image.Image:
    picture = Image.open(io.BytesIO(base64.b64decode(text)))
    picture.load()
    return picture
