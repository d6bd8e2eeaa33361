"""NATS: key-value buckets, object buckets, messages and requests, JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.model.outcome import Outcome, error, ok
from noetl.model.tool import Field, ToolCall, ToolSpec

ACTIONS = (
    "publish", "request", "js_publish", "js_get", "js_fetch", "js_info",
    "kv_get", "kv_put", "kv_delete", "kv_purge", "kv_list",
    "object_get", "object_put", "object_delete", "object_list", "object_info",
)  # fmt: skip
REQUEST_TIMEOUT = 10.0
_NO_HELPER: dict[str, Any] = dict.fromkeys(("stream", "seq", "revision", "duplicate"))

SPEC = ToolSpec(
    kind="nats",
    doc="Speaks to NATS: publishes messages and waits for answers, reads and writes key-value and object buckets of "
    "JetStream, publishes to and reads from streams. Structures are sent as JSON; what comes is JSON if it is JSON, "
    "else text. A message published to JetStream carries the task's idempotency key, so an attempt that is "
    "repeated within the stream's window is stored once.",
    fields={
        "action": Field("string", "What to do.", required=True, choices=ACTIONS, aliases=("operation", "op")),
        "subject": Field("string", "Subject of a message."),
        "data": Field("any", "The message, value or object.", aliases=("value", "payload", "message")),
        "headers": Field("mapping", "Headers of a message."),
        "bucket": Field("string", "Bucket of keys or objects."),
        "key": Field("string", "Key, for `kv_*`; for `kv_list` what keys begin with, or a filter such as `orders.>`.",
                     aliases=("prefix",)),
        "name": Field("string", "Name of an object."),
        "revision": Field("any", "For `kv_put` and `kv_delete`: only if this is the key's last revision."),
        "create": Field("boolean", "For `kv_put`: only if the key does not exist; for `object_put` likewise.",
                        aliases=("create_only",)),
        "ttl": Field("any", "For a bucket that `kv_put` makes: how long its values live (`30s`, `24h`)."),
        "stream": Field("string", "Stream, for `js_*`."),
        "seq": Field("any", "For `js_get`: the message's number; else the last one of `subject`."),
        "consumer": Field("string", "For `js_fetch`: the durable consumer to read as."),
        "limit": Field("any", "For `js_fetch`: at most so many messages (100)."),
        "ack": Field("boolean", "For `js_fetch`: acknowledge what was read.", default=True),
        "file": Field("string", "A local file to put as an object, or to get an object into."),
        "ref": Field("any", "A stored result to put as an object."),
        "format": Field("string", "Of an object: `json`, `jsonl`, `csv`, `parquet`, `arrow`, `text`, `bytes`."),
        "auth": Field("any", "The connection: a credential's name, a `nats://` URL, or a map of fields.",
                      aliases=("credential",)),
        "url": Field("string", "The server, when `auth` does not say.", aliases=("nats_url", "servers")),
    },
    spec_keys={
        "timeout": f"`connect` and `total` seconds; `total` is how long a request waits ({REQUEST_TIMEOUT:g}).",
        "inline_bytes": "Size up to which an object is `output.data` (16 MiB); more is streamed to `output.ref`.",
    },
    helpers={"nats": _NO_HELPER},
    extra="nats",
    example="- name: announce\n  kind: nats\n  action: js_publish\n  auth: bus\n  subject: orders.created\n"
    '  data: "{{ create.order }}"\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Do one thing."""
    try:
        import nats
    except ModuleNotFoundError:
        return _failed("unknown", "kind nats needs the driver nats-py: pip install 'noetl[nats]'")
    from msgspec import DecodeError

    from noetl.drivers.auth import BadAuth
    from noetl.drivers.nats import explain

    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadAuth, SecretUnavailable) as failure:
        return _failed("auth", str(failure))
    except (PayloadUnavailable, StoreUnavailable) as failure:
        return _failed(failure.kind, str(failure))
    except nats.errors.Error as failure:
        return Outcome(status="error", error=explain(failure, task.what), helpers={"nats": dict(_NO_HELPER)})
    except TimeoutError:
        return _failed("timeout", f"{task.what}: no answer in time")
    except (DecodeError, UnicodeDecodeError) as failure:
        return _failed("parse", f"{task.what}: the object is not what its format says: {failure}")
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
        from noetl.drivers import nats as driver
        from noetl.drivers.auth import fields_of

        action = str(self._given("action") or "").lower().replace("kv_keys", "kv_list").replace("js_get_msg", "js_get")
        action = action.replace("js_stream_info", "js_info")
        if action not in ACTIONS:
            raise ValueError(f"action {action or '(none)'!r} is not one of {', '.join(ACTIONS)}")
        self.what = f"nats {action}"
        fields = await fields_of(self._given("auth"), self.call.host, prefixes=driver.PREFIXES)
        if self._given("url"):
            fields["dsn"] = self._given("url")
        self.client = await driver.client_of(fields, timeout=self.call.timeout.connect)
        outcome: Outcome = await getattr(self, f"_{action}")()
        return outcome

    # ── messages ────────────────────────────────────────────────────────────────────────

    async def _publish(self) -> Outcome:
        subject = self._need("subject")
        await self.client.publish(subject, self._message(), headers=self._headers())
        await self.client.flush(timeout=int(self.call.timeout.total or REQUEST_TIMEOUT) or 1)
        return ok({"subject": subject}, nats=dict(_NO_HELPER))

    async def _request(self) -> Outcome:
        from noetl.drivers.content import message_value

        subject = self._need("subject")
        wait = self.call.timeout.read or self.call.timeout.total or REQUEST_TIMEOUT
        reply = await self.client.request(subject, self._message(), timeout=wait, headers=self._headers())
        return ok(message_value(reply.data), meta={"headers": dict(reply.headers or {})}, nats=dict(_NO_HELPER))

    async def _js_publish(self) -> Outcome:
        headers = {"Nats-Msg-Id": self.call.idempotency_key, **(self._headers() or {})}
        subject = self._need("subject")
        ack = await self.client.jetstream().publish(
            subject, self._message(), stream=self._given("stream"), headers=headers
        )
        known = {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}
        return ok({"subject": subject, **known}, nats={**_NO_HELPER, **known})

    async def _js_get(self) -> Outcome:
        stream, seq = self._need("stream"), self._given("seq")
        if seq in (None, "") and not self._given("subject"):
            raise ValueError("`js_get` needs `seq`, or `subject` for its last message")
        js = self.client.jetstream()
        message = await (
            js.get_msg(stream, seq=int(seq)) if seq else js.get_msg(stream, subject=self._given("subject"))
        )
        return ok(_received(message), nats={**_NO_HELPER, "stream": stream, "seq": message.seq})

    async def _js_fetch(self) -> Outcome:
        """Messages that wait for a durable consumer; none are an empty list, not an error."""
        from nats.errors import TimeoutError as Nothing

        from noetl.drivers.sqltask import flag

        stream, durable = self._need("stream"), self._need("consumer")
        subject = self._given("subject") or ""
        subscription = await self.client.jetstream().pull_subscribe(subject, durable=durable, stream=stream)
        try:
            messages = await subscription.fetch(int(self._given("limit") or 100), timeout=self.call.timeout.read or 1)
        except Nothing:
            messages = []
        received = [
            {**_received(message), "seq": message.metadata.sequence.stream, "subject": message.subject}
            for message in messages
        ]
        if flag(self._given("ack"), True):
            for message in messages:
                await message.ack()
        await subscription.unsubscribe()
        return ok({"messages": received, "count": len(received)}, nats={**_NO_HELPER, "stream": stream})

    async def _js_info(self) -> Outcome:
        info = await self.client.jetstream().stream_info(self._need("stream"))
        state = info.state
        data = {
            "stream": info.config.name, "subjects": info.config.subjects, "messages": state.messages,
            "bytes": state.bytes, "first_seq": state.first_seq, "last_seq": state.last_seq,
            "consumers": state.consumer_count,
        }  # fmt: skip
        return ok(data, nats={**_NO_HELPER, "stream": info.config.name})

    # ── keys ────────────────────────────────────────────────────────────────────────────

    async def _kv_get(self) -> Outcome:
        from noetl.drivers.content import message_value

        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        entry = await bucket.get(self._need("key"))
        data = {"key": entry.key, "value": message_value(entry.value or b""), "revision": entry.revision}
        return ok(data, nats={**_NO_HELPER, "revision": entry.revision})

    async def _kv_put(self) -> Outcome:
        from noetl.drivers.sqltask import flag

        bucket, key, value = await self._bucket(), self._need("key"), self._message()
        if flag(self._given("create"), False):
            revision = await bucket.create(key, value)
        elif self._given("revision") not in (None, ""):
            revision = await bucket.update(key, value, last=int(self._given("revision")))
        else:
            revision = await bucket.put(key, value)
        return ok({"key": key, "revision": revision}, nats={**_NO_HELPER, "revision": revision})

    async def _kv_delete(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        revision = self._given("revision")
        await bucket.delete(self._need("key"), last=int(revision) if revision not in (None, "") else None)
        return ok({"key": self._need("key"), "deleted": True}, nats=dict(_NO_HELPER))

    async def _kv_purge(self) -> Outcome:
        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        await bucket.purge(self._need("key"))
        return ok({"key": self._need("key"), "purged": True}, nats=dict(_NO_HELPER))

    async def _kv_list(self) -> Outcome:
        from nats.js.errors import NoKeysError

        bucket = await self.client.jetstream().key_value(self._need("bucket"))
        wanted = self._given("key")
        try:
            keys = await bucket.keys()
        except NoKeysError:
            keys = []
        keys = sorted(key for key in keys if not wanted or _matches(key, str(wanted)))
        return ok({"keys": keys, "count": len(keys)}, nats=dict(_NO_HELPER))

    async def _bucket(self) -> Any:
        """The bucket of keys, made if there is none."""
        from nats.js.errors import BucketNotFoundError

        from noetl.drivers.payloads import seconds

        js, name = self.client.jetstream(), self._need("bucket")
        try:
            return await js.key_value(name)
        except BucketNotFoundError:
            return await js.create_key_value(bucket=name, ttl=seconds(self._given("ttl")))

    # ── objects ─────────────────────────────────────────────────────────────────────────

    async def _object_put(self) -> Outcome:
        from noetl.drivers import tables
        from noetl.drivers.content import blocks_of, file_blocks, message_bytes, reference_in
        from noetl.drivers.sqltask import flag

        name, data, file = self._need("name", "key"), self._given("data"), self._given("file")
        objects = self._objects()
        await objects.ensure()
        if flag(self._given("create"), False) and await objects.find(name) is not None:
            return _failed("client_error", f"{self.what}: the object {name} exists already, and `create` was asked for")
        reference = reference_in(self._given("ref")) or reference_in(data)
        format = tables.format_of(given=self._given("format"), path=name)
        if reference is not None:
            blocks: Any = self.call.host.open_result(reference)
        elif data is not None:
            structured = format in ("jsonl", "csv", "parquet", "arrow")
            blocks = blocks_of(tables.encode_value(data, format) if structured else message_bytes(data))
        elif file:
            blocks = file_blocks(self.call.host.resolve_path(str(file)))
        else:
            raise ValueError("there is nothing to put: give `data`, `file` or `ref`")
        info = await objects.put(name, blocks)
        return ok({"name": name, "bytes": info.size, "digest": info.digest}, nats=dict(_NO_HELPER))

    async def _object_get(self) -> Outcome:
        from noetl.drivers import tables
        from noetl.drivers.content import INLINE_BYTES, kept_or_stored, message_value, save

        name, objects = self._need("name", "key"), self._objects()
        info = await objects.find(name)
        if info is None:
            return _failed("not_found", f"{self.what}: there is no object {name} in {objects.bucket}")
        file = self._given("file")
        if file:
            path = self.call.host.resolve_path(str(file))
            size = await save(objects.read(info), path)
            return ok({"name": name, "file": path, "bytes": size}, nats=dict(_NO_HELPER))
        format = tables.format_of(given=self._given("format"), path=name)
        inline = int(self.call.spec.get("inline_bytes") or INLINE_BYTES)
        content = await kept_or_stored(self.call, objects.read(info), tables.CONTENT_TYPES[format], inline=inline)
        if not isinstance(content, bytes):
            return Outcome(
                status="ok",
                data={"name": name, "bytes": content.meta.bytes},
                ref=content,
                helpers={"nats": dict(_NO_HELPER)},
            )
        if len(content) != info.size:
            return _failed("ref.corrupt", f"{self.what}: {len(content)} of {info.size} bytes of {name} are there")
        value = message_value(content) if format == "bytes" else tables.decode(content, format, path=name)
        return ok(value, nats=dict(_NO_HELPER))

    async def _object_delete(self) -> Outcome:
        name = self._need("name", "key")
        return ok({"name": name, "deleted": await self._objects().delete(name)}, nats=dict(_NO_HELPER))

    async def _object_list(self) -> Outcome:
        names = await self._objects().names()
        return ok({"names": names, "count": len(names)}, nats=dict(_NO_HELPER))

    async def _object_info(self) -> Outcome:
        name = self._need("name", "key")
        info = await self._objects().find(name)
        if info is None:
            return _failed("not_found", f"{self.what}: there is no object {name}")
        return ok(info._asdict(), nats=dict(_NO_HELPER))

    def _objects(self) -> Any:
        from noetl.drivers.nats import Objects

        return Objects(self.client, self._need("bucket"))

    # ── parameters ──────────────────────────────────────────────────────────────────────

    def _message(self) -> bytes:
        from noetl.drivers.content import message_bytes

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

    def _given(self, name: str) -> Any:
        """A parameter, by its own name or another spelling."""
        given = self.call.input
        found = given.get(name)
        if found is None:
            found = next((given[alias] for alias in SPEC.fields[name].aliases if given.get(alias) is not None), None)
        return found


def _received(message: Any) -> dict[str, Any]:
    from noetl.drivers.content import message_value

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
    return error(kind, message, nats=dict(_NO_HELPER))
