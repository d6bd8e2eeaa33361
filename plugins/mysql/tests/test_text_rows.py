"""Rows as the server sends them: values of every length, the ends of results, errors and slow readers."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import aclosing

import asyncmy
import pyarrow as pa
import pytest
from noetl_mysql import connection
from noetl_mysql.source import read

from noetl.testing import ToolHost, run_tool
from noetl.tool import SourceCall

LENGTHS = (0, 1, 250, 251, 252, 65535, 65536, 0xFFFFFF - 8, 0xFFFFFF, 0x1000000)


async def batches(server, query, rows=10_000):
    call = SourceCall("mysql", {"auth": server.auth, "query": query}, ToolHost(), batch_rows=rows)
    async with aclosing(read(call)) as stream:
        async for batch in stream:
            yield batch


def table(server, query, rows=10_000):
    async def collect():
        return pa.Table.from_batches([batch async for batch in batches(server, query, rows)])

    return asyncio.run(collect())


def test_values_of_every_length(server):
    """A length has one, three, four or nine bytes, and a row of 16 MB has several packets."""
    server.sql("SET GLOBAL max_allowed_packet = 64 * 1024 * 1024")
    row = "SELECT {0} AS size, NULL AS nothing, repeat('ü', {0} / 2) AS text, repeat(x'ff', {0}) AS bytes, 7 AS last"
    found = table(server, " UNION ALL ".join(row.format(length) for length in LENGTHS))
    assert found["size"].to_pylist() == list(LENGTHS)
    assert found["nothing"].null_count == len(LENGTHS)
    for length, text, octets, last in zip(LENGTHS, found["text"], found["bytes"], found["last"], strict=True):
        assert text.as_py() == "ü" * len(text.as_py()) and len(text.as_py()) in (length // 2, (length + 1) // 2)
        assert octets.as_py() == b"\xff" * length and last.as_py() == 7


@pytest.mark.parametrize("rows", [1, 7, 1000, 10_000])
def test_no_row_is_lost_between_batches(server, rows):
    query = "SELECT seq AS n, repeat('x', seq % 300) AS t, IF(seq % 3, NULL, seq) AS m FROM seq_1_to_1000"
    found = table(server, query, rows)
    assert found["n"].to_pylist() == list(range(1, 1001))
    assert [len(text) for text in found["t"].to_pylist()] == [n % 300 for n in range(1, 1001)]
    assert found["m"].to_pylist() == [None if n % 3 else n for n in range(1, 1001)]


def test_a_result_without_rows_has_its_columns(server):
    found = table(server, "SELECT seq, CAST(seq AS DECIMAL(12, 3)) AS d FROM seq_1_to_10 WHERE seq > 10")
    assert (found.num_rows, found.schema.names) == (0, ["seq", "d"])
    assert found.schema.field("d").type == pa.decimal128(12, 3)


def test_bits_and_numbers_with_leading_zeros(server):
    name = server.create_table([], "b BIT(17), z INT(6) ZEROFILL, d DECIMAL(9, 2) ZEROFILL, u BIGINT UNSIGNED ZEROFILL")
    server.sql(f"INSERT INTO {name} VALUES (65538, 42, 1.5, 18446744073709551615), (0, 0, 0, 0)")
    first, second = table(server, f"SELECT * FROM {name}").to_pylist()
    assert (first["b"], first["z"], str(first["d"]), first["u"]) == (b"\x01\x00\x02", 42, "1.50", 2**64 - 1)
    assert (second["b"], second["z"], str(second["d"]), second["u"]) == (b"\x00\x00\x00", 0, "0.00", 0)


@pytest.mark.parametrize(
    ("type", "value", "said"),
    [
        ("DATE", "0000-00-00", "column 'v' has the value '0000-00-00', which is not a date; use NULLIF"),
        ("DATE", "2024-00-00", "column 'v' has the value '2024-00-00', which is not a date"),
        ("DATE", "0000-01-01", "column 'v' has the value '0000-01-01', which is not a date"),
        ("DATETIME", "0000-00-00 00:00:00", "column 'v' has the value '0000-00-00 00:00:00', which is not a date"),
        ("DATETIME(3)", "0000-02-03 04:05:06", "'0000-02-03 04:05:06.000', which is not a date"),
        ("TIMESTAMP NULL", "0000-00-00 00:00:00", "'0000-00-00 00:00:00', which is not a date"),
        ("TIME", "24:00:00", "column 'v' has the TIME value 24:00:00, which is not a time of day; use TIME_TO_SEC"),
        ("TIME", "-00:00:01", "column 'v' has the TIME value -00:00:01, which is not a time of day"),
        ("TIME(6)", "838:59:59", "column 'v' has the TIME value 838:59:59.000000, which is not a time of day"),
    ],
)
def test_a_value_that_has_no_equal_is_named(server, tmp_path, type, value, said):
    """Among others that can be read: the transfer fails, and no value is changed into another."""
    name = server.create_table([], f"id INT, v {type}")
    good = "12:00:00" if type.startswith("TIME") and "STAMP" not in type else "2024-02-29"
    server.sql(f"SET sql_mode = ''; INSERT INTO {name} VALUES (1, '{good}'), (2, NULL), (3, '{value}'), (4, '{good}')")
    source = {"kind": "mysql", "auth": server.auth, "table": name}
    outcome = run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": str(tmp_path / "x.csv")}]})
    assert outcome.error is not None and said in outcome.error.message, outcome.error
    assert not (tmp_path / "x.csv").exists()
    problem = run_tool("mysql", {"auth": server.auth, "command": f"SELECT v FROM {name}"}).error
    assert problem.kind == "schema"
    assert said in problem.message


def test_the_first_and_last_moments(server):
    query = (
        "SELECT CAST('0001-01-01' AS DATE) AS a, CAST('9999-12-31 23:59:59.999999' AS DATETIME(6)) AS b, "
        "CAST('0001-01-01 00:00:00.1' AS DATETIME(1)) AS c, CAST('00:00:00' AS TIME) AS d"
    )
    assert table(server, query).to_pylist() == [
        {
            "a": datetime.date(1, 1, 1),
            "b": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
            "c": datetime.datetime(1, 1, 1, 0, 0, 0, 100000),
            "d": datetime.time(0),
        }
    ]


def test_a_procedure_with_several_results(server):
    """The rows of the first are returned; the others and the final status are read before the next statement."""
    name = server.new_name()

    async def create():
        async with asyncmy.connect(**server.auth) as opened, opened.cursor() as cursor:
            body = "BEGIN SELECT seq AS n FROM seq_1_to_9000; SELECT 'other' AS o; END"
            await cursor.execute(f"CREATE PROCEDURE {name}() {body}")

    asyncio.run(create())
    outcome = run_tool("mysql", {"auth": server.auth, "command": f"CALL {name}(); SELECT 5 AS five"})
    assert outcome.error is None, outcome.error
    assert outcome.data["command_0"]["row_count"] == 9000
    assert outcome.data["rows"] == [{"five": 5}]


def test_an_error_after_rows_is_an_error(server, tmp_path):
    """The second row fails when the first was sent."""
    query = "SELECT seq, (SELECT s.seq FROM seq_1_to_2 AS s WHERE s.seq < t.seq) AS v FROM seq_1_to_100000 AS t"
    source = {"kind": "mysql", "auth": server.auth, "query": query}
    outcome = run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": str(tmp_path / "x.csv")}]})
    assert outcome.error is not None and "more than 1 row" in outcome.error.message
    assert not (tmp_path / "x.csv").exists()


BIG = "SELECT seq, repeat('x', 1000) AS t FROM seq_1_to_60000"
PROCESS = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT seq, repeat%60000'"


def test_a_slow_reader_does_not_collect_the_result_in_memory(server, monkeypatch):
    """While a batch is used, nothing is received: the server waits until it can send."""
    opened, real = [], connection.connect

    async def connect(*arguments):
        opened.append(await real(*arguments))
        return opened[-1]

    monkeypatch.setattr(connection, "connect", connect)

    async def scenario():
        stream = batches(server, BIG, rows=100)
        await anext(stream)
        (reader,) = opened
        before = -1
        while (received := reader._proto.length) != before:
            before = received
            await asyncio.sleep(0.3)
        assert received < 2 << 20
        read = 100
        async for batch in stream:
            read += batch.num_rows
        return read

    assert asyncio.run(scenario()) == 60_000


def test_a_lost_connection_in_the_middle_is_an_error(server):
    async def scenario():
        read = 0
        async for batch in batches(server, BIG, rows=100):
            if not read:
                ((thread,),) = [batch["id"].to_pylist() async for batch in batches(server, PROCESS)]
                await asyncio.to_thread(server.sql, f"KILL CONNECTION {thread}")
            read += batch.num_rows

    with pytest.raises(Exception, match=r"Lost connection|killed|reset by peer"):
        asyncio.run(scenario())
