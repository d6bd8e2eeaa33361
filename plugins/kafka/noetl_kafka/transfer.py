"""Topics as source and target of transfers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from noetl.tool import ConnectorError, RowTarget, SourceCall, jsonable
from noetl_kafka.connection import check_cluster, decoded, encoded, message_row, settings
from noetl_kafka.reader import REQUEST_SECONDS, BadStart, TopicReader, raise_error
from noetl_kafka.task import send


async def read(call: SourceCall) -> AsyncIterator[Any]:
    """The messages as Arrow batches; the next offsets are kept for `finish`."""
    import pyarrow as pa

    fields = call.fields
    values, format = fields.get("rows") == "value", str(fields.get("format") or "json")
    schema = pa.schema([
        ("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")), ("key", pa.string()),
        pa.field("value", pa.string(), metadata={"noetl": "json"} if format == "json" else None),
        pa.field("headers", pa.string(), metadata={"noetl": "json"}),
    ])  # fmt: skip
    options = await settings(fields["auth"], call.host, fields.get("config"))
    try:
        reader = TopicReader(options, fields, timeout=call.timeout)
    except BadStart as wrong:
        raise ConnectorError(str(wrong)) from None
    try:
        try:
            await reader.open()
        except BadStart as wrong:
            raise ConnectorError(str(wrong)) from None
        count = 0
        async with aclosing(reader.batches(call.batch_rows, limit=fields.get("limit"))) as batches:
            async for batch in batches:
                count += len(batch)
                yield _objects(batch, format) if values else _table(batch, schema, format)
        if not count and not values:
            yield _table([], schema, format)
        call.memo["offsets"] = dict(reader.offsets)
    finally:
        await reader.close()


async def finish(call: SourceCall) -> None:
    """Commit the offsets of the group, after the rows are committed by all targets."""
    fields = call.fields
    if not fields.get("group") or "offsets" not in call.memo:
        return
    reader = TopicReader(await settings(fields["auth"], call.host, fields.get("config")), fields)
    try:
        reader.offsets = call.memo["offsets"]
        await reader.commit()
    finally:
        await reader.close()


def _objects(messages: list[Any], format: str) -> list[dict[str, Any]]:
    rows = [decoded(message.value(), format) for message in messages]
    for message, row in zip(messages, rows, strict=True):
        if not isinstance(row, dict):
            place = f"{message.topic()}, partition {message.partition()}, offset {message.offset()}"
            problem = "has no value, it deletes its key" if message.value() is None else "is not a JSON object"
            raise ConnectorError(f"the message at {place} {problem}; use `rows: message`")
    return rows


def _table(messages: list[Any], schema: Any, format: str) -> Any:
    import pyarrow as pa

    rows = [message_row(message, format) for message in messages]
    for message, row in zip(messages, rows, strict=True):
        row["headers"] = json.dumps(row["headers"], ensure_ascii=False)
        if format == "json" and row["value"] is not None:
            # The text of JSON as it is: numbers keep their digits.
            is_text = isinstance(row["value"], str)
            row["value"] = json.dumps(row["value"], ensure_ascii=False) if is_text else message.value().decode()
    return pa.RecordBatch.from_pylist(rows, schema)


class TopicTarget(RowTarget):
    """A topic; one transaction per transfer."""

    _producer: Any = None
    _begun = False

    async def begin(self, schema: Any) -> None:
        """Connect and begin the transaction."""
        call = self.call
        options = await settings(call.fields["auth"], call.host, call.fields.get("config"))
        self._topic = str(call.fields["topic"])
        missing = [name for name in call.key if name not in schema.names]
        if missing:
            raise ConnectorError(
                f"{call.label}: the key {missing[0]!r} is not a column; columns: {', '.join(schema.names)}"
            )
        seconds = call.timeout.total or REQUEST_SECONDS
        options |= {"enable.idempotence": True, "message.timeout.ms": int(seconds * 1000)}
        self._transaction = call.fields.get("transaction") is not False
        if self._transaction:
            # The same in every attempt: a later attempt fences an earlier one that still runs.
            options["transactional.id"] = f"noetl-{call.idempotency_key}-{self._topic}"
        if not call.create:
            options["allow.auto.create.topics"] = False
        self._producer = Producer(options)
        found = await asyncio.to_thread(check_cluster, self._producer, options, self._topic, call.timeout)
        if not call.create:
            raise_error(found.topics[self._topic])
        if self._transaction:
            await asyncio.to_thread(self._producer.init_transactions, call.timeout.connect or REQUEST_SECONDS)
            self._producer.begin_transaction()
            self._begun = True

    async def write(self, table: Any) -> None:
        """Produce a chunk, and wait until it is stored."""
        messages = [
            {"value": encoded({name: jsonable(value) for name, value in row.items()}), "key": self._key(row)}
            for row in table.to_pylist()
        ]
        await asyncio.to_thread(send, self._producer, self._topic, messages)

    async def commit(self) -> None:
        """Commit the transaction."""
        if self._begun:  # `abort` follows a commit that failed
            await asyncio.to_thread(self._producer.commit_transaction, REQUEST_SECONDS)
            self._begun = False
        self._producer = None

    async def abort(self) -> None:
        """Abort the transaction; without one, messages that were produced remain."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge()
        if self._begun:
            self._begun = False
            try:
                await asyncio.to_thread(producer.abort_transaction, REQUEST_SECONDS)
            except KafkaException as failure:
                # The broker aborts it after its own time-out.
                if failure.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._STATE, KafkaError._FENCED):
                    raise

    def _key(self, row: dict[str, Any]) -> bytes | None:
        if not self.call.key:
            return None
        values = [jsonable(row[name]) for name in self.call.key]
        return encoded(values[0] if len(values) == 1 else values)
