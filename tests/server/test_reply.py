"""Replies to commands."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.engine.commands import Reply
from noetl.errors import StoreUnavailable
from noetl.server.orchestrator.reply import ReplyFuture, wait_all


def test_a_reply_can_be_awaited_before_and_after_it_is_set():
    async def check():
        reply = ReplyFuture()
        asyncio.get_running_loop().call_soon(reply.set_result, Reply(True))
        assert (await reply).accepted
        assert (await reply).accepted

    asyncio.run(check())


def test_an_exception_is_raised_when_the_reply_is_read():
    async def check():
        reply = ReplyFuture()
        reply.set_result(StoreUnavailable("unreachable"))
        await wait_all([reply])
        with pytest.raises(StoreUnavailable):
            await reply

    asyncio.run(check())


def test_reading_a_reply_before_it_is_set_is_an_error():
    with pytest.raises(asyncio.InvalidStateError):
        _ = ReplyFuture().reply


def test_waiting_for_several_replies_ends_with_the_last_one():
    async def check():
        replies = [ReplyFuture() for _ in range(3)]
        replies[0].set_result(Reply(True))
        waiting = asyncio.create_task(wait_all(replies))
        await asyncio.sleep(0)
        replies[2].set_result(Reply(False))
        await asyncio.sleep(0)
        assert not waiting.done()
        replies[1].set_result(StoreUnavailable("unreachable"))
        await asyncio.sleep(0)
        assert waiting.done()

    asyncio.run(check())


def test_cancelling_a_wait_does_not_cancel_the_reply():
    async def check():
        reply, received = ReplyFuture(), []
        waiting = asyncio.create_task(wait_all([reply]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        reply.set_callback(lambda late: received.append(late.reply.accepted))
        reply.set_result(Reply(True))
        assert received == [True]

    asyncio.run(check())


@pytest.mark.parametrize("result", [Reply(False), StoreUnavailable("unreachable")])
def test_a_callback_is_called_once_the_result_is_set_or_at_once(result):
    reply, called = ReplyFuture(), []
    assert reply.done is False
    reply.set_callback(lambda _: called.append("replaced"))
    reply.set_callback(called.append)
    assert called == []
    reply.set_result(result)
    assert (called, reply.done) == ([reply], True)
    reply.set_callback(called.append)
    assert called == [reply, reply]
