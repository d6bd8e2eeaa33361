"""Topics as source and target of transfers, against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import itertools
import json

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, KafkaException
from noetl_kafka.transfer import TopicTarget

from noetl.testing import SourceConformance, TargetConformance, run_tool
from noetl.tool import TargetCall

numbers = itertools.count()


class TestSource(SourceConformance):
    keeps_columns = False  # with `rows: value` an empty topic has no columns
    rows = [{"id": 1, "name": "Ada", "price": 1.5}, {"id": 2, "name": "日本語 🎉", "price": -0.25}]

    @pytest.fixture
    def place(self, cluster):
        def store(rows):
            topic = cluster.new_topic()
            cluster.produce(topic, *(json.dumps(row) for row in rows))
            return {"kind": "kafka", "auth": cluster.auth, "topic": topic, "rows": "value"}

        return store


class TestTarget(TargetConformance):
    modes = ("append",)
    rolls_back = False  # the mock cluster also delivers messages of aborted transactions

    @pytest.fixture
    def place(self, cluster):
        return lambda: {"kind": "kafka", "auth": cluster.auth, "topic": f"target{next(numbers)}"}

    @pytest.fixture
    def read(self, cluster):
        def read(fields):
            given = {"auth": cluster.auth, "action": "consume", "topic": fields["topic"]}
            return [row["value"] for row in run_tool("kafka", given, timeout=60).data["messages"]]

        return read


def transfer(source, target, **others):
    return run_tool("transfer", {"source": source, "targets": [target], **others}, timeout=60)


def test_messages_have_their_place_and_headers(cluster, tmp_path):
    topic = cluster.new_topic()
    cluster.produce(topic, '{"a": 1}', "no json", partition=3)
    source = {"kind": "kafka", "auth": cluster.auth, "topic": topic}
    assert transfer(source, {"kind": "file", "path": str(tmp_path / "m.parquet")}).error is None
    rows = pq.read_table(tmp_path / "m.parquet").to_pylist()
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        (3, 0, '{"a": 1}'),
        (3, 1, '"no json"'),
    ]


def test_offsets_are_committed_after_the_targets(cluster, tmp_path):
    topic = cluster.new_topic()
    cluster.produce(topic, '{"id": 1}', '{"id": 2}')
    source = {"kind": "kafka", "auth": cluster.auth, "topic": topic, "group": "load", "rows": "value"}
    failed = transfer(source, {"kind": "sqlite", "file": str(tmp_path / "t.db"), "table": "t", "create": False})
    assert failed.error is not None
    assert cluster.committed(topic, "load") == {}
    target = {"kind": "sqlite", "file": str(tmp_path / "t.sqlite"), "table": "t"}
    assert transfer(source, target).data["rows"] == 2
    assert cluster.committed(topic, "load")[0] == 2
    cluster.produce(topic, '{"id": 3}')
    assert transfer(source, target).data["rows"] == 1


def test_the_key_of_a_message_is_that_of_the_row(cluster):
    topic = cluster.new_topic()
    target = {"kind": "kafka", "auth": cluster.auth, "topic": topic, "key": "id"}
    assert transfer([{"id": 7, "v": "x"}], target).error is None
    (row,) = run_tool("kafka", {"auth": cluster.auth, "action": "consume", "topic": topic}, timeout=60).data["messages"]
    assert (row["key"], row["value"]) == ("7", {"id": 7, "v": "x"})


def test_without_a_transaction(cluster):
    target = {"kind": "kafka", "auth": cluster.auth, "topic": cluster.new_topic(), "transaction": False}
    assert transfer([{"id": 7}], target).error is None


def test_a_value_that_is_no_object_is_located(cluster, tmp_path):
    topic = cluster.new_topic()
    cluster.produce(topic, '{"id": 1}', "[2]")
    source = {"kind": "kafka", "auth": cluster.auth, "topic": topic, "rows": "value"}
    outcome = transfer(source, {"kind": "file", "path": str(tmp_path / "m.parquet")})
    assert outcome.error.kind == "schema"
    assert f"{topic}, partition 0, offset 1" in outcome.error.message
    cluster.produce(topic, None, partition=1)
    outcome = transfer({**source, "start": {0: 2}}, {"kind": "file", "path": str(tmp_path / "m.parquet")})
    assert f"the message at {topic}, partition 1, offset 0 has no value, it deletes its key" in outcome.error.message


@pytest.mark.parametrize("place", [{"start": {"0": 100}}, {"group": "again"}])
def test_an_offset_behind_the_end_is_an_error(cluster, tmp_path, place):
    """Such as that of a group whose topic was created again: its messages would never be read."""
    topic = cluster.new_topic()
    cluster.produce(topic, "1")
    given = {"auth": cluster.auth, "action": "commit", "group": "again", "offsets": {topic: {"0": 100}}}
    assert run_tool("kafka", given, timeout=60).error is None
    source = {"kind": "kafka", "auth": cluster.auth, "topic": topic, **place}
    outcome = transfer(source, {"kind": "file", "path": str(tmp_path / "m.parquet")})
    assert (outcome.error.kind, outcome.error.retryable) == ("client_error", False)
    assert "partition 0: the offset 100 is behind the end 1" in outcome.error.message


def test_a_missing_topic_is_named(cluster, tmp_path):
    source = {"kind": "kafka", "auth": cluster.auth, "topic": "no-such-topic"}
    outcome = transfer(source, {"kind": "file", "path": str(tmp_path / "m.parquet")})
    assert (outcome.error.kind, "topic 'no-such-topic'" in outcome.error.message) == ("not_found", True)


class FailingProducer:
    """A transaction that cannot be committed."""

    calls: list[str] = []

    def commit_transaction(self, seconds):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def purge(self):
        self.calls.append("purge")

    def abort_transaction(self, seconds):
        self.calls.append("abort")


def test_a_transaction_that_cannot_be_committed_is_aborted():
    target = TopicTarget(TargetCall("kafka", {}, None))
    target._producer, target._begun = FailingProducer(), True
    with pytest.raises(KafkaException):
        asyncio.run(target.commit())
    asyncio.run(target.abort())
    assert FailingProducer.calls == ["purge", "abort"]


def test_json_keeps_its_digits(cluster, tmp_path):
    topic, text = cluster.new_topic(), '{"n": 0.12345678901234567890123, "big": 123456789012345678901234567890}'
    cluster.produce(topic, text, "no json", None)
    source, file = {"kind": "kafka", "auth": cluster.auth, "topic": topic}, tmp_path / "m.parquet"
    assert run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": str(file)}]}).error is None
    assert pq.read_table(file).column("value").to_pylist() == [text, '"no json"', None]
