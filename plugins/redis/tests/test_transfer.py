"""Redis as source and target: the conformance suites, and what is special about Redis."""

from __future__ import annotations

import itertools
import json
import math
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.testing import SourceConformance, TargetConformance, run_tool

names = itertools.count()


@pytest.fixture
def command(redis_server):
    """Runs commands and returns their replies."""

    def run(*commands):
        outcome = run_tool("redis", {"auth": redis_server, "commands": [list(each) for each in commands]})
        assert outcome.error is None, outcome.error
        return outcome.data

    return run


@pytest.fixture
def transfer(redis_server):
    def run(source, target, **others):
        given = [{"auth": redis_server, **side} if side["kind"] == "redis" else side for side in (source, target)]
        return run_tool("transfer", {"source": given[0], "targets": [given[1]], **others})

    return run


@pytest.fixture
def connections(command):
    return lambda: sum(
        "noetl" in line or "cmd=" in line for line in command(["CLIENT", "LIST"], ["PING"])[0].splitlines()
    )


class TestKeys(SourceConformance):
    keeps_columns = False
    ordered = False

    @pytest.fixture
    def place(self, command, redis_server):
        def place(rows):
            name = f"s{next(names)}"
            for start in range(0, len(rows), 500):
                part = rows[start : start + 500]
                command(["PING"], *(["SET", f"{name}:{row['id']}", json.dumps(row)] for row in part))
            return {"kind": "redis", "auth": redis_server, "name": f"{name}:*"}

        return place


class TestList(TestKeys):
    ordered = True

    @pytest.fixture
    def place(self, command, redis_server):
        def place(rows):
            name = f"l{next(names)}"
            command(["PING"], *(["RPUSH", name, json.dumps(row)] for row in rows))
            return {"kind": "redis", "auth": redis_server, "name": name}

        return place


class TestJsonTarget(TargetConformance):
    creates = False
    merges = False

    def _with_key(self, target, *columns):
        return {**target, "name": ":".join([target["name"], *(f"{{{name}}}" for name in columns)])}

    @pytest.fixture
    def place(self, redis_server):
        return lambda: {"kind": "redis", "auth": redis_server, "name": f"t{next(names)}:{{id}}"}

    @pytest.fixture
    def read(self, command):
        def read(fields):
            found = command(["PING"], ["KEYS", re.sub(r"{\w+}", "*", fields["name"])])[1]
            return [json.loads(text) for text in command(["PING"], *(["GET", key] for key in found))[1:]]

        return read


class TestHashTarget(TestJsonTarget):
    """Values are text, and nulls are left out."""

    @pytest.fixture
    def place(self, redis_server):
        return lambda: {"kind": "redis", "auth": redis_server, "name": f"h{next(names)}:{{id}}", "format": "hash"}

    @pytest.fixture
    def read(self, command):
        def read(fields):
            found = command(["PING"], ["KEYS", re.sub(r"{\w+}", "*", fields["name"])])[1]
            replies = command(["PING"], *(["HGETALL", key] for key in found))[1:]
            columns = {name for row in replies for name in row} | (
                {"note"} if any("price" in row for row in replies) else set()
            )
            numbers = {"id": int, "price": float}
            return [
                {name: numbers.get(name, str)(row[name]) if name in row else None for name in sorted(columns)}
                for row in replies
            ]

        return read


class TestListTarget(TestJsonTarget):
    modes = ("append", "replace")

    @pytest.fixture
    def place(self, redis_server):
        return lambda: {"kind": "redis", "auth": redis_server, "name": f"l{next(names)}", "format": "list"}

    @pytest.fixture
    def read(self, command):
        return lambda fields: [json.loads(text) for text in command(["PING"], ["LRANGE", fields["name"], 0, -1])[1]]

    def test_a_mode_that_is_not_supported_is_reported(self, place, write):
        outcome = write(self.rows, {**place(), "mode": "upsert", "key": "id"})
        assert outcome.error.kind == "schema" and "use format json or hash" in outcome.error.message


def test_a_stream_is_written_and_read_from_an_id(transfer, command, tmp_path):
    rows = [{"id": number, "note": None if number else "first"} for number in range(4)]
    target = {"kind": "redis", "name": "events", "format": "stream"}
    assert transfer({"kind": "data", "data": rows}, target).error is None
    entries = command(["PING"], ["XRANGE", "events", "-", "+"])[1]
    assert len(entries) == 4
    file = tmp_path / "events.jsonl"
    source = {"kind": "redis", "name": "events", "key_column": "entry", "after": entries[1][0]}
    assert transfer(source, {"kind": "file", "path": str(file)}).error is None
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"entry": entries[2][0], "id": "2"},
        {"entry": entries[3][0], "id": "3"},
    ]


def test_keys_expire_and_replace_deletes_only_its_own_keys(transfer, command):
    command(["SET", "other:1", "{}"], ["SET", "o:9", "{}"])
    target = {"kind": "redis", "name": "o:{id}", "mode": "replace", "ttl": 100}
    assert transfer({"kind": "data", "data": [{"id": 1}, {"id": 2}]}, target).error is None
    found, ttl = command(["KEYS", "o*"], ["TTL", "o:1"])
    assert sorted(found) == ["o:1", "o:2", "other:1"] and 0 < ttl <= 100
    assert transfer({"kind": "data", "data": []}, target).error is None
    assert command(["KEYS", "o*"], ["PING"])[0] == ["other:1"]


def test_sorted_sets_and_plain_text_are_rows(transfer, command, tmp_path):
    command(["ZADD", "scores", 1.5, "ada", 2, "bob"], ["SET", "plain:1", "no json"])
    file = tmp_path / "x.jsonl"
    for keys, rows in (
        ("scores", [{"value": "ada", "score": 1.5}, {"value": "bob", "score": 2.0}]),
        ("plain:*", [{"value": "no json"}]),
    ):
        assert transfer({"kind": "redis", "name": keys}, {"kind": "file", "path": str(file)}).error is None
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"name": "x"}, "needs a column"),
        ({"name": "x:{nothing}"}, "'nothing'"),
        ({"name": "x:{name}", "mode": "upsert", "key": "id"}, "key column 'id'"),
        ({"name": "x:{id}", "format": "list"}, "columns in `name`"),
    ],
)
def test_a_wrong_target_is_reported(transfer, target, said):
    outcome = transfer({"kind": "data", "data": [{"id": 1, "name": "a"}]}, {"kind": "redis", **target})
    assert outcome.error.kind == "schema" and said in outcome.error.message


def test_a_list_in_a_pattern_is_reported(transfer, command, tmp_path):
    command(["RPUSH", "mixed:1", "a"], ["PING"])
    outcome = transfer({"kind": "redis", "name": "mixed:*"}, {"kind": "file", "path": str(tmp_path / "x.jsonl")})
    assert outcome.error.kind == "schema" and "is a list" in outcome.error.message


def test_values_that_json_does_not_have(transfer, command, tmp_path):
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    row = {"id": 1, "bytes": b"\xff\0", "empty": b"", "float": math.nan, "time": timedelta(days=1, seconds=3),
           "decimal": Decimal("1.50"), "moment": moment, "none": None}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    said = {"id": 1, "bytes": "/wA=", "empty": "", "float": "NaN", "time": "P1DT3S", "decimal": "1.50",
            "moment": "2026-01-01T11:00:00+00:00", "none": None}  # fmt: skip
    for format in ("json", "hash"):
        target = {"kind": "redis", "name": f"{format}-values:{{id}}", "format": format}
        outcome = transfer({"kind": "file", "path": str(tmp_path / "rows.parquet")}, target)
        assert outcome.error is None, outcome.error
    text, fields = command(["GET", "json-values:1"], ["HGETALL", "hash-values:1"])
    assert json.loads(text) == said
    assert fields == {name: str(value) for name, value in said.items() if value is not None}


def test_bytes_of_the_server_that_are_no_text_are_base64(transfer, command, tmp_path):
    command(["EVAL", r"return redis.call('HSET', 'raw:1', 'v', '\255')", 0],
            ["EVAL", r"return redis.call('SET', 'raw:\255', '\215m\248')", 0])  # fmt: skip
    file = tmp_path / "raw.jsonl"
    source = {"kind": "redis", "name": "raw:*", "key_column": "key", "types": {"v": "string", "value": "string"}}
    assert transfer(source, {"kind": "file", "path": str(file)}).error is None
    rows = {row["key"]: row for row in map(json.loads, file.read_text().splitlines())}
    # The second value is 1234 in base64: it is not a number.
    assert (rows["raw:1"]["v"], rows["cmF3Ov8="]["value"]) == ("/w==", "1234")


@pytest.mark.parametrize(("format", "name"), [("hash", "taken:{id}"), ("list", "taken:2"), ("stream", "taken:2")])
def test_a_key_of_another_type_is_found_before_anything_is_written(transfer, command, format, name):
    command(["FLUSHALL"], ["SET", "taken:2", "x"])
    rows = [{"id": number} for number in (1, 2, 3)]
    outcome = transfer({"kind": "data", "data": rows}, {"kind": "redis", "name": name, "format": format})
    assert outcome.error.kind == "schema"
    assert f"the key 'taken:2' exists and is a string, not a {format}" in outcome.error.message
    assert command(["KEYS", "*"], ["PING"])[0] == ["taken:2"]


def test_a_wide_row_is_written_whole(transfer, command):
    wide = {"id": 1, **{f"c{number}": number for number in range(5000)}}
    source = {"kind": "data", "data": [wide]}
    assert transfer(source, {"kind": "redis", "name": "wide:{id}", "format": "hash"}).error is None
    assert command(["HLEN", "wide:1"], ["PING"])[0] == 5001
    outcome = transfer(source, {"kind": "redis", "name": "wide", "format": "stream"})
    assert outcome.error.kind == "schema" and "at most 3,900 columns" in outcome.error.message


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("~* +@all -eval", "no permissions to run the 'eval' command; a target needs the keys `noetl:staging:*`"),
        ("~* +@all -set -hset -rpush", "can't run this command"),
        ("~row:* +@all", "no permissions to access one of the keys"),
    ],
)
@pytest.mark.parametrize(("format", "name"), [("json", "row:{id}"), ("hash", "row:{id}"), ("list", "row:all")])
def test_replace_deletes_nothing_if_the_user_may_not_write(transfer, command, redis_server, rights, said, format, name):
    command(["FLUSHALL"], ["ACL", "SETUSER", "limited", "reset", "on", ">secret2", *rights.split()])
    target = {"kind": "redis", "auth": redis_server, "name": name, "format": format, "mode": "replace"}
    assert transfer({"kind": "data", "data": [{"id": 1, "v": "old"}]}, target).error is None
    stored = command(["KEYS", "*"])
    other = {**target, "auth": {**redis_server, "user": "limited", "password": "secret2"}}
    problem = transfer({"kind": "data", "data": [{"id": 2, "v": "private"}]}, other).error
    assert (problem.kind, problem.retryable) == ("auth", False), problem
    assert said in problem.message or "no permissions to run the 'rpush' command" in problem.message
    assert "private" not in problem.message
    assert command(["KEYS", "*"]) == stored
