"""Tails of a log: appends of this process are delivered without a read, and every event arrives exactly once."""

import asyncio

from noetl.core.model.events import PlaybookProcessed, TaskDone
from noetl.core.model.outcome import ok
from noetl.storage.events.log_tail import RECENT_BYTES, RECENT_LOGS, LogTails, RecentLogs, follow
from noetl.storage.ports.events import LogPage
from tests.conformance.event_store import make_append

BODY = TaskDone(step="s", step_run_id="1:s:1", task="t", kind="noop", outcome=ok())


class Store:
    """A log in a list that counts how often it is read."""

    def __init__(self):
        self.log = []
        self.reads = 0
        self.tails = LogTails(self._lengths)
        with self.tails.subscribe("0", 0):  # logs are kept after the first tail
            pass

    async def _lengths(self, followed):
        return [(name, len(self.log)) for name in followed]

    async def summary(self, execution_id):
        return object()

    async def read(self, execution_id, after, limit):
        self.reads += 1
        await asyncio.sleep(0)
        return LogPage(self.log[after : after + limit], more=len(self.log) > after + limit)

    def write(self, *bodies, delivered=True):
        append = make_append("1", len(self.log), *bodies)
        self.log += append.events
        if delivered:
            self.tails.deliver(append, 100)


async def _seen(store, into, begun):
    async for recorded in follow(store, store.tails, "1", 0):
        into.append(recorded.seq)
        begun.set()


def test_appends_of_this_process_are_delivered_without_a_read():
    async def scenario():
        store, seen, begun = Store(), [], asyncio.Event()
        store.write(BODY)
        following = asyncio.ensure_future(_seen(store, seen, begun))
        await begun.wait()
        reads = store.reads
        for _ in range(20):
            store.write(BODY, BODY)
            await asyncio.sleep(0)
        store.write(PlaybookProcessed(outcome="success"))
        await asyncio.wait_for(following, 5)
        assert seen == list(range(1, 43))
        assert store.reads <= reads + 1

    asyncio.run(scenario())


def test_appends_of_other_processes_are_read():
    async def scenario():
        store, seen, begun = Store(), [], asyncio.Event()
        store.write(BODY)
        following = asyncio.ensure_future(_seen(store, seen, begun))
        await begun.wait()
        store.write(BODY, delivered=False)  # another process wrote
        store.write(BODY)
        store.write(BODY, delivered=False)
        store.tails.notify("1", len(store.log))
        store.write(PlaybookProcessed(outcome="success"))
        await asyncio.wait_for(following, 5)
        assert seen == [1, 2, 3, 4, 5]

    asyncio.run(scenario())


def test_a_tail_of_a_log_that_this_process_began_needs_no_read():
    async def scenario():
        store = Store()
        store.write(BODY, BODY)
        store.write(PlaybookProcessed(outcome="success"))
        assert [recorded.seq async for recorded in follow(store, store.tails, "1", 0)] == [1, 2, 3]
        assert [recorded.seq async for recorded in follow(store, store.tails, "1", 1)] == [2, 3]
        assert store.reads == 0

    asyncio.run(scenario())


def test_a_log_to_which_another_process_has_appended_is_read():
    async def scenario():
        store = Store()
        store.write(BODY)
        store.write(BODY, delivered=False)
        store.tails.notify("1", 2)
        store.write(PlaybookProcessed(outcome="success"), delivered=False)
        assert [recorded.seq async for recorded in follow(store, store.tails, "1", 0)] == [1, 2, 3]

        gap = Store()
        gap.write(BODY)
        gap.write(BODY, delivered=False)
        gap.write(PlaybookProcessed(outcome="success"))  # follows an append of another process
        assert [recorded.seq async for recorded in follow(gap, gap.tails, "1", 0)] == [1, 2, 3]

    asyncio.run(scenario())


def test_only_recent_logs_of_bounded_size_are_kept():
    async def scenario():
        recent = RecentLogs()
        for number in range(RECENT_LOGS + 10):
            recent.add(make_append(str(number), 0, BODY), 1)
        assert recent.get("9") == ()
        assert len(recent.get("10")) == 1
        recent.add(make_append("large", 0, BODY), RECENT_BYTES)
        assert recent.get("10") == ()
        assert len(recent.get("large")) == 1
        recent.add(make_append("large", 1, BODY), 1)
        assert recent.get("large") == ()
        recent.add(make_append("next", 0, BODY), RECENT_BYTES)  # the sizes of forgotten logs are free again
        assert len(recent.get("next")) == 1

    asyncio.run(scenario())


def test_no_log_is_kept_before_the_first_tail():
    async def scenario():
        tails = LogTails(Store()._lengths)
        tails.deliver(make_append("1", 0, BODY), 1)
        assert tails.recent.get("1") == ()

    asyncio.run(scenario())


def test_a_deleted_log_is_not_kept():
    async def scenario():
        store = Store()
        store.write(BODY, PlaybookProcessed(outcome="success"))
        store.tails.forget(["1"])
        assert [recorded.seq async for recorded in follow(store, store.tails, "1", 0)] == [1, 2]
        assert store.reads == 1

    asyncio.run(scenario())
