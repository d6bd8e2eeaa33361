"""Answers to facts."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.engine.commands import Reply
from noetl.errors import StoreUnavailable
from noetl.server.orchestrator.reply import ReplyFuture, wait_all


def test_an_answer_can_be_awaited_before_and_after_it_is_there():
    async def check():
        answer = ReplyFuture()
        asyncio.get_running_loop().call_soon(answer.set_result, Reply(True))
        assert (await answer).accepted
        assert (await answer).accepted

    asyncio.run(check())


def test_a_problem_is_raised_where_the_reply_is_asked_for():
    async def check():
        answer = ReplyFuture()
        answer.set_result(StoreUnavailable("away"))
        await wait_all([answer])
        with pytest.raises(StoreUnavailable):
            await answer

    asyncio.run(check())


def test_an_answer_that_is_not_there_has_no_reply():
    with pytest.raises(asyncio.InvalidStateError):
        _ = ReplyFuture().reply


def test_who_waits_for_several_wakes_with_the_last():
    async def check():
        answers = [ReplyFuture() for _ in range(3)]
        answers[0].set_result(Reply(True))
        waiting = asyncio.create_task(wait_all(answers))
        await asyncio.sleep(0)
        answers[2].set_result(Reply(False))
        await asyncio.sleep(0)
        assert not waiting.done()
        answers[1].set_result(StoreUnavailable("away"))
        await asyncio.sleep(0)
        assert waiting.done()

    asyncio.run(check())


def test_an_answer_outlives_who_waited_for_it():
    async def check():
        answer, heard = ReplyFuture(), []
        waiting = asyncio.create_task(wait_all([answer]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        answer.set_callback(lambda late: heard.append(late.reply.accepted))
        answer.set_result(Reply(True))
        assert heard == [True]

    asyncio.run(check())
