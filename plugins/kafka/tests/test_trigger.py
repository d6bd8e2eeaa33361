"""The trigger `kafka` against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio

import noetl_kafka
import pytest
from confluent_kafka import Consumer
from noetl_kafka.connection import client_settings
from noetl_kafka.trigger import _begin_at_end

from noetl.tool import TriggerCall


class Listener:
    """Runs the trigger and records what it delivers."""

    def __init__(self, cluster, topic: str, **fields) -> None:
        self.delivered: list = []
        self.connected = asyncio.Event()
        self.room = True
        given = {"topic": topic, "group": None, "start": "all", "servers": None, **fields}
        call = TriggerCall("kafka", "t", "id1", given, cluster.auth, self._deliver, self._connected, self._has_room)
        self.task = asyncio.ensure_future(noetl_kafka.TRIGGER.listen(call))

    async def _deliver(self, id, data, event) -> None:
        self.delivered.append((id, data, event))

    async def _connected(self) -> None:
        self.connected.set()

    async def _has_room(self) -> bool:
        return self.room

    async def received(self, count: int) -> None:
        while len(self.delivered) < count:
            assert not self.task.done(), self.task
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_messages_are_delivered_and_committed(cluster):
    async def scenario() -> None:
        topic = cluster.new_topic()
        cluster.produce(topic, '{"id": 1}')
        listener = Listener(cluster, topic)
        await listener.received(1)
        await asyncio.to_thread(cluster.produce, topic, "text")
        await listener.received(2)
        assert listener.connected.is_set()
        await listener.stop()
        assert [(id, data) for id, data, _ in listener.delivered] == [
            (f"{topic}:0:0", {"id": 1}),
            (f"{topic}:0:1", "text"),
        ]
        assert listener.delivered[0][2]["offset"] == 0
        assert cluster.committed(topic, "noetl-id1")[0] in (
            1,
            2,
        )  # the second may be delivered again: it has the same id
        again = Listener(cluster, topic)
        await asyncio.to_thread(cluster.produce, topic, "third")
        await again.received(1)
        await again.stop()
        assert again.delivered[-1][1] == "third" or again.delivered[0][0] == f"{topic}:0:1"

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_delivery_that_fails_is_not_committed(cluster):
    async def scenario() -> None:
        topic = cluster.new_topic()
        cluster.produce(topic, "a")
        listener = Listener(cluster, topic, group="g-fails")

        async def fail(*_) -> None:
            raise OSError("the store is unreachable")

        listener._deliver = fail
        listener.task.cancel()
        await asyncio.wait([listener.task])
        given = {"topic": topic, "group": "g-fails", "start": "all", "servers": None}
        call = TriggerCall("kafka", "t", "x", given, cluster.auth, fail, listener._connected, listener._has_room)
        with pytest.raises(OSError, match="unreachable"):
            await noetl_kafka.TRIGGER.listen(call)
        assert cluster.committed(topic, "g-fails") == {}

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_trigger_for_new_messages_commits_where_it_begins(cluster):
    """So messages that arrive while nothing listens are delivered later, also if there was none before."""

    async def scenario() -> None:
        topic = cluster.new_topic()
        cluster.produce(topic, "old")
        listener = Listener(cluster, topic, group="g-new", start="new")
        await listener.connected.wait()
        await listener.stop()
        assert (listener.delivered, cluster.committed(topic, "g-new")) == ([], {0: 1, 1: 0, 2: 0, 3: 0})
        cluster.produce(topic, "while nothing listens", partition=3)
        consumer = Consumer({**client_settings(cluster.auth), "group.id": "g-new"})
        _begin_at_end(consumer, topic, [0, 1, 2, 3])  # what the next call does first
        consumer.close()
        assert cluster.committed(topic, "g-new") == {0: 1, 1: 0, 2: 0, 3: 0}

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_cluster_that_cannot_be_reached_is_an_exception():
    async def scenario() -> None:
        async def none(*_):
            return True

        given = {"topic": "t", "group": None, "start": "new", "servers": "127.0.0.1:1"}
        with pytest.raises(Exception, match=r"(?i)broker|timed out|transport"):
            await noetl_kafka.TRIGGER.listen(TriggerCall("kafka", "t", "x", given, {}, none, none, none))

    asyncio.run(asyncio.wait_for(scenario(), 100))
