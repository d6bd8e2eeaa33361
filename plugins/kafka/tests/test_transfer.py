"""Topics as source and target of transfers, against librdkafka's mock cluster."""

from __future__ import annotations

import itertools
import json

import pyarrow.parquet as pq
import pytest

from noetl.testing import SourceConformance, TargetConformance, run_tool

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


def test_json_keeps_its_digits(cluster, tmp_path):
    topic, text = cluster.new_topic(), '{"n": 0.12345678901234567890123, "big": 123456789012345678901234567890}'
    cluster.produce(topic, text, "no json", None)
    source, file = {"kind": "kafka", "auth": cluster.auth, "topic": topic}, tmp_path / "m.parquet"
    assert run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": str(file)}]}).error is None
    assert pq.read_table(file).column("value").to_pylist() == [text, '"no json"', None]
