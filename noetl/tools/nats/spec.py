"""NATS: key-value buckets, object buckets, messages and requests, JetStream."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.tools._common.fields import NATS_ACTIONS, NATS_NULLS, REQUEST_TIMEOUT

SPEC = ToolSpec(
    kind="nats",
    doc="Speaks to NATS: publishes messages and waits for answers, reads and writes key-value and object buckets of "
    "JetStream, publishes to and reads from streams. Structures are sent as JSON; what comes is JSON if it is JSON, "
    "else text. A message published to JetStream carries the task's idempotency key, so an attempt that is "
    "repeated within the stream's window is stored once.",
    fields={
        "action": Field("string", "What to do.", required=True, choices=NATS_ACTIONS, aliases=("operation", "op")),
        "subject": Field("string", "Subject of a message."),
        "data": Field("any", "The message, value or object.", aliases=("value", "payload", "message")),
        "headers": Field("mapping", "Headers of a message."),
        "bucket": Field("string", "Bucket of keys or objects."),
        "key": Field("string", "Key, for `kv_*`; for `kv_list` what keys begin with, or a filter such as `orders.>`.",
                     aliases=("prefix",)),
        "name": Field("string", "Name of an object.", aliases=("object", "object_name")),
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
    helpers={"nats": NATS_NULLS},
    extra="nats",
    example="- name: announce\n  kind: nats\n  action: js_publish\n  auth: bus\n  subject: orders.created\n"
    '  data: "{{ create.order }}"\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Do one thing."""
    try:
        from noetl.tools.nats.task import perform
    except ModuleNotFoundError:
        return error("unknown", "kind nats needs the driver nats-py: pip install 'noetl[nats]'")
    return await perform(replace(call, input=named_input(SPEC, call.input)))
