"""Performs one action of kind `kafka`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from noetl.tool import BadAuth, Outcome, SecretUnavailable, ToolCall, error, ok
from noetl_kafka.connection import check_cluster, encoded, explain, message_row, settings
from noetl_kafka.reader import REQUEST_SECONDS, BadStart, TopicReader, commit

BATCH = 1000
DEFAULT_LIMIT = 10_000


class BadInput(ValueError):
    """Invalid fields of a task."""


async def run(call: ToolCall) -> Outcome:
    """Perform the action."""
    action = str(call.input.get("action") or "").lower()
    try:
        perform = {"produce": _produce, "consume": _consume, "commit": _commit}.get(action)
        if perform is None:
            raise BadInput(f"action {action!r} is not one of produce, consume, commit")
        async with asyncio.timeout(call.timeout.total):
            return await perform(call, await settings(call.input["auth"], call.host, call.input.get("config")))
    except (BadInput, BadAuth, BadStart) as wrong:
        return error("schema", str(wrong))
    except SecretUnavailable as missing:
        return error("auth", str(missing))
    except TimeoutError:
        return error("timeout", f"kafka {action}: not complete after {call.timeout.total:g} s (spec.timeout)")
    except Exception as failure:
        info = explain(failure)
        if info is None:
            raise
        return Outcome(status="error", error=info, helpers={"kafka": {"count": None}})


async def _produce(call: ToolCall, options: dict[str, Any]) -> Outcome:
    topic, messages = str(call.input.get("topic") or ""), _messages(call.input)
    if not topic:
        raise BadInput("produce requires `topic`")
    seconds = call.timeout.total or call.timeout.connect or REQUEST_SECONDS
    producer = Producer({**options, "enable.idempotence": True, "message.timeout.ms": int(seconds * 1000)})
    await asyncio.to_thread(check_cluster, producer, options, topic, call.timeout)
    placed = await asyncio.to_thread(send, producer, topic, messages)
    return ok({"count": len(placed), "messages": placed}, kafka={"count": len(placed)})


def send(producer: Any, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Produce messages and wait until all of them are stored; returns their partitions and offsets."""
    placed: list[dict[str, int]] = [{} for _ in messages]
    failures: list[Any] = []

    def delivered(number: int) -> Any:
        def report(problem: Any, message: Any) -> None:
            if problem is not None:
                failures.append(problem)
            else:
                placed[number] = {"partition": message.partition(), "offset": message.offset()}

        return report

    for number, message in enumerate(messages):
        while True:
            try:
                producer.produce(topic, **message, on_delivery=delivered(number))
                break
            except BufferError:  # the queue is full
                producer.poll(0.1)
        if failures:
            break
    producer.flush()
    if failures:
        raise KafkaException(failures[0])
    return placed


def _messages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = given.get("messages")
    if items is None:
        if given.get("value") is None and given.get("key") is None:
            raise BadInput("produce requires `messages` or `value`")
        items = [{name: given.get(name) for name in ("value", "key", "headers")}]
    if not isinstance(items, list | tuple):
        raise BadInput(f"messages must be a list, not {type(items).__name__}")
    return [_message(item) for item in items]


def _message(item: Any) -> dict[str, Any]:
    if not (isinstance(item, Mapping) and "value" in item and item.keys() <= {"value", "key", "headers", "partition"}):
        return {"value": encoded(item)}
    headers = {str(name): encoded(value) for name, value in (item.get("headers") or {}).items()}
    message: dict[str, Any] = {"value": encoded(item["value"]), "key": encoded(item.get("key")), "headers": headers}
    if item.get("partition") is not None:
        if not str(item["partition"]).isdecimal():
            raise BadInput(f"`partition` of a message must be a number, not {item['partition']!r}")
        message["partition"] = int(item["partition"])
    return message


async def _consume(call: ToolCall, options: dict[str, Any]) -> Outcome:
    given = call.input
    if not given.get("topic"):
        raise BadInput("consume requires `topic`")
    if given.get("commit") and not given.get("group"):
        raise BadInput("commit requires `group`")
    format, limit = str(given.get("format") or "json"), int(given.get("limit") or DEFAULT_LIMIT)
    reader = TopicReader(options, given, timeout=call.timeout)
    try:
        await reader.open()
        rows = []
        async with aclosing(reader.batches(BATCH, limit=limit, wait=float(given.get("wait") or 0))) as batches:
            async for batch in batches:
                rows += [message_row(message, format) for message in batch]
                call.host.progress(rows=len(rows))
        if given.get("commit"):
            await reader.commit()
    finally:
        await reader.close()
    offsets = {str(number): offset for number, offset in reader.offsets.items()}
    data = {"messages": rows, "count": len(rows), "offsets": {str(given["topic"]): offsets}}
    return ok(data, kafka={"count": len(rows)})


async def _commit(call: ToolCall, options: dict[str, Any]) -> Outcome:
    group, offsets = call.input.get("group"), call.input.get("offsets")
    if not group or not isinstance(offsets, Mapping):
        raise BadInput("commit requires `group`, and `offsets` as {topic: {partition: offset}}")

    def run() -> int:
        consumer = Consumer({**options, "group.id": str(group), "enable.auto.commit": False})
        try:
            for topic, partitions in offsets.items():
                commit(consumer, str(topic), {int(number): int(offset) for number, offset in partitions.items()})
        finally:
            consumer.close()
        return sum(map(len, offsets.values()))

    try:
        return ok({"committed": await asyncio.to_thread(run)}, kafka={"count": None})
    except (TypeError, AttributeError, ValueError) as wrong:
        raise BadInput(f"offsets must be {{topic: {{partition: offset}}}}: {wrong}") from None
