# ruff: noqa: E501 - queries and tables of cases
"""The peak memory of transfers, each in a process of `noetl run`: sizes and shapes that must not matter.

    python -m bench.memory [--data FOLDER] [CASE ...]

It prints the highest resident memory of the process (with its children), and its CPU time. The inputs are several times
as large as the memory that a transfer may take. `FOLDER` keeps them for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from bench.connectors import mariadb, plugin_environment
from devcluster import services

LIMIT_MB = 300


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not shown."""


class Inputs:
    """The files and servers of the cases, made when they are first used."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        self._stack = stack
        self._dsn: str | None = None
        self._mysql: str | None = None

    def query(self, name: str, query: str, options: str = "") -> str:
        """A file with the rows of a query of DuckDB."""
        import duckdb

        path = self.folder / name
        if not path.exists():
            with duckdb.connect() as database:
                database.execute("SET preserve_insertion_order = false; SET threads = 2")
                database.execute(
                    f"COPY ({query}) TO '{path}.part' ({options})" if options else f"COPY ({query}) TO '{path}.part'"
                )
            Path(f"{path}.part").rename(path)
        return str(path)

    def file(self, name: str, lines: Callable[[], Iterator[bytes]]) -> str:
        """A file with these lines."""
        path = self.folder / name
        if not path.exists():
            with Path(f"{path}.part").open("wb") as out:
                out.writelines(lines())
            Path(f"{path}.part").rename(path)
        return str(path)

    def small_files(self, name: str, count: int) -> str:
        """A folder of small CSV files."""
        folder = self.folder / name
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            for number in range(count):
                (folder / f"{number:06}.csv").write_text(f"id,name\n{number},n{number}\n")
            (folder / "complete").touch()
        return f"{folder}/*.csv"

    def database(self, name: str, query: str) -> dict[str, Any]:
        """A table `t` of a DuckDB file."""
        import duckdb

        path = self.folder / name
        if not path.exists():
            with duckdb.connect(f"{path}.part") as database:
                database.execute(f"SET threads = 2; CREATE TABLE t AS {query}")
            Path(f"{path}.part").rename(path)
        return {"kind": "duckdb", "file": str(path), "table": "t"}

    def sqlite(self, name: str, rows: int, width: int) -> dict[str, Any]:
        """A table `t` of a SQLite file."""
        import sqlite3

        path = self.folder / name
        if not path.exists():
            with sqlite3.connect(f"{path}.part") as database:
                database.execute("CREATE TABLE t (id INTEGER, v TEXT)")
                database.executemany("INSERT INTO t VALUES (?, ?)", ((n, "x" * width) for n in range(rows)))
            database.close()
            Path(f"{path}.part").rename(path)
        return {"kind": "sqlite", "file": str(path), "table": "t"}

    def postgres(self, query: str | None = None) -> dict[str, Any]:
        """A PostgreSQL database, as a source or target without a table."""
        if self._dsn is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
            self._dsn = self._stack.enter_context(services.Postgres(folder)).dsn()
        return {"kind": "postgres", "auth": self._dsn, **({"query": query} if query else {})}

    def mysql(self, **fields: Any) -> dict[str, Any]:
        """A MariaDB database, as a source or target."""
        if self._mysql is None:
            self._mysql = self._stack.enter_context(mariadb())
        return {"kind": "mysql", "auth": self._mysql, **fields}

    def compressed(self, name: str, path: str) -> str:
        """A copy of a file, compressed as the name says."""
        from noetl.data.files.compression import ENDINGS, Compressor

        copy = self.folder / name
        if not copy.exists():
            compressor = Compressor(ENDINGS[name.rpartition(".")[2]])
            with Path(path).open("rb") as file, Path(f"{copy}.part").open("wb") as out:
                while block := file.read(1 << 20):
                    out.write(compressor.write(block))
                out.write(compressor.close())
            Path(f"{copy}.part").rename(copy)
        return str(copy)

    def served(self, path: str) -> str:
        """The address of a file, on a server of this process."""
        handler = partial(_Quiet, directory=str(Path(path).parent))
        server = self._stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=server.serve_forever, daemon=True).start()
        self._stack.callback(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/{Path(path).name}"

    def target(self, name: str, **fields: Any) -> dict[str, Any]:
        """A new file as the target."""
        return {"kind": "file", "path": str(self.out / name), **fields}

    def duckdb(self, table: str = "t", **fields: Any) -> dict[str, Any]:
        """A new DuckDB file as the target."""
        return {"kind": "duckdb", "file": str(self.out / "out.duckdb"), "table": table, **fields}


ROW = "i AS id, 'name ' || i AS name, i * 1.5 AS price, md5(i::VARCHAR) AS hash, TIMESTAMP '2024-01-01' + to_seconds(i) AS at"
NARROW = f"SELECT {ROW} FROM range(4000000) r(i)"
COLUMNS_1000 = f"SELECT {', '.join(f'i + {n} AS c{n}' for n in range(1000))} FROM range(60000) r(i)"
COLUMNS_5000 = f"SELECT {', '.join(f'i + {n} AS c{n}' for n in range(5000))} FROM range(8000) r(i)"
LARGE_TABLE = "SELECT i AS id, md5(i::VARCHAR) AS a, md5((i + 1)::VARCHAR) AS b, md5((i * 7)::VARCHAR) AS c, random() AS d FROM range(8000000) r(i)"
BIG_VALUES = "SELECT i AS id, repeat(chr((65 + i % 26)::INT), 1000000) AS v FROM range(500) r(i)"


def _json_rows(count: int, note: int = 20) -> Iterator[bytes]:
    for n in range(count):
        items = ",".join(f'{{"sku":"s{n}-{k}","price":{k}.5,"tags":["a","b{k}"]}}' for k in range(5))
        yield f'{{"id":{n},"name":"name {n}","note":"{"x" * note}","items":[{items}]}}'.encode()


def _lines(rows: Iterator[bytes]) -> Iterator[bytes]:
    return (row + b"\n" for row in rows)


def _document(rows: Iterator[bytes]) -> Iterator[bytes]:
    yield b'{"rows": ['
    for number, row in enumerate(rows):
        yield (b",\n" if number else b"") + row
    yield b"]}"


def _bad_csv() -> Iterator[bytes]:
    yield b"id,amount,note\n"
    for n in range(2_000_000):
        yield f"{n},{'wrong' if n % 2 else n},{'x' * 40}\n".encode()


def _long_lines() -> Iterator[bytes]:
    for n in range(100):
        yield b'{"id":%d,"v":"%s"}\n' % (n, b"x" * 4_000_000)


def _endless_line() -> Iterator[bytes]:
    yield b"id,note\n1,"
    for _ in range(600):
        yield b"0" * 1_000_000


def _repeated() -> Iterator[bytes]:
    yield b"id,note\n"
    for _ in range(600):
        yield (b"1," + b"0" * 96 + b"\n") * 10_000


def _fixed() -> Iterator[bytes]:
    return (f"{n:<10}{'name ' + str(n):<30}{n * 3:>12}\n".encode() for n in range(3_000_000))


def _workbook(path: Path) -> None:
    """An xlsx file of 1,000,000 rows."""
    import zipfile

    head = '<?xml version="1.0" encoding="UTF-8"?>'
    office, package = (
        "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
        "http://schemas.openxmlformats.org/package/2006",
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    types = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f'{head}<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="{types}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{types}.worksheet+xml"/></Types>',
        "_rels/.rels": f'{head}<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'{head}<workbook xmlns="{main}" xmlns:r="{office}"><sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'{head}<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            sheet.write(f'{head}<worksheet xmlns="{main}"><sheetData>'.encode())
            for n in range(1, 1_000_001):
                cells = [f"name {n}", f"note {n * 7}"] if n > 1 else ["name", "note"]
                texts = "".join(
                    f'<c r="{"AB"[k]}{n}" t="inlineStr"><is><t>{text}</t></is></c>' for k, text in enumerate(cells)
                )
                numbers = "".join(
                    f'<c r="{column}{n}"><v>{n * 1.5}</v></c>'
                    if n > 1
                    else f'<c r="{column}{n}" t="inlineStr"><is><t>{column}</t></is></c>'
                    for column in "CDEF"
                )
                sheet.write(f'<row r="{n}">{texts}{numbers}</row>'.encode())
            sheet.write(b"</sheetData></worksheet>")


class Case(NamedTuple):
    """A transfer (or another task), with what it is called in the table."""

    title: str
    task: Callable[[Inputs], dict[str, Any]]
    query: str = ""  # the format in which `noetl query` exports the result, which is then measured
    plugin: str = ""  # in whose environment it is run


def _copy(
    source: Callable[[Inputs], dict[str, Any]], *targets: Callable[[Inputs], dict[str, Any]], **fields: Any
) -> Callable[[Inputs], dict[str, Any]]:
    return lambda inputs: {"source": source(inputs), "targets": [each(inputs) for each in targets], **fields}


def _file(make: Callable[[Inputs], str], **fields: Any) -> Callable[[Inputs], dict[str, Any]]:
    return lambda inputs: {"kind": "file", "path": make(inputs), **fields}


def _excel(inputs: Inputs) -> str:
    path = inputs.folder / "rows.xlsx"
    if not path.exists():
        _workbook(Path(f"{path}.part"))
        Path(f"{path}.part").rename(path)
    return str(path)


def _parquet(inputs: Inputs) -> dict[str, Any]:
    return inputs.target("out.parquet")


def _duckdb(inputs: Inputs) -> dict[str, Any]:
    return inputs.duckdb()


def _csv(inputs: Inputs) -> dict[str, Any]:
    return inputs.target("out.csv")


def _pg(inputs: Inputs) -> dict[str, Any]:
    return {**inputs.postgres(), "table": "t", "mode": "replace"}


def _quarantined(
    quarantine: Callable[[Inputs], dict[str, Any]], *targets: Callable[[Inputs], dict[str, Any]]
) -> Callable[[Inputs], dict[str, Any]]:
    """A transfer with 1,000,000 bad rows of 2,000,000."""
    copy = _copy(_file(lambda i: i.file("bad.csv", _bad_csv), types={"amount": "double"}), *targets or (_parquet,))
    return lambda inputs: {**copy(inputs), "bad_rows": "quarantine", "quarantine": quarantine(inputs)}


def _sqlite(inputs: Inputs) -> dict[str, Any]:
    return {"kind": "sqlite", "file": str(inputs.out / "out.sqlite"), "table": "t"}


def _delta(inputs: Inputs) -> dict[str, Any]:
    return {"kind": "delta", "uri": str(inputs.out / "lake"), "mode": "append"}


def _iceberg(inputs: Inputs) -> dict[str, Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{inputs.out}/catalog.db", "warehouse": f"file://{inputs.out}/lake"}
    return {"kind": "iceberg", "catalog": catalog, "table": "shop.orders", "mode": "append"}


def _divided(inputs: Inputs) -> dict[str, Any]:
    return {**inputs.database("narrow.duckdb", NARROW), "table": None, "query": "SELECT *, id % 200 AS p FROM t"}


def narrow(inputs: Inputs) -> str:
    """A CSV file of 4,000,000 rows."""
    return inputs.query("narrow.csv", NARROW, "FORMAT csv, HEADER")


def duckdb_parquet(inputs: Inputs) -> str:
    """A Parquet file of DuckDB with 4,000,000 rows in one row group, and pages of up to 100 MB."""
    return inputs.query("narrow.parquet", NARROW, "FORMAT parquet, ROW_GROUP_SIZE 10000000")


def narrow_parquet(inputs: Inputs) -> str:
    """A Parquet file of 4,000,000 rows in one row group."""
    import pyarrow.parquet as pq

    path = inputs.folder / "one_group.parquet"
    if not path.exists():
        pq.write_table(
            pq.read_table(duckdb_parquet(inputs)), f"{path}.part", row_group_size=10_000_000, compression="zstd"
        )
        Path(f"{path}.part").rename(path)
    return str(path)


CASES = {
    "parquet-pages": Case("Parquet of DuckDB, pages of 100 MB", _copy(_file(duckdb_parquet), _parquet)),
    "csv-rows": Case("CSV, 4,000,000 rows, to Parquet", _copy(_file(narrow), _parquet)),
    "csv-columns": Case("CSV, 1,000 columns, to Parquet", _copy(_file(lambda i: i.query("columns.csv", COLUMNS_1000, "FORMAT csv, HEADER")), _parquet)),
    "csv-columns-duckdb": Case("CSV, 1,000 columns, to DuckDB", _copy(_file(lambda i: i.query("columns.csv", COLUMNS_1000, "FORMAT csv, HEADER")), _duckdb)),
    "csv-columns-5000": Case("CSV, 5,000 columns, to Parquet", _copy(_file(lambda i: i.query("columns5.csv", COLUMNS_5000, "FORMAT csv, HEADER")), _parquet)),
    "csv-values": Case("CSV, values of 1 MB, to Parquet", _copy(_file(lambda i: i.query("values.csv", BIG_VALUES, "FORMAT csv, HEADER")), _parquet)),
    "csv-values-duckdb": Case("CSV, values of 1 MB, to DuckDB", _copy(_file(lambda i: i.query("values.csv", BIG_VALUES, "FORMAT csv, HEADER")), _duckdb)),
    "csv-values-postgres": Case("CSV, values of 1 MB, to PostgreSQL", _copy(_file(lambda i: i.query("values.csv", BIG_VALUES, "FORMAT csv, HEADER")), _pg)),
    "csv-gz": Case("CSV in gzip", _copy(_file(lambda i: i.query("narrow.csv.gz", NARROW, "FORMAT csv, HEADER, COMPRESSION gzip")), _parquet)),
    "csv-zst": Case("CSV in zstd", _copy(_file(lambda i: i.query("narrow.csv.zst", NARROW, "FORMAT csv, HEADER, COMPRESSION zstd")), _parquet)),
    "csv-bad": Case("1,000,000 of 2,000,000 rows in quarantine, Parquet", _quarantined(lambda i: i.target("bad.parquet"))),
    "csv-bad-csv": Case("the same, quarantine in CSV", _quarantined(lambda i: i.target("bad.csv"))),
    "csv-bad-postgres": Case("the same, quarantine in PostgreSQL", _quarantined(lambda i: {**i.postgres(), "table": "bad"})),
    "csv-bad-duckdb": Case("the same, quarantine in DuckDB", _quarantined(lambda i: i.duckdb("bad"))),
    "csv-bad-sqlite": Case("the same, quarantine in SQLite", _quarantined(_sqlite)),
    "csv-bz2": Case("CSV in bzip2", _copy(_file(lambda i: i.compressed("narrow.csv.bz2", narrow(i))), _parquet)),
    "csv-repeated-gz": Case("CSV of 600 MB with one repeated row, in gzip", _copy(_file(lambda i: i.compressed("repeated.csv.gz", i.file("repeated.csv", _repeated))), _parquet)),
    "csv-line-gz": Case("CSV with one line of 600 MB in gzip, refused", _copy(_file(lambda i: i.compressed("line.csv.gz", i.file("line.csv", _endless_line))), _parquet)),
    "jsonl-gz": Case("JSON lines in gzip", _copy(_file(lambda i: i.compressed("rows.jsonl.gz", i.file("rows.jsonl", lambda: _lines(_json_rows(800_000))))), _parquet)),
    "fixed-gz": Case("fixed width in gzip", _copy(_file(lambda i: i.compressed("rows.txt.gz", i.file("rows.txt", _fixed)), format="fixed", widths={"id": 10, "name": 30, "n": 12}), _parquet)),
    "mysql": Case("MySQL to Parquet, 4,000,000 rows", _copy(lambda i: i.mysql(query="SELECT seq AS id, concat('name ', seq) AS name, seq * 1.5e0 AS price, md5(seq) AS hash FROM seq_1_to_4000000"), _parquet), plugin="mysql"),
    "mysql-columns": Case("MySQL, 1,000 columns, to Parquet", _copy(lambda i: i.mysql(query=f"SELECT {', '.join(f'seq + {n} AS c{n}' for n in range(1000))} FROM seq_1_to_20000"), _parquet), plugin="mysql"),
    "mysql-values": Case("MySQL, values of 1 MB, to Parquet", _copy(lambda i: i.mysql(query="SELECT seq AS id, repeat('x', 1000000) AS v FROM seq_1_to_500"), _parquet), plugin="mysql"),
    "mysql-target": Case("Parquet, 1,000,000 rows, to MySQL", _copy(_file(lambda i: i.query("million.parquet", NARROW.replace("4000000", "1000000"), "FORMAT parquet")), lambda i: i.mysql(table="t", mode="replace")), plugin="mysql"),
    "mysql-target-values": Case("SQLite, values of 1 MB, to MySQL", _copy(lambda i: i.sqlite("values.sqlite", 500, 1_000_000), lambda i: i.mysql(table="t", mode="replace")), plugin="mysql"),
    "delta": Case("Parquet to Delta Lake", _copy(_file(narrow_parquet), _delta), plugin="lakehouse"),
    "delta-partitions": Case("200 partitions of Delta Lake", _copy(_divided, lambda i: {**_delta(i), "partition_by": ["p"]}), plugin="lakehouse"),
    "delta-values": Case("SQLite, values of 1 MB, to Delta Lake", _copy(lambda i: i.sqlite("values.sqlite", 500, 1_000_000), _delta), plugin="lakehouse"),
    "iceberg": Case("Parquet to Iceberg", _copy(_file(narrow_parquet), _iceberg), plugin="lakehouse"),
    "iceberg-partitions": Case("200 partitions of Iceberg", _copy(_divided, lambda i: {**_iceberg(i), "partition_by": ["p"]}), plugin="lakehouse"),
    "iceberg-values": Case("SQLite, values of 1 MB, to Iceberg", _copy(lambda i: i.sqlite("values.sqlite", 500, 1_000_000), _iceberg), plugin="lakehouse"),
    "csv-bad-target": Case("CSV, 1,000,000 rows rejected by the target", lambda i: {"source": {"kind": "file", "path": i.file("bad.csv", _bad_csv), "types": {"amount": "text"}}, "targets": [i.target("out.parquet", mapping={"id": "id", "amount": "amount"}, schema="freeze")], "bad_rows": "quarantine", "quarantine": {"kind": "file", "path": str(i.out / "bad.parquet")}}),
    "jsonl": Case("JSON lines", _copy(_file(lambda i: i.file("rows.jsonl", lambda: _lines(_json_rows(800_000)))), _parquet)),
    "jsonl-tables": Case("JSON lines, `nested: tables`, to DuckDB", _copy(_file(lambda i: i.file("some.jsonl", lambda: _lines(_json_rows(150_000)))), lambda i: i.duckdb(nested="tables"))),
    "jsonl-tables-wide": Case("JSON lines, `nested: tables`, long texts, to DuckDB", _copy(_file(lambda i: i.file("long.jsonl", lambda: _lines(_json_rows(4000, 100_000)))), lambda i: i.duckdb(nested="tables"))),
    "jsonl-long": Case("JSON lines of 4 MB", _copy(_file(lambda i: i.file("long_lines.jsonl", _long_lines)), _parquet)),
    "json": Case("one JSON document of 200 MB", _copy(_file(lambda i: i.file("rows.json", lambda: _document(_json_rows(800_000)))), _parquet)),
    "json-values": Case("one JSON document, values of 1 MB", _copy(_file(lambda i: i.file("values.json", lambda: _document(_json_rows(300, 1_000_000)))), _parquet)),
    "fixed": Case("fixed width, 3,000,000 lines", _copy(_file(lambda i: i.file("rows.txt", _fixed), format="fixed", widths={"id": 10, "name": 30, "n": 12}), _parquet)),
    "excel": Case("Excel, 1,000,000 rows", _copy(_file(_excel), _parquet)),
    "parquet-group": Case("Parquet, one row group of 4,000,000 rows", _copy(_file(narrow_parquet), _parquet)),
    "parquet-columns": Case("Parquet, 5,000 columns", _copy(_file(lambda i: i.query("columns5.parquet", COLUMNS_5000, "FORMAT parquet, ROW_GROUP_SIZE 8192")), _parquet)),
    "parquet-values": Case("Parquet, values of 1 MB", _copy(_file(lambda i: i.query("values.parquet", BIG_VALUES, "FORMAT parquet")), _parquet)),
    "parquet-duckdb": Case("Parquet to DuckDB", _copy(_file(narrow_parquet), _duckdb)),
    "parquet-postgres": Case("Parquet to PostgreSQL", _copy(_file(narrow_parquet), _pg)),
    "parquet-csv": Case("Parquet to CSV", _copy(_file(narrow_parquet), _csv)),
    "parquet-sqlite": Case("Parquet to SQLite", _copy(_file(narrow_parquet), _sqlite)),
    "evolve": Case("`schema: evolve`, Parquet to Parquet", _copy(_file(narrow_parquet), lambda i: i.target("out.parquet", schema="evolve"))),
    "evolve-values": Case("`schema: evolve`, values of 1 MB", _copy(_file(lambda i: i.query("values.parquet", BIG_VALUES, "FORMAT parquet")), lambda i: i.target("out.parquet", schema="evolve"))),
    "upsert-duckdb": Case("upsert of 4,000,000 rows into DuckDB", _copy(_file(narrow_parquet), lambda i: i.duckdb(mode="upsert", key="id"))),
    "upsert-postgres": Case("upsert of 4,000,000 rows into PostgreSQL", _copy(_file(narrow_parquet), lambda i: {**i.postgres(), "table": "u", "mode": "upsert", "key": "id"})),
    "upsert-sqlite": Case("upsert of 4,000,000 rows into SQLite", _copy(_file(narrow_parquet), lambda i: {**_sqlite(i), "mode": "upsert", "key": "id"})),
    "partitions": Case("`partition_by` with 8,000 partitions", _copy(lambda i: {**i.database("narrow.duckdb", NARROW), "table": None, "query": "SELECT *, id % 8000 AS p FROM t"}, lambda i: i.target("parts", partition_by=["p"], format="parquet"))),
    "duckdb": Case("DuckDB to Parquet", _copy(lambda i: i.database("narrow.duckdb", NARROW), _parquet)),
    "duckdb-large": Case("DuckDB, a table of 500 MB, to Parquet", _copy(lambda i: i.database("large.duckdb", LARGE_TABLE), _parquet)),
    "duckdb-columns": Case("DuckDB, 1,000 columns, to Parquet", _copy(lambda i: i.database("columns.duckdb", COLUMNS_1000), _parquet)),
    "duckdb-values": Case("DuckDB, values of 1 MB, to Parquet", _copy(lambda i: i.database("values.duckdb", BIG_VALUES), _parquet)),
    "duckdb-duckdb": Case("DuckDB, 1,000 columns, to DuckDB", _copy(lambda i: i.database("columns.duckdb", COLUMNS_1000), _duckdb)),
    "sqlite": Case("SQLite, 3,000,000 rows, to Parquet", _copy(lambda i: i.sqlite("rows.sqlite", 3_000_000, 40), _parquet)),
    "sqlite-values": Case("SQLite, values of 1 MB, to Parquet", _copy(lambda i: i.sqlite("values.sqlite", 500, 1_000_000), _parquet)),
    "postgres": Case("PostgreSQL to Parquet", _copy(lambda i: i.postgres("SELECT g AS id, 'name ' || g AS name, g * 1.5::float8 AS price, md5(g::text) AS hash FROM generate_series(1, 4000000) g"), _parquet)),
    "postgres-columns": Case("PostgreSQL, 1,000 columns, to Parquet", _copy(lambda i: i.postgres(f"SELECT {', '.join(f'g + {n} AS c{n}' for n in range(1000))} FROM generate_series(1, 60000) g"), _parquet)),
    "postgres-values": Case("PostgreSQL, values of 1 MB, to Parquet", _copy(lambda i: i.postgres("SELECT g AS id, repeat('x', 1000000) AS v FROM generate_series(1, 500) g"), _parquet)),
    "postgres-four": Case("PostgreSQL to four targets", _copy(lambda i: i.postgres("SELECT g AS id, 'name ' || g AS name, md5(g::text) AS hash FROM generate_series(1, 2000000) g"), _parquet, _csv, _duckdb, _pg)),
    "http": Case("HTTP, one page of 100 MB", _copy(lambda i: {"kind": "http", "url": i.served(i.file("page.json", lambda: _document(_json_rows(400_000))))}, _parquet)),
    "postgres-duckdb-columns": Case("PostgreSQL, 1,000 columns, to DuckDB", _copy(lambda i: i.postgres(f"SELECT {', '.join(f'g + {n} AS c{n}' for n in range(1000))} FROM generate_series(1, 60000) g"), _duckdb)),
    "sqlite-duckdb": Case("SQLite, 3,000,000 rows, to DuckDB", _copy(lambda i: i.sqlite("rows.sqlite", 3_000_000, 40), _duckdb)),
    "evolve-columns": Case("`schema: evolve`, 1,000 columns", _copy(lambda i: i.database("columns.duckdb", COLUMNS_1000), lambda i: i.target("out.parquet", schema="evolve"))),
    "upsert-duckdb-text": Case("upsert of 4,000,000 rows into DuckDB by a text", _copy(_file(narrow_parquet), lambda i: i.duckdb(mode="upsert", key="hash"))),
    "object-copy": Case("`object` copy of 500 MB", lambda i: {"kind": "object", "action": "copy", "path": i.query("values.csv", BIG_VALUES, "FORMAT csv, HEADER"), "to": str(i.out / "copy.csv")}),
    "object-get": Case("`object` get of 500 MB", lambda i: {"kind": "object", "action": "get", "path": i.query("values.csv", BIG_VALUES, "FORMAT csv, HEADER"), "format": "bytes"}),
    "result": Case("a result of 2,000,000 rows", lambda i: {"kind": "duckdb", "query": NARROW.replace("4000000", "2000000")}),
    "query-csv": Case("`noetl query`, 2,000,000 rows as CSV", lambda i: {"kind": "duckdb", "query": NARROW.replace("4000000", "2000000")}, "csv"),
    "query-parquet": Case("`noetl query`, 2,000,000 rows as Parquet", lambda i: {"kind": "duckdb", "query": NARROW.replace("4000000", "2000000")}, "parquet"),
    "files": Case("100,000 small files", _copy(_file(lambda i: i.small_files("small", 100_000)), _parquet)),
    "files-new": Case("100,000 small files, `only_new`", _copy(_file(lambda i: i.small_files("small", 100_000), only_new=True), lambda i: i.duckdb(mode="append"))),
}  # fmt: skip


def playbook(task: dict[str, Any]) -> str:
    """A playbook of one transfer, as JSON."""
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "memory", "path": "bench/memory"},
        "workflow": [
            {"step": "move", "tool": {"kind": "transfer", **task}, "next": {"arcs": [{"step": "done"}]}},
            {"step": "done", "tool": {"kind": "noop"}},  # `noetl run` prints the result of the last step
        ],
    }
    return json.dumps(document)


class Taken(NamedTuple):
    """What a process took."""

    mb: float
    cpu: float
    seconds: float
    problem: str


def run(command: list[str], folder: Path) -> Taken:
    """Run a command; the memory is the sum of the highest marks of its processes."""
    environment = {**os.environ, "NOETL_HOME": str(folder / "home")}
    began, marks = time.perf_counter(), dict[int, float]()
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            for pid in _tree(process.pid):
                marks[pid] = max(marks.get(pid, 0.0), _mark(pid))
            time.sleep(0.02)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        problem = "" if not process.returncode else errors.read()[-2000:]
    return Taken(sum(marks.values()), usage.ru_utime + usage.ru_stime, time.perf_counter() - began, problem)


def _tree(pid: int) -> list[int]:
    try:
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _tree(child))]


def _mark(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def measure_case(case: Case, inputs: Inputs) -> Taken:
    """Run a case in its own process."""
    file = inputs.out / "playbook.yaml"
    file.write_text(playbook(case.task(inputs)))
    python = plugin_environment(case.plugin) if case.plugin else Path(sys.executable)
    noetl = str(python.with_name("noetl"))
    if not case.query:
        return run([noetl, "run", "-q", "--store", "memory:", str(file)], inputs.out)
    first = run([noetl, "run", "-q", str(file)], inputs.out)
    if first.problem:
        return first
    export = ["--format", case.query, "--output", str(inputs.out / "export")]
    return run([noetl, "query", "last", "SELECT * FROM step.move", *export], inputs.out)


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description="Peak memory of transfers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {' '.join(CASES)}")
    parser.add_argument("--data", type=Path, help="a folder that keeps the inputs")
    options = parser.parse_args()
    print(f"{'case':22} {'peak MB':>8} {'CPU s':>7} {'s':>7}")
    for name in options.cases or CASES:
        with ExitStack() as stack:
            folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
            folder.mkdir(parents=True, exist_ok=True)
            taken = measure_case(CASES[name], Inputs(folder, stack))
        over = "  over the limit" if taken.mb > LIMIT_MB else ""
        print(f"{name:22} {taken.mb:8.0f} {taken.cpu:7.1f} {taken.seconds:7.1f}{over} {taken.problem}", flush=True)


if __name__ == "__main__":
    main()
