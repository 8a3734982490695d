"""A TCP proxy that stands for the network between two processes. A test can drop or freeze its connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any


class Proxy:
    """Forwards loopback connections to ``target``, on a thread of its own. After ``drop`` it closes them and new ones at
    once, until ``mend``. After ``freeze`` nothing gets through, and no connection is closed: links are half open."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._dropped = (host, int(port)), False
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._run(self._listen())
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._dropped:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _set(self, dropped: bool) -> None:
        self._dropped = dropped
        for writer in self._writers if dropped else ():
            writer.transport.abort()

    def drop(self) -> None:
        self._run(self._set(True))

    def mend(self) -> None:
        self._run(self._set(False))

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    async def _end(self) -> None:
        self._server.close()
        await self._set(True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
