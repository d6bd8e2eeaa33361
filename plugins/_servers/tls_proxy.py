"""TLS in front of a server of tests that has none."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from certificates import Certificates


@contextmanager
def tls_proxy(made: Certificates, server: tuple[str, int]) -> Iterator[int]:
    """The port of the loopback interface on which the server is reached with TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # one of the two has closed its connection
            while block := await reader.read(65536):
                writer.write(block)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*server)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    def quiet(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """A refused handshake is what the tests look for at the client."""

    async def close(proxy: asyncio.Server) -> None:
        proxy.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    loop.set_exception_handler(quiet)
    proxy = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(close(proxy), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
