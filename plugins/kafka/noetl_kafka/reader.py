"""Reads the messages that a topic has when reading starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from noetl.tool import Timeout
from noetl_kafka.connection import check_cluster

POLL_SECONDS = 0.2
REQUEST_SECONDS = 20.0
NO_GROUP = "noetl-without-group"  # librdkafka requires a name; nothing is committed under it


class BadStart(ValueError):
    """`start` is not a position."""


class TopicReader:
    """The messages of a topic from a start to the end that the topic has now.

    `offsets` are the next offsets of all partitions: those that a consumer group commits."""

    def __init__(
        self, settings: Mapping[str, Any], fields: Mapping[str, Any], *, timeout: Timeout | None = None
    ) -> None:
        self._topic = str(fields["topic"])
        self._group = fields.get("group")
        self._start = fields.get("start") or "earliest"
        if not isinstance(self._start, Mapping) and self._start not in ("earliest", "latest"):
            raise BadStart(f"start is earliest, latest or a mapping partition -> offset, not {self._start!r}")
        self._options, self._timeout = settings, timeout or Timeout()
        self._seconds = min(self._timeout.connect or REQUEST_SECONDS, self._timeout.total or REQUEST_SECONDS)
        self._consumer = Consumer({
            **settings,
            "group.id": str(self._group or NO_GROUP),
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        })  # fmt: skip
        self._ends: dict[int, int] = {}
        self.offsets: dict[int, int] = {}

    async def open(self) -> None:
        """Find the first and the last offset of every partition."""
        await asyncio.to_thread(self._open)

    async def batches(
        self, size: int, *, limit: int | None = None, wait: float = 0.0
    ) -> AsyncGenerator[list[Any], None]:
        """The messages in lists; at most `limit`, and `wait` seconds for those that are not there yet."""
        deadline = time.monotonic() + wait
        count = 0
        while limit is None or count < limit:
            wanted = size if limit is None else min(size, limit - count)
            found = await asyncio.to_thread(self._consumer.consume, wanted, POLL_SECONDS)
            messages = [message for message in found if self._accept(message, waits=wait > 0)]
            count += len(messages)
            if messages:
                yield messages
            if self._at_end() and time.monotonic() >= deadline:
                return

    async def commit(self) -> None:
        """Commit the offsets of the group."""
        await asyncio.to_thread(commit, self._consumer, self._topic, self.offsets)

    async def close(self) -> None:
        """Close the consumer."""
        await asyncio.to_thread(self._consumer.close)

    def _open(self) -> None:
        known = check_cluster(self._consumer, self._options, self._topic, self._timeout).topics[self._topic]
        raise_error(known)
        partitions = [TopicPartition(self._topic, number) for number in sorted(known.partitions)]
        committed: dict[int, int] = {}
        if self._group:
            found = self._consumer.committed(partitions, timeout=self._seconds)
            committed = {each.partition: each.offset for each in found if each.offset >= 0}
        for each in partitions:
            low, high = self._consumer.get_watermark_offsets(each, timeout=self._seconds)
            each.offset = max(committed.get(each.partition, self._first(each.partition, low, high)), low)
            if each.offset > high:
                text = (
                    f"topic {self._topic!r}, partition {each.partition}: the offset {each.offset:,} is behind the end"
                )
                text += f" {high:,}; was the topic created again? Use another `group`, or an offset that it has"
                raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, text))
            self.offsets[each.partition] = each.offset
            self._ends[each.partition] = high
        self._consumer.assign(partitions)

    def _first(self, partition: int, low: int, high: int) -> int:
        start = self._start
        if isinstance(start, Mapping):
            given = start.get(partition, start.get(str(partition)))
            try:
                return low if given is None else int(given)
            except (TypeError, ValueError):
                raise BadStart(f"start: the offset of partition {partition} is a number, not {given!r}") from None
        return low if start == "earliest" else high

    def _accept(self, message: Any, *, waits: bool) -> bool:
        problem = message.error()
        if problem is not None:
            if problem.code() == KafkaError._PARTITION_EOF:
                return False
            raise KafkaException(problem)
        if not waits and message.offset() >= self._ends[message.partition()]:
            return False  # it arrived after reading has started
        self.offsets[message.partition()] = message.offset() + 1
        return True

    def _at_end(self) -> bool:
        """Whether all partitions were read; a position passes markers of transactions, which are no messages."""
        for each in self._consumer.position([TopicPartition(self._topic, number) for number in self._ends]):
            position = self.offsets[each.partition] if each.offset == OFFSET_INVALID else each.offset
            if position < self._ends[each.partition]:
                return False
        return True


def raise_error(topic: Any) -> None:
    """Raise the error in the metadata of a topic, with its name."""
    if topic.error is not None:
        raise KafkaException(KafkaError(topic.error.code(), f"topic {topic.topic!r}: {topic.error.str()}"))


def commit(consumer: Any, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets of a topic for the consumer's group."""
    found = consumer.commit(
        offsets=[TopicPartition(topic, number, offset) for number, offset in offsets.items()], asynchronous=False
    )
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
