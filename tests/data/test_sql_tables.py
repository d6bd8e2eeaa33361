"""The tables that statements read and write."""

from __future__ import annotations

import pytest

from noetl.data.sql_tables import tables_of


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("SELECT * FROM orders", ["orders"], []),
        ("select a from s.orders o, \"Customers\" as c where o.x = 'from nowhere'", ["s.orders", "Customers"], []),
        ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN LATERAL (SELECT 1 FROM c) AS d ON true", ["a", "b", "c"], []),
        ("SELECT * FROM (SELECT * FROM inner_table) x JOIN y USING (id)", ["inner_table", "y"], []),
        ("INSERT INTO t (a) SELECT a FROM s", ["s"], ["t"]),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2", [], ["t"]),
        ("UPDATE ONLY t SET a = s.a FROM s WHERE t.id = s.id", ["s"], ["t"]),
        ("DELETE FROM t USING s WHERE t.id = s.id", ["s"], ["t"]),
        ("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = 1", ["s"], ["t"]),
        (
            "WITH a AS (SELECT * FROM x), b (n) AS MATERIALIZED (SELECT n FROM a) SELECT * FROM b JOIN c ON true",
            ["x", "c"],
            [],
        ),
        ("WITH moved AS (DELETE FROM old RETURNING *) INSERT INTO new SELECT * FROM moved", [], ["old", "new"]),
        ("CREATE TABLE IF NOT EXISTS s.t AS SELECT * FROM u", ["u"], ["s.t"]),
        ("CREATE TEMP TABLE x AS SELECT * FROM u; INSERT INTO t SELECT * FROM x", ["u"], ["t"]),
        ("TRUNCATE TABLE a, b", [], ["a", "b"]),
        ("COPY t (a, b) FROM STDIN", [], ["t"]),
        ("COPY t TO STDOUT", ["t"], []),
        ("COPY (SELECT * FROM t) TO STDOUT", ["t"], []),
        ("SELECT extract(year FROM d), substring(a FROM 1 FOR 2) FROM t WHERE a IS DISTINCT FROM b", ["t"], []),
        ("SELECT * FROM generate_series(1, 3) g, t", [], []),
        ("SELECT * FROM read_csv('x.csv')", [], []),
        ("SELECT 1 -- FROM nothing\n/* FROM nothing */", [], []),
        ("SELECT * FROM t FOR UPDATE", ["t"], []),
        ("DROP TABLE t; ALTER TABLE u ADD COLUMN a int", [], []),
        ("BEGIN; SELECT 1; COMMIT", [], []),
        ("", [], []),
    ],
)
def test_tables(text, reads, writes):
    found = tables_of(text)
    assert (list(found.reads), list(found.writes)) == (reads, writes)


def test_names_in_backticks():
    found = tables_of("INSERT INTO `a b`.`t` SELECT * FROM `u` ON DUPLICATE KEY UPDATE x = 1", "mysql")
    assert (found.reads, found.writes) == (("u",), ("a b.t",))


@pytest.mark.parametrize(
    "text", ["SELECT * FROM", "FROM", "INSERT INTO", "((((", "WITH", "UPDATE", "COPY", "CREATE TABLE", "FROM ,,"]
)
def test_what_is_no_statement_has_no_tables(text):
    assert tables_of(text) == ((), ())
