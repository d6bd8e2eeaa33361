"""Messages of a topic as deliveries of a trigger."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from noetl.tool import Timeout, TriggerCall
from noetl_kafka.connection import check_cluster, client_settings, message_row
from noetl_kafka.reader import REQUEST_SECONDS, commit

BATCH = 100
POLL_SECONDS = 0.5
FULL_SECONDS = 1.0
CONNECT_SECONDS = 10.0


async def listen(call: TriggerCall) -> None:
    """Record messages until cancelled. Offsets are committed after the deliveries are recorded."""
    fields = dict(call.credential)
    if call.fields.get("servers"):
        fields["servers"] = call.fields["servers"]
    options = client_settings(fields)
    consumer = Consumer({
        **options,
        "group.id": str(call.fields.get("group") or f"noetl-{call.id}"),
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",  # of partitions that are added, and of offsets that the topic has no more
        "isolation.level": "read_committed",
    })  # fmt: skip
    assigned = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        topic = str(call.fields["topic"])
        # An error of the connection is raised here, not logged in the background.
        found = await asyncio.to_thread(check_cluster, consumer, options, topic, Timeout(connect=CONNECT_SECONDS))
        if call.fields.get("start") != "all":
            await asyncio.to_thread(_begin_at_end, consumer, topic, sorted(found.topics[topic].partitions))
        consumer.subscribe([topic], on_assign=lambda *_: loop.call_soon_threadsafe(assigned.set))
        announced = False
        while True:
            if not await call.has_room():
                await asyncio.sleep(FULL_SECONDS)
                continue
            found = await asyncio.to_thread(consumer.consume, BATCH, POLL_SECONDS)
            if assigned.is_set() and not announced:
                announced = True
                await call.connected()
            messages = [message for message in found if _is_message(message)]
            for message in messages:
                await _deliver(call, message)
            if messages:
                await asyncio.to_thread(consumer.commit, asynchronous=False)
    finally:
        await asyncio.shield(asyncio.to_thread(consumer.close))


def _begin_at_end(consumer: Any, topic: str, numbers: list[int]) -> None:
    """Commit the ends of a topic for a group without offsets: what arrives from now on is new, also for later calls."""
    partitions = [TopicPartition(topic, number) for number in numbers]
    if partitions and all(each.offset < 0 for each in consumer.committed(partitions, timeout=REQUEST_SECONDS)):
        ends = [consumer.get_watermark_offsets(each, timeout=REQUEST_SECONDS)[1] for each in partitions]
        commit(consumer, topic, dict(zip(numbers, ends, strict=True)))


def _is_message(message: Any) -> bool:
    problem = message.error()
    if problem is None:
        return True
    if problem.code() in (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART):
        return False  # a topic can be created later
    raise KafkaException(problem)


async def _deliver(call: TriggerCall, message: Any) -> None:
    event = message_row(message, "json")
    data = event.pop("value")
    await call.deliver(f"{event['topic']}:{event['partition']}:{event['offset']}", data, event)
