"""What kind `nats` does: messages, keys, objects, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import nats
from msgspec import DecodeError
from nats.js.errors import BucketNotFoundError, NoKeysError

from noetl.connections import nats as driver
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.nats import ObjectBucket, to_error_info
from noetl.core.model.durations import seconds
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.data import formats, table_files
from noetl.data.content import (
    INLINE_BYTES,
    blocks_of,
    check_format,
    encoded,
    file_blocks,
    kept_or_stored,
    message_bytes,
    message_value,
    reference_in,
    save,
)
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.tools._common.fields import NATS_ACTIONS, NATS_NULLS, REQUEST_TIMEOUT
from noetl.tools._common.sql_task import flag


async def perform(call: ToolCall) -> Outcome:
    """Do one thing."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadAuth, SecretUnavailable) as failure:
        return _failed("auth", str(failure))
    except (PayloadUnavailable, StoreUnavailable) as failure:
        return _failed(failure.kind, str(failure))
    except nats.errors.Error as failure:
        return Outcome(
            status="error", error=to_error_info(failure, task.what, task.named()), helpers={"nats": dict(NATS_NULLS)}
        )
    except TimeoutError:
        return _failed("timeout", f"{task.what}: no answer in time")
    except (DecodeError, UnicodeDecodeError) as failure:
        return _failed("parse", f"{task.what}: the object is not what its format says: {failure}")
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as failure:
        kind = "not_found" if isinstance(failure, FileNotFoundError) else "storage.access"
        return _failed(kind, f"{task.what}: {failure.filename}: {failure.strerror}")
    except OSError as failure:
        return _failed("connection", f"{task.what}: {failure.strerror or failure}")
    except ValueError as wrong:
        return _failed("schema", str(wrong))


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.what = "nats"

    async def run(self) -> Outcome:
        """Connect and do it."""
        action = str(self._given("action") or "").lower().replace("kv_keys", "kv_list").replace("js_get_msg", "js_get")
        action = action.replace("js_stream_info", "js_info")
        if action not in NATS_ACTIONS:
            raise ValueError(f"action {action or '(none)'!r} is not one of {', '.join(NATS_ACTIONS)}")
        self.what = f"nats {action}"
        fields = await fields_of(self._given("auth"), self.call.host, prefixes=driver.PREFIXES)
        if self._given("url"):
            fields["dsn"] = self._given("url")
        self.client = await driver.shared_client(fields, timeout=self.call.timeout.connect)
        outcome: Outcome = await getattr(self, f"_{action}")()
        return outcome

    # ── messages ────────────────────────────────────────────────────────────────────────

    async def _publish(self) -> Outcome:
        subject = self._need("subject")
        await self.client.publish(subject, self._message(), headers=self._headers())
        await self.client.flush(timeout=int(self.call.timeout.total or REQUEST_TIMEOUT) or 1)
        return ok({"subject": subject}, nats=dict(NATS_NULLS))

    async def _request(self) -> Outcome:
        subject = self._need("subject")
        wait = self.call.timeout.read or self.call.timeout.total or REQUEST_TIMEOUT
        reply = await self.client.request(subject, self._message(), timeout=wait, headers=self._headers())
        return ok(message_value(reply.data), meta={"headers": dict(reply.headers or {})}, nats=dict(NATS_NULLS))

    async def _js_publish(self) -> Outcome:
        headers = {"Nats-Msg-Id": self.call.idempotency_key, **(self._headers() or {})}
        subject = self._need("subject")
        ack = await self.client.jetstream().publish(
            subject, self._message(), stream=self._given("stream"), headers=headers
        )
        known = {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}
        return ok({"subject": subject, **known}, nats={**NATS_NULLS, **known})

    async def _js_get(self) -> Outcome:
        stream, seq = self._need("stream"), self._given("seq")
        if seq in (None, "") and not self._given("subject"):
            raise ValueError("`js_get` needs `seq`, or `subject` for its last message")
        js = self.client.jetstream()
        message = await (
            js.get_msg(stream, seq=self._number("seq")) if seq else js.get_msg(stream, subject=self._given("subject"))
        )
        return ok(_received(message), nats={**NATS_NULLS, "stream": stream, "seq": message.seq})

    async def _js_fetch(self) -> Outcome:
        """Messages that wait for a durable consumer; none are an empty list, not an error."""

        stream, durable = self._need("stream"), self._need("consumer")
        subject = self._given("subject") or ""
        subscription = await self.client.jetstream().pull_subscribe(subject, durable=durable, stream=stream)
        try:
            messages = await subscription.fetch(
                self._number("limit") if self._given("limit") else 100, timeout=self.call.timeout.read or 1
            )
        except TimeoutError:  # the driver's own is one, and in places it raises the plain one
            messages = []
        received = [
            {**_received(message), "seq": message.metadata.sequence.stream, "subject": message.subject}
            for message in messages
        ]
        if flag(self._given("ack"), True):
            for message in messages:
                await message.ack()
        await subscription.unsubscribe()
        return ok({"messages": received, "count": len(received)}, nats={**NATS_NULLS, "stream": stream})

    async def _js_info(self) -> Outcome:
        info = await self.client.jetstream().stream_info(self._need("stream"))
        state = info.state
        data = {
            "stream": info.config.name, "subjects": info.config.subjects, "messages": state.messages,
            "bytes": state.bytes, "first_seq": state.first_seq, "last_seq": state.last_seq,
            "consumers": state.consumer_count,
        }  # fmt: skip
        return ok(data, nats={**NATS_NULLS, "stream": info.config.name})

    # ── keys ────────────────────────────────────────────────────────────────────────────

    async def _kv_get(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        entry = await bucket.get(self._need("key"))
        data = {"key": entry.key, "value": message_value(entry.value or b""), "revision": entry.revision}
        return ok(data, nats={**NATS_NULLS, "revision": entry.revision})

    async def _kv_put(self) -> Outcome:
        bucket, key, value = await self._bucket(), self._need("key"), self._message()
        if flag(self._given("create"), False):
            revision = await bucket.create(key, value)
        elif self._given("revision") not in (None, ""):
            revision = await bucket.update(key, value, last=self._number("revision"))
        else:
            revision = await bucket.put(key, value)
        return ok({"key": key, "revision": revision}, nats={**NATS_NULLS, "revision": revision})

    async def _kv_delete(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        revision = self._given("revision")
        await bucket.delete(self._need("key"), last=self._number("revision") if revision not in (None, "") else None)
        return ok({"key": self._need("key"), "deleted": True}, nats=dict(NATS_NULLS))

    async def _kv_purge(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        await bucket.purge(self._need("key"))
        return ok({"key": self._need("key"), "purged": True}, nats=dict(NATS_NULLS))

    async def _kv_list(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        wanted = self._given("key")
        try:
            keys = await bucket.keys()
        except NoKeysError:
            keys = []
        keys = sorted(key for key in keys if not wanted or _matches(key, str(wanted)))
        return ok({"keys": keys, "count": len(keys)}, nats=dict(NATS_NULLS))

    async def _bucket(self) -> Any:
        """The bucket of keys, made if there is none."""

        js, name = self.client.jetstream(), self._need("bucket")
        try:
            return await js.key_value(name)
        except BucketNotFoundError:
            return await js.create_key_value(bucket=name, ttl=seconds(self._given("ttl")))

    # ── objects ─────────────────────────────────────────────────────────────────────────

    async def _object_put(self) -> Outcome:
        name, data, file = self._need("name", "key"), self._given("data"), self._given("file")
        objects = self._objects()
        await objects.ensure()
        if flag(self._given("create"), False) and await objects.find(name) is not None:
            return _failed("client_error", f"{self.what}: the object {name} exists already, and `create` was asked for")
        reference = reference_in(self._given("ref")) or reference_in(data)
        format = formats.format_of(given=self._given("format"), path=name)
        if reference is not None:
            check_format(reference, format, name)
            blocks: Any = self.call.host.open_result(reference)
        elif data is not None:
            said = format if format in formats.TABULAR or self._given("format") else None
            blocks = blocks_of(encoded(data, said, name) if said else message_bytes(data))
        elif file:
            blocks = file_blocks(self.call.host.resolve_path(str(file)))
        else:
            raise ValueError("there is nothing to put: give `data`, `file` or `ref`")
        info = await objects.put(name, blocks)
        return ok({"name": name, "bytes": info.size, "digest": info.digest}, nats=dict(NATS_NULLS))

    async def _object_get(self) -> Outcome:
        name, objects = self._need("name", "key"), self._objects()
        info = await objects.find(name)
        if info is None:
            return _failed("not_found", f"{self.what}: there is no object {name} in {objects.bucket}")
        file = self._given("file")
        if file:
            path = self.call.host.resolve_path(str(file))
            size = await save(objects.read(info), path)
            return ok({"name": name, "file": path, "bytes": size}, nats=dict(NATS_NULLS))
        format = formats.format_of(given=self._given("format"), path=name)
        inline = int(self.call.spec.get("inline_bytes") or INLINE_BYTES)
        content = await kept_or_stored(self.call, objects.read(info), formats.CONTENT_TYPES[format], inline=inline)
        if not isinstance(content, bytes):
            return Outcome(status="ok", ref=content, helpers={"nats": dict(NATS_NULLS)})
        if len(content) != info.size:
            return _failed("ref.corrupt", f"{self.what}: {len(content)} of {info.size} bytes of {name} are there")
        value = message_value(content) if format == "bytes" else table_files.decode(content, format, path=name)
        return ok(value, nats=dict(NATS_NULLS))

    async def _object_delete(self) -> Outcome:
        name = self._need("name", "key")
        return ok({"name": name, "deleted": await self._objects().delete(name)}, nats=dict(NATS_NULLS))

    async def _object_list(self) -> Outcome:
        names = await self._objects().names()
        return ok({"names": names, "count": len(names)}, nats=dict(NATS_NULLS))

    async def _object_info(self) -> Outcome:
        name = self._need("name", "key")
        info = await self._objects().find(name)
        if info is None:
            return _failed("not_found", f"{self.what}: there is no object {name}")
        return ok(info._asdict(), nats=dict(NATS_NULLS))

    def _objects(self) -> Any:
        return ObjectBucket(self.client, self._need("bucket"))

    # ── parameters ──────────────────────────────────────────────────────────────────────

    def _message(self) -> bytes:
        return message_bytes(self._given("data"))

    def _headers(self) -> dict[str, str] | None:
        headers = self._given("headers")
        if headers is None:
            return None
        if not isinstance(headers, Mapping):
            raise ValueError("`headers` is a mapping")
        return {str(key): str(value) for key, value in headers.items()}

    def _need(self, *names: str) -> str:
        found = next((value for name in names if (value := self._given(name)) not in (None, "")), None)
        if found is None:
            raise ValueError(f"{self.what} needs `{names[0]}`")
        return str(found)

    def _number(self, name: str) -> int:
        try:
            return int(self._given(name))
        except (TypeError, ValueError):
            raise ValueError(f"`{name}` is a whole number, not {self._given(name)!r}") from None

    def named(self) -> str:
        """What the task speaks of: `bucket cursors, key orders`."""
        words = ("stream", "subject", "seq", "consumer", "bucket", "key", "name")
        return ", ".join(f"{word} {self._given(word)}" for word in words if self._given(word) not in (None, ""))

    def _given(self, name: str) -> Any:
        return self.call.input.get(name)


def _received(message: Any) -> dict[str, Any]:
    known = {"data": message_value(message.data or b""), "headers": dict(message.headers or {})}
    seq = getattr(message, "seq", None)
    return {**known, "seq": seq, "subject": message.subject} if seq else known


def _matches(key: str, wanted: str) -> bool:
    """Whether a key begins with a text, or fits a filter of NATS (`*` is one token, `>` the rest)."""
    if "*" not in wanted and ">" not in wanted:
        return key.startswith(wanted)
    tokens, pattern = key.split("."), wanted.split(".")
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or part not in ("*", tokens[number]):
            return False
    return len(tokens) == len(pattern)


def _failed(kind: str, message: str) -> Outcome:
    return error(kind, message, nats=dict(NATS_NULLS))
