"""Replies to commands, delivered by callback without one event-loop iteration per reply.

A report of many runs sends many commands and waits for all replies. `asyncio.Future` would need an iteration of
the event loop per reply; and awaiting it would cancel it together with the waiting task, although the command
was sent and will be decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any

from noetl.core.engine.commands import Reply


class ReplyFuture:
    """The future reply to one command, or the exception that prevented it."""

    __slots__ = ("_callback", "_reply", "exception")

    def __init__(self) -> None:
        self.exception: Exception | None = None
        self._reply: Reply | None = None
        self._callback: Callable[[ReplyFuture], None] | None = None

    @property
    def done(self) -> bool:
        """Whether a result is set."""
        return self._reply is not None or self.exception is not None

    @property
    def reply(self) -> Reply:
        """The reply; raises the exception if there is one."""
        if self.exception is not None:
            raise self.exception
        if self._reply is None:
            raise asyncio.InvalidStateError("the command has not been decided yet")
        return self._reply

    def set_result(self, result: Reply | Exception) -> None:
        """Set the reply or the exception, and call the callback."""
        if isinstance(result, Exception):
            self.exception = result
        else:
            self._reply = result
        if self._callback is not None:
            self._callback(self)

    def set_callback(self, callback: Callable[[ReplyFuture], None]) -> None:
        """Call `callback` when the result is set, or now if it is; replaces an earlier callback."""
        if self.done:
            callback(self)
        else:
            self._callback = callback

    def __await__(self) -> Generator[Any, None, Reply]:
        yield from wait_all([self]).__await__()
        return self.reply


async def wait_all(replies: Iterable[ReplyFuture]) -> None:
    """Wait until all results are set; cancelling the wait cancels none of them."""
    remaining = 0
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(_: ReplyFuture) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining and not finished.done():
            finished.set_result(None)

    for reply in replies:
        if reply._reply is None and reply.exception is None:  # `done`, inlined: there may be hundreds
            remaining += 1
            reply._callback = count
    if remaining:
        await finished
