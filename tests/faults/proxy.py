"""TCP proxies that fail when told: connections are cut, stand still, or are refused.

One stands between each process and each of its servers, so that a process can be cut off alone. All of them
run in one event loop in a thread of their own; the methods may be called from any thread.
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
CHUNK = 65536


Target = tuple[str, int] | Path
"""Where a server listens: host and port, or a unix socket."""


class Proxy:
    """One port in front of one server."""

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self.port = 0
        self._target = target
        self._loop = loop
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """End every connection in the middle of whatever it carries; new ones are served."""
        self._run(self._cut())

    def stall(self) -> None:
        """Keep connections open and accept new ones, but carry nothing."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def refuse(self) -> None:
        """End every connection and accept no new one."""
        self._run(self._refuse())

    def mend(self) -> None:
        """Serve again; what a stall has kept back is delivered."""
        self._run(self._mend())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        for end in list(self._ends):
            end.transport.abort()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _mend(self) -> None:
        self._flows.set()
        if self._server is None:
            await self.listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            await self._flows.wait()
            far_reader, far_writer = await self._reach()
            self._ends.add(far_writer)
            try:
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                far_writer.transport.abort()
                self._ends.discard(far_writer)
        except OSError:
            pass  # the server is away: its client sees a connection that ends at once
        finally:
            writer.transport.abort()
            self._ends.discard(writer)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one side is done, so the other one's pump ends too


class Proxies:
    """The event loop, and the proxies in it; leave the context to close them all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._all: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._all:
            proxy.refuse()
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, target: Target) -> Proxy:
        """Begin to listen in front of this server; ``port`` of the result is where."""
        proxy = Proxy(target, self._loop)
        asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result(10)
        self._all.append(proxy)
        return proxy


async def _end_tasks() -> None:
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # what was closed is closed in the loop's next turn
