"""Performs one operation of kind `nats`: messages, streams, keys, objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import nats
from nats.js.errors import BucketNotFoundError, NoKeysError

from noetl.connections import nats as driver
from noetl.connections.auth import BadAuth, fields_of
from noetl.core.model.durations import seconds
from noetl.core.model.outcome import ErrorInfo, Outcome, error, error_info, ok
from noetl.core.model.tool import ToolCall
from noetl.data.content import INLINE_BYTES, encoded, kept_or_stored, message_bytes, message_value, save
from noetl.data.files import formats, table_files
from noetl.errors import SecretUnavailable
from noetl.tools._common.payload_task import explain, upload_blocks
from noetl.tools._common.sql_task import flag
from noetl.tools.nats.spec import ACTION_ALIASES, ACTIONS, NULLS, REQUEST_TIMEOUT


async def run(call: ToolCall) -> Outcome:
    """Perform one operation."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadAuth, SecretUnavailable) as failure:
        return _failure("auth", str(failure))
    except Exception as failure:
        info = explain(failure, task.name) or _explain(failure, task)
        if info is None:
            raise
        return Outcome(status="error", error=info, helpers={"nats": dict(NULLS)})


def _explain(failure: Exception, task: _Task) -> ErrorInfo | None:
    name = task.name
    if isinstance(failure, nats.errors.Error):
        return driver.to_error_info(failure, name, task.describe_target())
    if isinstance(failure, TimeoutError):
        return error_info("timeout", f"{name}: timed out")
    if isinstance(failure, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        kind = "not_found" if isinstance(failure, FileNotFoundError) else "storage.access"
        return error_info(kind, f"{name}: {failure.filename}: {failure.strerror}")
    if isinstance(failure, OSError):
        return error_info("connection", f"{name}: {failure.strerror or failure}")
    return error_info("schema", str(failure)) if isinstance(failure, ValueError) else None


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.fields = call.input
        self.name = "nats"

    async def run(self) -> Outcome:
        """Connect and perform the operation."""
        action = str(self.fields.get("action") or "").lower()
        action = ACTION_ALIASES.get(action, action)
        if action not in ACTIONS:
            raise ValueError(f"action {action or '(none)'!r} is not one of {', '.join(ACTIONS)}")
        self.name = f"nats {action}"
        fields = await fields_of(self.fields.get("auth"), self.call.host, prefixes=driver.PREFIXES)
        if self.fields.get("url"):
            fields["dsn"] = self.fields.get("url")
        places = [fields[name] for name in ("dsn", "url", "servers", "host") if fields.get(name)]
        allows = self.call.host.address_check(*places)
        self.client = await driver.shared_client(fields, timeout=self.call.timeout.connect, allows=allows)
        outcome: Outcome = await getattr(self, f"_{action}")()
        return outcome

    # ── messages ────────────────────────────────────────────────────────────────────────

    async def _publish(self) -> Outcome:
        subject = self._require("subject")
        await self.client.publish(subject, self._message(), headers=self._headers())
        await self.client.flush(timeout=int(self.call.timeout.total or REQUEST_TIMEOUT) or 1)
        return ok({"subject": subject}, nats=dict(NULLS))

    async def _request(self) -> Outcome:
        subject = self._require("subject")
        wait = self.call.timeout.read or self.call.timeout.total or REQUEST_TIMEOUT
        reply = await self.client.request(subject, self._message(), timeout=wait, headers=self._headers())
        return ok(message_value(reply.data), meta={"headers": dict(reply.headers or {})}, nats=dict(NULLS))

    async def _js_publish(self) -> Outcome:
        headers = {"Nats-Msg-Id": self.call.idempotency_key, **(self._headers() or {})}
        subject = self._require("subject")
        ack = await self.client.jetstream().publish(
            subject, self._message(), stream=self.fields.get("stream"), headers=headers
        )
        ack_data = {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}
        return ok({"subject": subject, **ack_data}, nats={**NULLS, **ack_data})

    async def _js_get(self) -> Outcome:
        stream, seq = self._require("stream"), self.fields.get("seq")
        if seq in (None, "") and not self.fields.get("subject"):
            raise ValueError("`js_get` requires `seq`, or `subject` for its last message")
        js = self.client.jetstream()
        message = await (
            js.get_msg(stream, seq=self._number("seq"))
            if seq
            else js.get_msg(stream, subject=self.fields.get("subject"))
        )
        return ok(_message_data(message), nats={**NULLS, "stream": stream, "seq": message.seq})

    async def _js_fetch(self) -> Outcome:
        """Messages pending for a durable consumer; an empty list if there are none."""
        stream, durable = self._require("stream"), self._require("consumer")
        subject = self.fields.get("subject") or ""
        subscription = await self.client.jetstream().pull_subscribe(subject, durable=durable, stream=stream)
        try:
            messages = await subscription.fetch(
                self._number("limit") if self.fields.get("limit") else 100, timeout=self.call.timeout.read or 1
            )
        except TimeoutError:
            messages = []
        received = [
            {**_message_data(message), "seq": message.metadata.sequence.stream, "subject": message.subject}
            for message in messages
        ]
        if flag(self.fields.get("ack"), True):
            for message in messages:
                await message.ack()
        await subscription.unsubscribe()
        return ok({"messages": received, "count": len(received)}, nats={**NULLS, "stream": stream})

    async def _js_info(self) -> Outcome:
        info = await self.client.jetstream().stream_info(self._require("stream"))
        state = info.state
        data = {
            "stream": info.config.name, "subjects": info.config.subjects, "messages": state.messages,
            "bytes": state.bytes, "first_seq": state.first_seq, "last_seq": state.last_seq,
            "consumers": state.consumer_count,
        }  # fmt: skip
        return ok(data, nats={**NULLS, "stream": info.config.name})

    # ── keys ────────────────────────────────────────────────────────────────────────────

    async def _kv_get(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._require("bucket"))
        entry = await bucket.get(self._require("key"))
        data = {"key": entry.key, "value": message_value(entry.value or b""), "revision": entry.revision}
        return ok(data, nats={**NULLS, "revision": entry.revision})

    async def _kv_put(self) -> Outcome:
        bucket, key, value = await self._bucket(), self._require("key"), self._message()
        if flag(self.fields.get("create"), False):
            revision = await bucket.create(key, value)
        elif self.fields.get("revision") not in (None, ""):
            revision = await bucket.update(key, value, last=self._number("revision"))
        else:
            revision = await bucket.put(key, value)
        return ok({"key": key, "revision": revision}, nats={**NULLS, "revision": revision})

    async def _kv_delete(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._require("bucket"))
        revision = self.fields.get("revision")
        await bucket.delete(self._require("key"), last=self._number("revision") if revision not in (None, "") else None)
        return ok({"key": self._require("key"), "deleted": True}, nats=dict(NULLS))

    async def _kv_purge(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._require("bucket"))
        await bucket.purge(self._require("key"))
        return ok({"key": self._require("key"), "purged": True}, nats=dict(NULLS))

    async def _kv_list(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._require("bucket"))
        wanted = self.fields.get("key")
        try:
            keys = await bucket.keys()
        except NoKeysError:
            keys = []
        keys = sorted(key for key in keys if not wanted or _matches(key, str(wanted)))
        return ok({"keys": keys, "count": len(keys)}, nats=dict(NULLS))

    async def _bucket(self) -> Any:
        """The key-value bucket, created if it does not exist."""
        js, name = self.client.jetstream(), self._require("bucket")
        try:
            return await js.key_value(name)
        except BucketNotFoundError:
            return await js.create_key_value(bucket=name, ttl=seconds(self.fields.get("ttl")))

    # ── objects ─────────────────────────────────────────────────────────────────────────

    async def _object_put(self) -> Outcome:
        name, objects = self._require("name", "key"), self._objects()
        await objects.ensure()
        if flag(self.fields.get("create"), False) and await objects.find(name) is not None:
            return _failure("client_error", f"{self.name}: object {name} already exists, and `create` is set")
        format = formats.format_of(given=self.fields.get("format"), path=name)
        is_encoded = format in formats.TABULAR or bool(self.fields.get("format"))
        blocks, _ = upload_blocks(
            self.call, name, format, lambda data: encoded(data, format, name) if is_encoded else message_bytes(data)
        )
        info = await objects.put(name, blocks)
        return ok({"name": name, "bytes": info.size, "digest": info.digest}, nats=dict(NULLS))

    async def _object_get(self) -> Outcome:
        name, objects = self._require("name", "key"), self._objects()
        info = await objects.find(name)
        if info is None:
            return _failure("not_found", f"{self.name}: object {name} not found in bucket {objects.bucket}")
        file = self.fields.get("file")
        if file:
            path = self.call.host.resolve_path(str(file))
            size = await save(objects.read(info), path)
            return ok({"name": name, "file": path, "bytes": size}, nats=dict(NULLS))
        format = formats.format_of(given=self.fields.get("format"), path=name)
        inline = int(self.call.spec.get("inline_bytes") or INLINE_BYTES)
        content = await kept_or_stored(self.call, objects.read(info), formats.CONTENT_TYPES[format], inline=inline)
        if not isinstance(content, bytes):
            return Outcome(status="ok", ref=content, helpers={"nats": dict(NULLS)})
        if len(content) != info.size:
            return _failure(
                "ref.corrupt", f"{self.name}: object {name} is incomplete: {len(content)} of {info.size} bytes"
            )
        value = message_value(content) if format == "bytes" else table_files.decode(content, format, path=name)
        return ok(value, nats=dict(NULLS))

    async def _object_delete(self) -> Outcome:
        name = self._require("name", "key")
        return ok({"name": name, "deleted": await self._objects().delete(name)}, nats=dict(NULLS))

    async def _object_list(self) -> Outcome:
        names = await self._objects().names()
        return ok({"names": names, "count": len(names)}, nats=dict(NULLS))

    async def _object_info(self) -> Outcome:
        name = self._require("name", "key")
        info = await self._objects().find(name)
        if info is None:
            return _failure("not_found", f"{self.name}: object {name} not found")
        return ok(info._asdict(), nats=dict(NULLS))

    def _objects(self) -> Any:
        return driver.ObjectBucket(self.client, self._require("bucket"))

    # ── parameters ──────────────────────────────────────────────────────────────────────

    def _message(self) -> bytes:
        return message_bytes(self.fields.get("data"))

    def _headers(self) -> dict[str, str] | None:
        headers = self.fields.get("headers")
        if headers is None:
            return None
        if not isinstance(headers, Mapping):
            raise ValueError("`headers` must be a mapping")
        return {str(key): str(value) for key, value in headers.items()}

    def _require(self, *names: str) -> str:
        found = next((value for name in names if (value := self.fields.get(name)) not in (None, "")), None)
        if found is None:
            raise ValueError(f"{self.name} requires `{names[0]}`")
        return str(found)

    def _number(self, name: str) -> int:
        try:
            return int(self.fields[name])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"`{name}` must be an integer, not {self.fields.get(name)!r}") from None

    def describe_target(self) -> str:
        """The objects of the operation for messages: `bucket cursors, key orders`."""
        names = ("stream", "subject", "seq", "consumer", "bucket", "key", "name")
        return ", ".join(f"{name} {self.fields[name]}" for name in names if self.fields.get(name) not in (None, ""))


def _message_data(message: Any) -> dict[str, Any]:
    received = {"data": message_value(message.data or b""), "headers": dict(message.headers or {})}
    seq = getattr(message, "seq", None)
    return {**received, "seq": seq, "subject": message.subject} if seq else received


def _matches(key: str, wanted: str) -> bool:
    """Whether a key has a prefix, or matches a NATS filter (`*` is one token, `>` the rest)."""
    if "*" not in wanted and ">" not in wanted:
        return key.startswith(wanted)
    tokens, pattern = key.split("."), wanted.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or part not in ("*", tokens[number]):
            return False
    return len(tokens) == len(pattern)


def _failure(kind: str, message: str) -> Outcome:
    return error(kind, message, nats=dict(NULLS))
