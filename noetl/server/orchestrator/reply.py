"""Answers to facts: whoever told one hears of it at once, without a turn of the event loop for each.

A report of many runs tells many facts and waits for all of their answers. Futures would each take a turn to say
that they are done, and waiting for several one more; and a future that is waited for is called off together with
who waits, though its fact has been told and will be decided all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any

from noetl.core.engine.commands import Reply


class ReplyFuture:
    """The answer to one fact: a reply, or the problem that stood in its way, once it is there."""

    __slots__ = ("_hear", "_reply", "problem")

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self._reply: Reply | None = None
        self._hear: Callable[[ReplyFuture], None] | None = None

    @property
    def done(self) -> bool:
        """Whether it is there."""
        return self._reply is not None or self.problem is not None

    @property
    def reply(self) -> Reply:
        """The reply; the problem is raised."""
        if self.problem is not None:
            raise self.problem
        if self._reply is None:
            raise asyncio.InvalidStateError("the fact has not been decided yet")
        return self._reply

    def give(self, answer: Reply | Exception) -> None:
        """Here it is."""
        if isinstance(answer, Exception):
            self.problem = answer
        else:
            self._reply = answer
        if self._hear is not None:
            self._hear(self)

    def hear(self, ear: Callable[[ReplyFuture], None]) -> None:
        """Call `ear` when it is there (at once, if it is); a later ear takes the place of the one before."""
        if self.done:
            ear(self)
        else:
            self._hear = ear

    def __await__(self) -> Generator[Any, None, Reply]:
        yield from all_of([self]).__await__()
        return self.reply


async def all_of(answers: Iterable[ReplyFuture]) -> None:
    """Wait until all are there; none is called off with who waits."""
    left = 0
    there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(_: ReplyFuture) -> None:
        nonlocal left
        left -= 1
        if not left and not there.done():
            there.set_result(None)

    for answer in answers:
        if answer._reply is None and answer.problem is None:  # not done; there may be hundreds
            left += 1
            answer._hear = count
    if left:
        await there
