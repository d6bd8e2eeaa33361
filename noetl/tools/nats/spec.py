"""Kind `nats`: messages, JetStream streams, key-value and object buckets."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.durations import DURATION
from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, count, named_input
from noetl.data.files.formats import FORMATS, OTHER_NAMES

REQUEST_TIMEOUT = 10.0
NULLS: dict[str, Any] = {"stream": None, "seq": None, "revision": None, "duplicate": None}
ACTIONS = (
    "publish", "request", "js_publish", "js_get", "js_fetch", "js_info",
    "kv_get", "kv_put", "kv_delete", "kv_purge", "kv_list",
    "object_get", "object_put", "object_delete", "object_list", "object_info",
)  # fmt: skip

ACTION_ALIASES = {"kv_keys": "kv_list", "js_get_msg": "js_get", "js_stream_info": "js_info"}
# The fields that an action requires; `name|key` is one of them.
_REQUIRED = {
    **dict.fromkeys(("publish", "request", "js_publish"), ("subject",)),
    **dict.fromkeys(("js_get", "js_info"), ("stream",)),
    "js_fetch": ("stream", "consumer"),
    **dict.fromkeys(("kv_get", "kv_put", "kv_delete", "kv_purge"), ("bucket", "key")),
    **dict.fromkeys(("kv_list", "object_list"), ("bucket",)),
    **dict.fromkeys(("object_get", "object_put", "object_delete", "object_info"), ("bucket", "name|key")),
}

SPEC = ToolSpec(
    kind="nats",
    doc="Publishes messages to NATS, sends requests, reads and writes key-value and object buckets of JetStream, and "
    "publishes to and reads from streams. Mappings and lists are sent as JSON. Received data is decoded as JSON if it "
    "is valid JSON, otherwise as text. A message published to JetStream carries the task's idempotency key, so a "
    "repeated attempt within the stream's duplicate window is stored once.",
    fields={
        "action": Field("string", "The operation.", required=True, choices=ACTIONS, also=tuple(ACTION_ALIASES),
                        aliases=("operation", "op")),
        "subject": Field("string", "Subject of the message, without blanks.", pattern=r"\S+"),
        "data": Field("any", "The message, value or object.", aliases=("value", "payload", "message")),
        "headers": Field("mapping", "Headers of the message."),
        "bucket": Field("string", "Key-value or object bucket."),
        "key": Field("string", "Key, for `kv_*`. For `kv_list`: a key prefix, or a filter such as `orders.>`.",
                     aliases=("prefix",)),
        "name": Field("string", "Name of an object.", aliases=("object", "object_name")),
        "revision": Field("any", "For `kv_put` and `kv_delete`: apply only if this is the key's last revision.",
                          accepts=("integer",), least=0),
        "create": Field("boolean", "For `kv_put` and `object_put`: apply only if the key or object does not exist.",
                        aliases=("create_only",)),
        "ttl": Field("any", "Lifetime of values in a bucket that `kv_put` creates (`30s`, `24h`).",
                     accepts=("number", "string"), pattern=DURATION),
        "stream": Field("string", "Stream, for `js_*`."),
        "seq": Field("any", "For `js_get`: sequence number of the message. Default: the last message of `subject`.",
                     accepts=("integer",), least=0),
        "consumer": Field("string", "For `js_fetch`: the durable consumer."),
        "limit": Field("any", "For `js_fetch`: maximum number of messages (100).", accepts=("integer",), least=0),
        "ack": Field("boolean", "For `js_fetch`: acknowledge the messages.", default=True),
        "file": Field("string", "A local file to upload as an object, or to download an object to.", files=True),
        "ref": Field("any", "The reference of a stored result to put as an object."),
        "format": Field("string", "Format of an object.", choices=FORMATS, also=OTHER_NAMES),
        "auth": Field("any", "The connection: a credential's name, a `nats://` URL, or a mapping of fields.",
                      aliases=("credential",), accepts=("string", "mapping")),
        "url": Field("string", "Server URL, if `auth` does not contain it.", aliases=("nats_url", "servers")),
    },
    spec_keys={
        "timeout": f"`connect` and `total` seconds; `total` is the timeout of a request ({REQUEST_TIMEOUT:g}).",
        "inline_bytes": "Largest object returned in `output.data` (16 MiB); a larger one is streamed to `output.ref`.",
    },
    spec_fields={"inline_bytes": count()},
    helpers={"nats": NULLS},
    required_by={"action": _REQUIRED},
    example="- name: announce\n  kind: nats\n  action: js_publish\n  auth: bus\n  subject: orders.created\n"
    '  data: "{{ create.order }}"\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Perform one operation."""
    from noetl.tools.nats import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
