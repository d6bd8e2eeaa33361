"""Kind `kafka`, topics as source and target of transfers, and a trigger for messages."""

from __future__ import annotations

from noetl.tool import Field, SourceSpec, TargetSpec, ToolSpec, TriggerSpec, auth_field, count, lazy

ACTIONS = ("produce", "consume", "commit")
FORMATS = ("json", "text", "bytes")
AUTH = auth_field(
    "The cluster: a credential with `servers` (host:port, ...), `user`, `password`, `mechanism`, `tls`, `ca`; "
    "`kafka://host:port`; or a mapping. Workers with a network policy connect only to clusters of stored credentials: "
    "brokers that a cluster advertises cannot be checked."
)
READING = {
    "topic": Field("string", "The topic."),
    "group": Field("string", "The consumer group: reading begins at its committed offsets."),
    "start": Field("any", "Without committed offsets: `earliest` (default), `latest`, or partition -> offset.",
                   accepts=("string", "mapping"), choices=("earliest", "latest"), each=count(least=0)),
    "limit": Field("integer", "Largest number of messages.", least=1, aliases=("max_messages",)),
    "format": Field("string", "How keys and values are decoded: `json` (text if it is no JSON; default), `text`, or "
                    "`bytes` (base64).", choices=FORMATS),
    "config": Field("mapping", "Further settings of librdkafka."),
}  # fmt: skip

SPEC = ToolSpec(
    kind="kafka",
    doc="Produces messages to a topic of Kafka, and consumes messages up to a bound: the messages that a topic has "
    "when the task starts, at most `limit`, for at most `wait` seconds. `output.data` of `consume` has `messages` and "
    "`offsets`, the next offset of every partition.",
    fields={
        "action": Field("string", "What to do.", choices=ACTIONS, required=True),
        "auth": AUTH,
        **READING,
        "wait": Field("number", "Seconds to wait for messages that are not there yet (consume).", default=0, least=0),
        "commit": Field("boolean", "Commit the offsets of `group` after the messages are read. Default: no; a later "
                        "task with action `commit` does that after the messages are processed."),
        "messages": Field("list", "Messages to produce: `{value, key, headers, partition}`, or values."),
        "value": Field("any", "One message to produce; what is not text is encoded as JSON."),
        "key": Field("any", "Key of the one message."),
        "headers": Field("mapping", "Headers of the one message."),
        "offsets": Field("mapping", "Offsets to commit: topic -> partition -> next offset, as `consume` returns them."),
    },
    required_by={
        "action": {"produce": ("topic", "messages|value"), "consume": ("topic",), "commit": ("group", "offsets")}
    },
    spec_keys={"timeout": "`connect` and `total` seconds."},
    helpers={"kafka": {"count": None}},
    example='kind: kafka\nauth: events\naction: produce\ntopic: orders\nkey: "{{ ctx.id }}"\n'
    'value: "{{ ctx.order }}"\n',
)  # fmt: skip


run = lazy("noetl_kafka.task:run")
explain = lazy("noetl_kafka.connection:explain")

SOURCE = SourceSpec(
    kind="kafka",
    doc="The messages that a topic has when the transfer starts. With `group`, offsets are committed after all targets "
    "have committed, so every message arrives at least once.",
    read=lazy("noetl_kafka.transfer:read"),
    finish=lazy("noetl_kafka.transfer:finish"),
    explain=explain,
    fields={
        "auth": AUTH,
        **READING,
        "topic": Field("string", "The topic.", required=True),
        "rows": Field("string", "`message` (default): a row has `topic partition offset timestamp key value headers`. "
                      "`value`: a row is the JSON object of the value.", choices=("message", "value")),
    },
    example="source: {kind: kafka, auth: events, topic: orders, group: warehouse, rows: value}",
)  # fmt: skip
TARGET = TargetSpec(
    kind="kafka",
    doc="Rows as messages: the value is the row as JSON, the key is that of `key`. All messages of a transfer are one "
    "Kafka transaction.",
    open=lazy("noetl_kafka.transfer:TopicTarget"),
    explain=explain,
    fields={
        "auth": AUTH,
        "topic": Field("string", "The topic."),
        "transaction": Field("boolean", "`false`: produce without a transaction (for users without the right to it)."),
        "config": Field("mapping", "Further settings of librdkafka."),
    },
    place="topic",
    modes=("append",),
    example="targets:\n  - {kind: kafka, auth: events, topic: orders, key: id}",
)
TRIGGER = TriggerSpec(
    kind="kafka",
    doc="Starts an execution for every message of a topic, at least once, each offset once.",
    listen=lazy("noetl_kafka.trigger:listen"),
    fields={
        "topic": Field("string", "The topic.", required=True),
        "group": Field("string", "The consumer group; default: one of its own."),
        "start": Field("string", "Where a new group begins.", choices=("new", "all"), default="new"),
        "servers": Field("string", "host:port, ... of the cluster, if the credential does not contain them."),
    },
    example="kind: KafkaTrigger\nmetadata: {name: orders}\n"
    "spec: {path: orders/import, topic: orders, credential: events}",
)
