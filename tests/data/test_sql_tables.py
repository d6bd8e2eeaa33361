"""The tables that statements read and write."""

from __future__ import annotations

import pytest

from noetl.data.sql.sql_tables import tables_of


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
        ("MERGE INTO t USING (SELECT * FROM s JOIN r USING (id)) q ON t.id = q.id", ["s", "r"], ["t"]),
        ("DELETE FROM t USING a JOIN b USING (id, n) WHERE t.id = a.id", ["a", "b"], ["t"]),
        ("WITH c AS (SELECT * FROM s JOIN r USING (id)) MERGE INTO t USING c ON true", ["s", "r"], ["t"]),
        ("CREATE VIEW v AS WITH c AS (TABLE s) SELECT * FROM c", ["s"], ["v"]),
        ("SELECT * FROM ROWS FROM (f(1), g(2)) r, t", ["t"], []),
        ("COPY t (a, b) FROM STDIN", [], ["t"]),
        ("COPY t TO STDOUT", ["t"], []),
        ("COPY (SELECT * FROM t) TO STDOUT", ["t"], []),
        ("SELECT extract(year FROM d), substring(a FROM 1 FOR 2) FROM t WHERE a IS DISTINCT FROM b", ["t"], []),
        ("SELECT * FROM generate_series(1, 3) g, t", ["t"], []),
        ("SELECT * FROM (SELECT * FROM t) x, u AS v (a, b), ONLY (w) WHERE a IN (1, 2)", ["t", "u", "w"], []),
        ("SELECT * FROM (t JOIN u ON f(a, b)), v ORDER BY x, y", ["t", "u", "v"], []),
        ("CREATE OR REPLACE VIEW s.v AS SELECT * FROM t", ["t"], ["s.v"]),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS v (a) AS SELECT a FROM t", ["t"], ["v"]),
        ("CREATE TEMP VIEW v AS SELECT * FROM t; INSERT INTO o SELECT * FROM v", ["t"], ["o"]),
        ("SELECT * INTO o FROM t; SELECT * INTO TEMP x FROM o; SELECT * FROM x", ["t", "o"], ["o"]),
        ("CREATE UNLOGGED TABLE o AS TABLE t", ["t"], ["o"]),
        ("CREATE TABLE o (t_id int REFERENCES t (id) ON DELETE CASCADE ON UPDATE CASCADE)", [], ["o"]),
        ("CREATE TRIGGER x AFTER INSERT OR UPDATE OF a ON o FOR EACH ROW EXECUTE FUNCTION f()", [], []),
        ("REVOKE SELECT, UPDATE ON o FROM bob", [], []),
        ("SHOW COLUMNS FROM t; FETCH NEXT FROM pages", [], []),
        ("WITH orders AS (SELECT * FROM orders) SELECT * FROM orders", ["orders"], []),
        ("SELECT * FROM a; WITH a AS (SELECT 1) SELECT * FROM a", ["a"], []),
        ("WITH RECURSIVE a (n) AS (SELECT 1 UNION SELECT n FROM a) INSERT INTO o SELECT * FROM a, c", ["c"], ["o"]),
        ("WITH o AS (SELECT * FROM t) INSERT INTO o SELECT * FROM o", ["t"], ["o"]),
        ('INSERT INTO Orders SELECT * FROM "Orders" JOIN S.T USING (id)', ["Orders", "s.t"], ["orders"]),
        ("EXPLAIN ANALYZE UPDATE o SET a = 1, b = 2", [], ["o"]),
        ("SELECT * FROM read_csv('x.csv')", [], []),
        ("SELECT 1 -- FROM nothing\n/* FROM nothing */", [], []),
        ("SELECT * FROM t FOR UPDATE", ["t"], []),
        ("DROP TABLE t; ALTER TABLE u ADD COLUMN a int", [], []),
        ("BEGIN; SELECT 1; COMMIT", [], []),
        ("REFRESH MATERIALIZED VIEW CONCURRENTLY s.v WITH NO DATA", [], ["s.v"]),
        ("CREATE TEMP TABLE x AS SELECT * FROM s; SELECT * FROM pg_temp.x", ["s"], []),
        ("WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT * FROM t) SELECT * FROM a", ["t"], []),
        ("SELECT * FROM (WITH x AS (SELECT * FROM u) SELECT * FROM x) y, x", ["u", "x"], []),
        (
            "SELECT * FROM (WITH x AS (SELECT * FROM u), y AS (SELECT * FROM v) SELECT * FROM x, y) z, w",
            ["u", "v", "w"],
            [],
        ),
        ("SELECT * FROM unnest(a) WITH ORDINALITY AS x, t", ["t"], []),
        ("CREATE RECURSIVE VIEW v (n) AS SELECT 1 UNION SELECT n FROM v, t", ["t"], ["v"]),
        ("INSERT INTO o TABLE t", ["t"], ["o"]),
        ("IMPORT FOREIGN SCHEMA x FROM SERVER y INTO z", [], []),
        ("SELECT * INTO UNLOGGED o FROM t", ["t"], ["o"]),
        ("SELECT * FROM łąka JOIN Größe USING (id)", ["łąka", "größe"], []),
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
    ("dialect", "text", "reads", "writes"),
    [
        ("mysql", "INSERT o SELECT * FROM t", ["t"], ["o"]),
        ("mysql", "REPLACE LOW_PRIORITY o VALUES (1)", [], ["o"]),
        ("mysql", "DELETE x FROM o x JOIN t ON true", ["t"], ["o"]),
        ("mysql", "LOAD DATA INFILE 'x' INTO TABLE o", [], ["o"]),
        ("mysql", "SELECT * FROM t INTO OUTFILE 'x'", ["t"], []),
        ("sqlite", "UPDATE OR IGNORE o SET a = 1", [], ["o"]),
        ("sqlite", "INSERT OR REPLACE INTO o SELECT * FROM T", ["T"], ["o"]),
        ("mysql", "UPDATE o, t SET o.a = t.a", ["t"], ["o"]),
        ("mysql", "DELETE o, x FROM o JOIN s.u AS x ON true JOIN t ON true", ["t"], ["o", "s.u"]),
        ("mysql", "DELETE FROM o USING o JOIN t ON true", ["t"], ["o"]),
        ("mysql", "SELECT * FROM t FORCE INDEX FOR JOIN (k) JOIN u ON true", ["t", "u"], []),
        ("mysql", "SELECT 1 FROM DUAL", [], []),
        ("sqlite", "INSERT INTO [my o] SELECT * FROM `t`", ["t"], ["my o"]),
        ("ansi", "SELECT * FROM `p.d.t`", ["p.d.t"], []),
        ("duckdb", "FROM t SELECT a, b", ["t"], []),
        (
            "duckdb",
            "SUMMARIZE t; PIVOT u ON a USING sum(b); UNPIVOT v ON a, b INTO NAME n VALUE x",
            ["t", "u", "v"],
            [],
        ),
        ("duckdb", "CREATE TABLE o AS SELECT * FROM (UNPIVOT t ON COLUMNS(*) INTO NAME n VALUE x)", ["t"], ["o"]),
        ("ansi", "INSERT OVERWRITE TABLE o SELECT * FROM t", ["t"], ["o"]),
        ("ansi", "INSERT ALL INTO a VALUES (1) INTO b VALUES (2) SELECT * FROM t", ["t"], ["a", "b"]),
        ("ansi", "COPY INTO o FROM @stage/x", [], ["o"]),
        ("ansi", "INSERT INTO FUNCTION s3('https://k:secret@h/x') SELECT * FROM t", ["t"], []),
        ("ansi", "SELECT * FROM t FINAL ARRAY JOIN x", ["t"], []),
    ],
)
def test_tables_of_other_databases(dialect, text, reads, writes):
    found = tables_of(text, dialect)
    assert (list(found.reads), list(found.writes)) == (reads, writes)


@pytest.mark.parametrize(
    "text", ["SELECT * FROM", "FROM", "INSERT INTO", "((((", "WITH", "UPDATE", "COPY", "CREATE TABLE", "FROM ,,"]
)
def test_what_is_no_statement_has_no_tables(text):
    assert not any(tables_of(text))


@pytest.mark.parametrize(
    ("text", "read", "written"),
    [
        ("SELECT * FROM 'in/*.csv' a JOIN \"b.parquet\" USING (id)", ["in/*.csv"], []),
        ("FROM read_csv('a.csv', delim = ';', types = {'x': 'INT'})", ["a.csv"], []),
        ("CREATE TABLE o AS FROM read_parquet(['s3://b/1.parquet', '2.parquet'], filename = 'y'), t", ["s3://b/1.parquet", "2.parquet"], []),
        ("COPY (SELECT * FROM 'a.csv' WHERE x = 'y') TO 'o''s.parquet' (FORMAT 'parquet')", ["a.csv"], ["o's.parquet"]),
        ("COPY t TO 'o.csv'; COPY t FROM 'i.csv' (HEADER)", ["i.csv"], ["o.csv"]),
        ("SELECT 'x' AS a, coalesce(b, 'c') FROM t WHERE d IN ('e') AND f LIKE 'g'", [], []),
    ],
)  # fmt: skip
def test_files_of_duckdb(text, read, written):
    found = tables_of(text, "duckdb")
    assert (list(found.files_read), list(found.files_written)) == (read, written)


@pytest.mark.parametrize(
    ("dialect", "text", "attached"),
    [
        ("duckdb", "ATTACH 'x/other.duckdb'; SELECT * FROM other.t", {"other": ("x/other.duckdb", "")}),
        ("duckdb", "ATTACH IF NOT EXISTS 'dbname=d' AS Pg (TYPE postgres, READ_ONLY)", {"pg": ("dbname=d", "postgres")}),
        ("sqlite", "ATTACH DATABASE 'o.db' AS o", {"o": ("o.db", "")}),
        ("duckdb", "ATTACH", {}),
    ],
)  # fmt: skip
def test_attached_databases(dialect, text, attached):
    assert dict(tables_of(text, dialect).attached) == attached
