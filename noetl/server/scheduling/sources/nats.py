"""Messages of NATS as deliveries.

A message of a stream is acknowledged after its delivery is recorded. One that arrives again (the process stopped in
between, or the sender repeated it) has the same id, and its delivery is known.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.connections.nats import connect
from noetl.errors import TemplateError
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.event_triggers import NatsTrigger

BATCH = 100  # messages per fetch
FETCH_SECONDS = 5.0
ACK_SECONDS = 30.0  # after which an unacknowledged message is delivered again
FULL_SECONDS = 1.0  # pause while too many deliveries are pending
ID_HEADER = "Nats-Msg-Id"


async def listen(trigger: NatsTrigger, deliveries: Deliveries, fields: Mapping[str, Any], connected: Any) -> None:
    """Record messages until cancelled; an exception of the client ends it. `connected` is called once it listens."""
    client = await connect({**fields, **({"url": trigger.url} if trigger.url else {})})
    try:
        listener = _consume if trigger.stream is not None else _subscribe
        await listener(client, trigger, deliveries, connected)
    finally:
        await client.close()


async def forget(trigger: NatsTrigger, fields: Mapping[str, Any]) -> None:
    """Delete the durable consumer of a trigger that was removed."""
    if trigger.stream is None or trigger.consumer is not None:
        return
    client = await connect({**fields, **({"url": trigger.url} if trigger.url else {})})
    try:
        await client.jetstream().delete_consumer(trigger.stream, trigger.durable)
    finally:
        await client.close()


async def _consume(client: Any, trigger: NatsTrigger, deliveries: Deliveries, connected: Any) -> None:
    subscription = await _subscription(client, trigger)
    await connected()
    while True:
        if not await deliveries.has_room(trigger):
            await asyncio.sleep(FULL_SECONDS)
            continue
        try:
            messages = await subscription.fetch(BATCH, timeout=FETCH_SECONDS)
        except TimeoutError:
            continue
        await asyncio.gather(*(_record(trigger, deliveries, message, _id(message)) for message in messages))
        deliveries.triggers.changed.set()
        for message in messages:
            await message.ack()


async def _subscription(client: Any, trigger: NatsTrigger) -> Any:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    stream = client.jetstream()
    if trigger.consumer is not None:
        return await stream.pull_subscribe_bind(trigger.consumer, trigger.stream)
    policy = DeliverPolicy.ALL if trigger.start == "all" else DeliverPolicy.NEW
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=policy, ack_wait=ACK_SECONDS)
    return await stream.pull_subscribe(trigger.subject, trigger.durable, stream=trigger.stream, config=config)


async def _subscribe(client: Any, trigger: NatsTrigger, deliveries: Deliveries, connected: Any) -> None:
    subscription = await client.subscribe(trigger.subject, queue=trigger.durable)
    await client.flush()
    await connected()
    async for message in subscription.messages:
        id = (message.headers or {}).get(ID_HEADER) or f"message:{secrets.token_hex(16)}"
        await _record(trigger, deliveries, message, id)
        deliveries.triggers.changed.set()
    raise ConnectionError("the connection to NATS was closed")


async def _record(trigger: NatsTrigger, deliveries: Deliveries, message: Any, id: str) -> None:
    event = {"id": id, "subject": message.subject, "headers": dict(message.headers or {})}
    if trigger.stream is not None:
        event |= {"stream": trigger.stream, "seq": message.metadata.sequence.stream}
    try:
        payload = trigger.payload_of(_data(message.data), event)
    except TemplateError as problem:
        await deliveries.reject(trigger, id, str(problem), event=event)
        return
    await deliveries.receive(trigger, id, payload, event=event)


def _id(message: Any) -> str:
    """The id that the sender gave to a message, else its place in the stream."""
    given = (message.headers or {}).get(ID_HEADER)
    return str(given) if given else f"{message.metadata.stream}:{message.metadata.sequence.stream}"


def _data(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
