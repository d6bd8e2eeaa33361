"""What a transfer holds in memory does not depend on how wide the rows are or how they are grouped in files."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tracemalloc
import zipfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.connections import duckdb as duck
from noetl.connections import duckdb_memory as duck_memory
from noetl.core.templates.deferred import DeferredTemplate
from noetl.data.files import csv_text, duckdb_files, json_lines, table_files
from noetl.data.files.json_lines import longest_line
from noetl.data.sql import bind
from noetl.testing.tools import ToolHost, run_tool
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer import chunks, sources
from noetl.tools.transfer.chunks import Chunk, chunked
from noetl.tools.transfer.quarantine.bad_rows import POSITION, NumberedRows, SourceRows
from noetl.tools.transfer.sources import file_source, large_workbook, numbered_lines, spreadsheet_source, wide_csv
from noetl.tools.transfer.targets import Target, duckdb_limits, duckdb_target
from noetl.tools.transfer.targets.files.row_spool import RowSpool
from tests.tools.test_transfer_files import WORKBOOK


def move(folder: Path, source: Any, *targets: Any, **others: Any) -> Any:
    outcome = run_tool("transfer", {"source": source, "targets": list(targets), **others}, host=ToolHost(folder=folder))
    assert outcome.error is None, outcome.error
    return outcome.data


def chunks_of(batches: list[Any], size: int, **options: Any) -> list[Chunk]:
    async def collect() -> list[Chunk]:
        async def source() -> Any:
            for batch in batches:
                yield batch

        return [chunk async for chunk in chunked(source(), size, **options) if isinstance(chunk, Chunk)]

    return asyncio.run(collect())


def test_a_chunk_ends_at_its_rows_or_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"n": range(50), "text": ["x" * 1000] * 50}) for _ in range(4)]
    found = chunks_of(batches, 80, limit=30_000)
    assert max(chunk.table.nbytes for chunk in found) <= 35_000
    assert [n for chunk in found for n in chunk.table.column("n").to_pylist()] == [*range(50)] * 4
    assert [chunk.index for chunk in found] == list(range(len(found)))
    assert [chunk.size for chunk in chunks_of(batches, 80)] == [80, 80, 40]
    monkeypatch.setattr(chunks, "WIDE_BYTES", 10_000)
    for name in ("WIDE", "LONG"):  # columns, or bytes of a row
        with monkeypatch.context() as patch:
            patch.setattr(chunks, name, 1)
            assert max(chunk.table.nbytes for chunk in chunks_of(batches, 80, limit=30_000)) <= 12_000
    assert max(chunk.table.nbytes for chunk in chunks_of(batches, 80, limit=30_000)) > 12_000


def test_values_follow_chunks_of_unequal_size() -> None:
    batch = pa.record_batch({"value": ["x" * width for width in (10, 5000, 10, 10, 5000, 10)]})
    found = chunks_of([batch], 4, limit=5000, values=list(range(6)))
    assert [number for chunk in found for number in chunk.data] == list(range(6))
    assert [chunk.size for chunk in found] != [4, 2]


@pytest.mark.parametrize(
    ("path", "chunk", "count"),
    [
        ("{{ chunk.index }}.jsonl", {"size": 40}, 2),  # the files have the rows that the playbook wants
        ("{{ chunk.index }}.jsonl", {}, 8),
        ("all.jsonl", {"size": 40}, 8),
    ],
)
def test_chunks_of_wide_rows_are_smaller_unless_their_size_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, chunk: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(Target, "CHUNK_BYTES", 10_000)
    rows = [{"n": number, "text": "x" * 1000} for number in range(80)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    target = {"kind": "file", "path": DeferredTemplate(path) if "{{" in path else path}
    summary = move(tmp_path, {"kind": "file", "path": "in.jsonl"}, target, chunk=chunk)
    assert (summary["rows"], summary["chunks"]) == (80, count)


def test_a_large_document_is_read_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "LARGE_DOCUMENT", 0)
    queries = []
    query = duckdb_files.json_query
    monkeypatch.setattr(duckdb_files, "json_query", lambda *given: queries.append(given[2]) or query(*given))
    rows = [{"id": number, "big": 2**70, "deep": {"x": [number, 1.10]}} for number in range(30)]
    for text, chunk, how in [
        (json.dumps(rows, indent=1), {}, "jsonl"),
        (json.dumps({"count": 30, "data": rows}), {}, "jsonl"),
        (json.dumps({"page": {"rows": rows}}), {"path": "page.rows"}, "jsonl"),
        ("\n".join(map(json.dumps, rows)), {}, "json"),  # no list: read as before
    ]:
        (tmp_path / "in.json").write_text(text)
        move(tmp_path, {"kind": "file", "path": "in.json"}, {"kind": "file", "path": "out.jsonl"}, chunk=chunk)
        assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
        assert queries.pop() == how


def test_a_malformed_row_of_a_large_document_is_an_error_of_that_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "LARGE_DOCUMENT", 0)
    (tmp_path / "in.json").write_text('[{"a": 1},\n{"a": nope}]')
    given = {
        "source": {"kind": "file", "path": "in.json"},
        "targets": [{"kind": "file", "path": "out.jsonl"}],
    }
    outcome = run_tool("transfer", given, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None
    assert (outcome.error.kind, "in.json" in outcome.error.message) == ("parse", True), outcome.error
    assert "noetl-transfer-" not in outcome.error.message


def test_the_longest_line_bounds_the_buffers_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([b"x" * 10] * 200_000))
    assert longest_line([path]) <= 2 * duckdb_files.SMALLEST_BUFFER < path.stat().st_size
    for length in (100_000, 300_000):
        path.write_bytes(b"a\n" + b"x" * length + b"\nb")
        assert length <= longest_line([path]) <= length + 2 * duckdb_files.SMALLEST_BUFFER


def test_a_large_row_group_is_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"n": range(60_000), "text": [f"text {number:030}" for number in range(60_000)]})
    pq.write_table(table, tmp_path / "in.parquet", compression="none", use_dictionary=False, data_page_size=1 << 16)
    largest = []
    for limit in (1 << 30, 1 << 20):
        monkeypatch.setattr(table_files, "GROUP_READ", limit)
        reads: list[int] = []
        read = file_source.LocalPayload.read

        async def counted(self: Any, start: int, count: int, reads: Any = reads, read: Any = read) -> bytes:
            reads.append(count)
            found: bytes = await read(self, start, count)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(file_source.LocalPayload, "read", counted)
            move(tmp_path, {"kind": "file", "path": "in.parquet"}, {"kind": "file", "path": "out.parquet"})
        assert pq.read_table(tmp_path / "out.parquet").equals(table)
        largest.append(max(reads))
    assert largest[1] < largest[0]


def test_large_values_fit_the_memory_limit_of_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_limits, "BASE_MB", 24)
    text = "x y z " * 170_000
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"id": number, "text": text}) for number in range(60)))
    move(tmp_path, {"kind": "file", "path": "in.jsonl"}, {"kind": "duckdb", "file": "o.duckdb", "table": "t"})
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        assert connection.execute("SELECT count(*), sum(length(text)) FROM t").fetchone() == (60, 60 * len(text))


def test_wide_tables_of_duckdb_have_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_target, "GROUP_VALUES", 100 * 2048)
    table = pa.table({f"c{n}": range(5000) for n in range(100)})
    pq.write_table(table, tmp_path / "in.parquet")
    wide = {"kind": "duckdb", "file": "o.duckdb", "table": "s.wide", "mode": "replace"}
    narrow = {"kind": "duckdb", "file": "o.duckdb", "table": "narrow", "mapping": {"n": "c1"}}
    for _ in range(2):
        move(tmp_path, {"kind": "file", "path": "in.parquet"}, wide, narrow)
    assert not (tmp_path / "o.duckdb.wal").exists()
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        assert connection.sql("FROM s.wide").to_arrow_table().equals(table)
        assert connection.execute("SELECT count(*), sum(n) FROM narrow").fetchone() == (10_000, 2 * sum(range(5000)))
        groups = "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('s.wide')"
        assert connection.execute(groups).fetchone() == (3,)


def test_rows_of_sqlite_are_fetched_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BATCH_BYTES", 10_000)
    rows = [(n, "x" * (1 if n < 100 else 3000), None if n < 300 else n) for n in range(400)]
    with sqlite3.connect(tmp_path / "in.db") as database:
        database.execute("CREATE TABLE t (id, v, late)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    database.close()
    fetched = []
    fetch = sources._RowFetcher.next
    monkeypatch.setattr(sources._RowFetcher, "next", lambda self: fetched.append(fetch(self)) or fetched[-1])
    source = {"kind": "sqlite", "file": "in.db", "table": "t"}
    move(tmp_path, source, {"kind": "file", "path": "out.parquet"})
    written = pq.read_table(tmp_path / "out.parquet")
    assert [tuple(row.values()) for row in written.to_pylist()] == rows
    assert written.schema.field("late").type == pa.int64()  # as if all rows were in the first batch
    assert max(sum(len(row[1]) for row in part[100:]) for part in fetched) < 250_000
    assert max(map(len, fetched[5:])) <= 7


@pytest.mark.parametrize("bad_rows", ["fail", "quarantine"])
@pytest.mark.parametrize(
    "source",
    [{"format": "csv"}, {"format": "fixed", "widths": {"id": 5, "note": 40}}, {"format": "jsonl"}],
    ids=["csv", "fixed", "jsonl"],
)
def test_a_line_without_an_end_is_not_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, bad_rows: str
) -> None:
    size = 24 << 20
    limits = (csv_text, "MAX_VALUE"), (wide_csv, "LARGEST_RECORD"), (json_lines, "LONGEST_LINE")
    for module, name in (*limits, (numbered_lines, "LONGEST_LINE")):
        monkeypatch.setattr(module, name, 4 << 20)
    lines = b'{"id":1}\n{"note":"' if source["format"] == "jsonl" else b"id,note\n1,x\n2,"
    (tmp_path / "in.txt").write_bytes(lines + b"0" * size)
    task = {
        "source": {"kind": "file", "path": "in.txt", **source},
        "target": {"kind": "file", "path": "out.parquet"},
        "bad_rows": bad_rows,
    } | ({"quarantine": {"kind": "file", "path": "bad.jsonl"}} if bad_rows == "quarantine" else {})
    tracemalloc.start()
    try:
        outcome = run_tool("transfer", task, host=ToolHost(folder=tmp_path))
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()
    assert outcome.error is not None
    assert "more than 4 MB" in outcome.error.message
    assert "in.txt" in outcome.error.message


def test_only_some_rows_of_a_workbook_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = "".join(
        f'<row r="{n}"><c r="B{n}"><v>{n}</v></c><c r="C{n}" t="inlineStr"><is><t>{"x" * 50}{n}</t></is></c></row>'
        for n in range(4, 20_000)
    )
    last = '<row r="20001"><c r="B20001"><v>0.5</v></c></row>'
    head = '<row r="3"><c r="B3" t="inlineStr"><is><t>n</t></is></c><c r="C3" t="inlineStr"><is><t>v</t></is></c></row>'
    sheet = WORKBOOK["xl/worksheets/sheet2.xml"].replace("<sheetData/>", f"<sheetData>{head}{cells}{last}</sheetData>")
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (WORKBOOK | {"xl/worksheets/sheet1.xml": sheet}).items():
            archive.writestr(name, content)
    monkeypatch.setattr(spreadsheet_source, "BATCH_ROWS", 500)
    rows = NumberedRows(SourceRows(), "b.xlsx")
    tracemalloc.start()
    batches = spreadsheet_source.excel_batches(str(tmp_path / "b.xlsx"), {}, rows, "b.xlsx")
    found = [(batch.num_rows, batch.column("n").type, batch.column(POSITION)[0].as_py()) for batch in batches]
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 1_000_000  # the rows have about 5 MB
    assert sum(count for count, _, _ in found) == 19_997
    assert {kind for _, kind, _ in found} == {pa.float64()}  # which only the last row shows
    assert [position for _, _, position in found[:2]] == [4, 504]


def memory_limit(cursor: Any) -> str:
    found: str = cursor.execute("SELECT current_setting('memory_limit')").fetchall()[0][0]
    return found


@pytest.mark.parametrize(
    ("query", "is_limited"),
    [
        ("FROM t", True),
        ("SELECT id + ? AS n FROM t WHERE text <> 'x' LIMIT 5", True),
        ("SELECT text, count(*) FROM t GROUP BY 1", False),
        ("SELECT a.* FROM t AS a JOIN t AS b USING (id) ORDER BY text", False),
        ("SELECT * FROM main.t WHERE id IN (1, 2) OR (text = 'x' AND id > 3) -- f(x)", True),
        ("SELECT id, repeat(text, 9) AS text FROM t", False),  # longer than the values of the table
        ("SELECT text || text AS text FROM t", False),
        ("FROM computed", False),
        ("FROM long", False),  # 2,048 of its values may need more
        ("FROM lists", False),
        ("FROM none", True),
    ],
)
def test_only_scans_of_duckdb_have_a_memory_limit(tmp_path: Path, query: str, is_limited: bool) -> None:
    path = str(tmp_path / "in.duckdb")
    with duckdb.connect(path) as made:
        made.execute("CREATE TABLE t AS SELECT i AS id, repeat('x', 1 + i % 300) AS text FROM range(5000) r(i)")
        made.execute("CREATE TABLE long AS SELECT 1 AS id, repeat('x', 100000) AS text")
        made.execute("CREATE TABLE lists AS SELECT ['x'] AS texts; CREATE TABLE none (id INTEGER, text VARCHAR)")
        made.execute("CREATE VIEW computed AS SELECT repeat(text, 9) AS text FROM t")

    async def limits() -> list[bool]:
        database = duck.database(path)
        found = []
        async with database.cursor(writes=False) as cursor, AsyncExitStack() as stack:
            usual = memory_limit(cursor)
            database.limit_memory(cursor, bind(query, [1] if "?" in query else None, "duckdb"))
            found.append(memory_limit(cursor) != usual)
            await stack.enter_async_context(database.cursor(writes=False))  # another call lifts the limit
            found.append(memory_limit(cursor) != usual)
            database.limit_memory(cursor, bind(query, [1] if "?" in query else None, "duckdb"))
            found.append(memory_limit(cursor) != usual)
        async with database.cursor(writes=False) as cursor:
            found.append(memory_limit(cursor) != usual)
            database.limit_memory(cursor, bind("FROM t", None, "duckdb"))
        async with database.cursor(writes=False) as cursor:
            found.append(memory_limit(cursor) != usual)
        database.close()
        return found

    assert asyncio.run(limits()) == [is_limited, False, False, False, False]


@pytest.mark.parametrize("source", [{"kind": "file", "path": "in.csv"}, {"kind": "file", "path": "in.jsonl"}, "table"])
def test_the_memory_of_readers_does_not_depend_on_the_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any
) -> None:
    monkeypatch.setattr(duck_memory, "OPTIONS", duck_memory.OPTIONS | {"threads": 1})
    monkeypatch.setattr(file_source, "OPTIONS", duck_memory.OPTIONS)
    (tmp_path / "in.csv").write_text("id\n1\n")
    (tmp_path / "in.jsonl").write_text('{"id": 1}')
    with duckdb.connect(str(tmp_path / "in.duckdb")) as made:
        made.execute("CREATE TABLE t AS SELECT 1 AS id")
    seen = []
    run = duck.run_statement

    def observed(cursor: Any, *given: Any, **others: Any) -> Any:
        seen.append(cursor.execute("SELECT current_setting('threads')").fetchall()[0][0])
        return run(cursor, *given, **others)

    monkeypatch.setattr(duck, "run_statement", observed)
    given = {"kind": "duckdb", "file": "in.duckdb", "table": "t"} if source == "table" else source
    move(tmp_path, given, {"kind": "file", "path": "out.parquet"})
    assert seen == [1]


def _cells(number: int) -> str:
    """Cells of all kinds; those of the last rows have other types and columns than those of the first."""
    cells = [
        f'<c t="s" s="1"><v>{number % 7}</v></c>' if number % 3 else "<c/>",
        f"<c><v>{number * 1.5}</v></c>",
        f'<c t="inlineStr"><is><t> a &lt;/row&gt; {number}</t></is></c>',
        f'<c s="1"><f>NOW()</f><v>{45000 + number / 4}</v></c>',
        f'<c t="b"><v>{number % 2}</v></c>',
        '<c t="e"><v>#N/A</v></c>' if number % 5 == 0 else '<c t="str"><f>A1</f><v>text</v></c>',
    ]
    return "".join(cells[: 4 if number < 100 else 6])


@pytest.mark.parametrize("kind", ["usual", "prefixed", "without numbers", "cdata", "broken"])
def test_a_large_sheet_is_read_in_pieces_with_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rows = "".join(
        f'<row spans="2:7" r="{n + n // 50}"><c r="B{n + n // 50}"><v>{n}</v></c>{_cells(n)}</row>'
        for n in range(4, 150)
    )
    strings = "".join(
        f"<si><t>s{n}</t></si>" if n % 2 else f"<si><r><t>rich </t></r><r><t>{n}</t></r></si>" for n in range(7)
    )
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    parts = WORKBOOK | {
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{space}"><dimension ref="A1"/><sheetData>{rows}</sheetData></worksheet>',
        "xl/sharedStrings.xml": f'<sst xmlns="{space}">{strings}</sst>',
        "xl/_rels/workbook.xml.rels": WORKBOOK["xl/_rels/workbook.xml.rels"].replace(
            "</Relationships>",
            '<Relationship Id="r4" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings" '
            'Target="sharedStrings.xml"/></Relationships>',
        ),
    }
    changes: dict[str, Any] = {
        "prefixed": lambda text: re.sub(r"<(/?)(\w)", r"<\1x:\2", text).replace("xmlns=", "xmlns:x="),
        "without numbers": lambda text: re.sub(r' r="[^"]*"', "", text),
        "cdata": lambda text: text.replace("<t> a &lt;/row&gt; 9</t>", "<t><![CDATA[</row>]]></t>"),
        "broken": lambda text: text[: text.index("</sheetData>") - 20],
    }
    if kind in changes:
        parts["xl/worksheets/sheet1.xml"] = changes[kind](parts["xl/worksheets/sheet1.xml"])
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)

    def read() -> Any:
        rows = NumberedRows(SourceRows(), "b.xlsx")
        try:
            return pa.Table.from_batches(spreadsheet_source.excel_batches(str(tmp_path / "b.xlsx"), {}, rows, "b.xlsx"))
        except BadInput as wrong:
            return str(wrong)

    whole = read()
    read_as_a_whole = []
    made = spreadsheet_source._WholeSheet
    monkeypatch.setattr(spreadsheet_source, "_WholeSheet", lambda *given: read_as_a_whole.append(given) or made(*given))
    monkeypatch.setattr(large_workbook, "LARGE", 0)
    monkeypatch.setattr(large_workbook, "PIECE", 3000)
    assert read() == whole
    assert kind == "broken" or whole.num_rows == 145
    assert bool(read_as_a_whole) == (kind not in ("usual", "prefixed"))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_rows_that_wait_for_their_columns_are_not_mapped_into_memory() -> None:
    table = pa.table({"text": ["x" * 1000] * 5000})
    spool = RowSpool(table.schema, replaces=False)
    spool.add(table)
    tables = spool.tables()
    found = next(part for part in tables if part.num_rows)
    assert found.num_rows == 5000
    assert str(spool._folder.name) not in Path("/proc/self/maps").read_text()
    tables.close()
    spool.close()
