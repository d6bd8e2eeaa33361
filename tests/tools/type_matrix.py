"""Every type, from every source, to every target: what arrives, and with which type.

    python -m tests.tools.type_matrix      writes docs/reference/type-matrix.md

`test_type_matrix.py` runs the same transfers, compares every value with the one that was sent, and compares the page.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from devcluster import services
from noetl.data.types.intervals import interval_text, parse_interval
from noetl.testing.tools import ToolHost, run_tool
from tests.tools.sheet_files import write_fixed, write_workbook

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "type-matrix.md"
PLUGINS = ROOT / "plugins"
ROWS = 4


def _same(value: Any) -> Any:
    return value


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "t", "1")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return bytes.fromhex(value[2:]) if value.startswith("\\x") else base64.b64decode(value, validate=True)


def _time(value: Any) -> time:
    return value if isinstance(value, time) else time.fromisoformat(str(value))


def _moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


def _instant(value: Any) -> datetime:
    moment = _moment(value)
    assert moment.tzinfo is not None, f"{value!r} has no zone"
    return moment.astimezone(UTC)


def _interval(value: Any) -> tuple[int, int, int]:
    return tuple(value) if isinstance(value, tuple) else parse_interval(value)  # type: ignore[return-value]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _list_of(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [None if each is None else item(each) for each in _json(value)]


def _array_text(values: list[Any], brackets: str) -> str:
    texts = ["NULL" if each is None else json.dumps(str(each)) for each in values]
    return f"{brackets[0]}{', '.join(texts)}{brackets[1]}"


class Sample(NamedTuple):
    """A type, its names in the systems, and values of it."""

    name: str
    values: list[Any]
    postgres: str
    duckdb: str
    arrow: Any
    declared: str
    read: Callable[[Any], Any]  # a value as a target stores it -> the value
    plain: Callable[[Any], Any] = _same  # a value -> JSON data
    text: Callable[[Any], str] = str  # a value -> its SQL text
    is_array: bool = False

    def at(self, row: int) -> Any:
        """The value in a row; null where there are no more."""
        return self.values[row] if row < len(self.values) else None


ZONED = [datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC), datetime(1969, 12, 31, 23, 0, tzinfo=UTC)]
IDS = [uuid.UUID("0b5b3a78-2250-4f7f-8c2c-a3487551801c"), uuid.UUID(int=0)]
SAMPLES = [
    Sample("boolean", [True, False], "boolean", "BOOLEAN", pa.bool_(), "boolean", _is_true, text=lambda v: str(v)),
    Sample("smallint", [-(2**15), 2**15 - 1], "smallint", "SMALLINT", pa.int16(), "smallint", int),
    Sample("integer", [-(2**31), 2**31 - 1, 0], "integer", "INTEGER", pa.int32(), "integer", int),
    Sample("bigint", [-(2**63), 2**63 - 1, 2**53 + 1], "bigint", "BIGINT", pa.int64(), "bigint", int),
    Sample("numeric", [Decimal("12345678901234567890.123456789"), Decimal("0.1"), Decimal("-7")], "numeric",
           "DECIMAL(38,9)", pa.decimal128(38, 9), "numeric", lambda v: Decimal(str(v)), str),
    Sample("numeric, 60 digits", [Decimal("9" * 45 + "." + "1" * 15), Decimal(1)], "numeric", "VARCHAR",
           pa.decimal256(60, 15), "numeric", lambda v: Decimal(str(v)), str),
    Sample("numeric(12, 2)", [Decimal("-1234567890.12"), Decimal("0.10")], "numeric(12,2)", "DECIMAL(12,2)",
           pa.decimal128(12, 2), "decimal(12, 2)", lambda v: Decimal(str(v)), str),
    Sample("real", [0.1, -1.5], "real", "FLOAT", pa.float32(), "double",
           lambda v: float(f"{float(v):.6g}")),
    Sample("double", [0.1, 1e308, 5e-324], "double precision", "DOUBLE", pa.float64(), "double", float),
    Sample("double: NaN, infinity", [float("nan"), float("inf"), float("-inf")], "double precision", "DOUBLE",
           pa.float64(), "double", lambda v: str(float(v)),
           lambda v: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(v)]),
    Sample("text", ["", "NULL, \"quoted\"\n\\N\ttab", "żółć 日本 🚀 e\u0301"], "text", "VARCHAR", pa.string(), "text", _same),
    Sample("bytes", [b"", b"\x00\xff\\x", "é".encode()], "bytea", "BLOB", pa.binary(), "bytes", _bytes,
           lambda v: base64.b64encode(v).decode()),
    Sample("date", [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)], "date", "DATE", pa.date32(), "date",
           lambda v: date.fromisoformat(str(v)), str),
    Sample("time", [time(23, 59, 59, 999_999), time(0, 0)], "time", "TIME", pa.time64("us"), "time", _time,
           time.isoformat),
    Sample("timestamp", [datetime(2024, 2, 29, 12, 0, 0, 123_456), datetime(1, 1, 1)], "timestamp", "TIMESTAMP",
           pa.timestamp("us"), "timestamp", _moment, datetime.isoformat),
    Sample("timestamptz", ZONED, "timestamptz", "TIMESTAMPTZ", pa.timestamp("us", "UTC"), "timestamptz", _instant,
           datetime.isoformat),
    Sample("interval", [(14, 3, 14_706_789_000_000), (-1, 2, -3_600_000_000_000), (0, 0, 0)], "interval", "INTERVAL",
           None, "interval", _interval, lambda v: interval_text(*v), lambda v: _words(*v)),
    Sample("uuid", IDS, "uuid", "UUID", pa.uuid(), "uuid", lambda v: uuid.UUID(str(v)), str),
    Sample("json", [{"a": [1, None, "x", 1.5]}, [], "text"], "jsonb", "JSON", pa.json_(), "json", _json, _same,
           json.dumps),
    Sample("integer[]", [[1, None, -3], []], "integer[]", "INTEGER[]", pa.list_(pa.int32()), "integer[]",
           _list_of(int), _same, is_array=True),
    Sample("text[]", [["a", "", None, "NULL", 'q"uote'], []], "text[]", "VARCHAR[]", pa.list_(pa.string()), "text[]",
           _list_of(str), _same, is_array=True),
    Sample("uuid[]", [IDS], "uuid[]", "UUID[]", pa.list_(pa.string()), "uuid[]",
           _list_of(lambda v: uuid.UUID(str(v))), lambda v: [str(each) for each in v], is_array=True),
    Sample("numeric[]", [[Decimal("12345678901234567890.123456789"), None]], "numeric[]", "DECIMAL(38,9)[]",
           pa.list_(pa.decimal128(38, 9)), "numeric[]", _list_of(lambda v: Decimal(str(v))),
           lambda v: [None if each is None else str(each) for each in v], is_array=True),
    Sample("timestamptz[]", [ZONED], "timestamptz[]", "TIMESTAMPTZ[]", pa.list_(pa.timestamp("us", "UTC")),
           "timestamptz[]", _list_of(_instant), lambda v: [each.isoformat() for each in v], is_array=True),
]  # fmt: skip
ALL = [
    *SAMPLES,  # and what the plug-ins do not test
    Sample("boolean[]", [[True, None, False], []], "boolean[]", "BOOLEAN[]", pa.list_(pa.bool_()), "boolean[]",
           _list_of(_is_true), _same, is_array=True),
    Sample("date[]", [[date(1, 1, 1), None, date(9999, 12, 31)], []], "date[]", "DATE[]", pa.list_(pa.date32()), "date[]",
           _list_of(lambda v: date.fromisoformat(str(v))), lambda v: [each and str(each) for each in v], is_array=True),
]  # fmt: skip


def _words(months: int, days: int, nanoseconds: int) -> str:
    """An interval as both databases read it."""
    return f"{months} months {days} days {nanoseconds // 1000} microseconds"


def column(number: int) -> str:
    """The name of a sample's column."""
    return f"c{number:02}"


class Ends(NamedTuple):
    """Where the transfers read and write."""

    folder: Path
    database: str
    s3: dict[str, Any]
    bucket: str
    api: str


# ── sources ──────────────────────────────────────────────────────────────────────────────────


ORDER = {"query": "SELECT * FROM samples ORDER BY id"}


def declared(samples: list[Sample]) -> dict[str, str]:
    """The types of the columns, for sources that have none."""
    return {column(number): sample.declared for number, sample in enumerate(samples)} | {"id": "integer"}


def sources(ends: Ends, samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Create every source with all samples; their fields in a transfer."""
    _fill_postgres(ends, samples)
    local = local_sources(ends.folder, samples)
    data = local.pop("data")
    rows = [json.loads(line) for line in (ends.folder / "in.jsonl").read_text().splitlines()]
    (ends.folder / "in.json").write_text(json.dumps(rows))
    stored = pq.read_table(ends.folder / "in.parquet")
    with pa.ipc.new_stream(ends.folder / "in.arrow", stored.schema) as file:
        file.write_table(stored)
    return {
        "postgres": {"kind": "postgres", "auth": ends.database, **ORDER},
        **local,
        "Arrow": {"kind": "file", "path": "in.arrow"},
        "JSON": {"kind": "file", "path": "in.json", "types": declared(samples)},
        **_sheets(ends.folder, samples),
        "http": {"kind": "http", "url": f"{ends.api}/in.jsonl", "types": declared(samples)},
        "data": data,
    }


def sheet_samples(samples: list[Sample]) -> list[Sample]:
    """The samples without what a cell of a sheet or of fixed width cannot have: empty values and line breaks."""
    return [
        sample._replace(
            values=[_in_sheet(value) if sample.name in ("text", "bytes") else value for value in sample.values]
        )
        for sample in samples
    ]


def _in_sheet(value: Any) -> Any:
    return (value.replace("\n", " ") if isinstance(value, str) else value) or None


def _sheets(folder: Path, samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Sources whose cells are texts."""
    numbered, types = list(enumerate(sheet_samples(samples))), declared(samples)
    names = ["id", *(column(n) for n, _ in numbered)]
    rows = [[str(row), *(_cell_text(s, s.at(row)) for _, s in numbered)] for row in range(ROWS)]
    write_workbook(folder / "in.xlsx", [list(names), *rows])
    widths = dict(zip(names, write_fixed(folder / "in.txt", rows), strict=True))
    return {
        "Excel": {"kind": "file", "path": "in.xlsx", "types": types},
        "fixed width": {"kind": "file", "path": "in.txt", "format": "fixed", "widths": widths, "types": types},
    }


def _cell_text(sample: Sample, value: Any) -> str | None:
    if value is None:
        return None
    plain = sample.plain(value)
    return plain if isinstance(plain, str) and sample.name != "json" else json.dumps(plain)


def local_sources(folder: Path, samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """The sources that need no server."""
    numbered = list(enumerate(samples))
    types = declared(samples)
    plain = [
        {"id": row} | {column(n): None if s.at(row) is None else s.plain(s.at(row)) for n, s in numbered}
        for row in range(ROWS)
    ]
    _fill_duckdb(folder, samples)
    _fill_sqlite(folder, samples, plain)
    _write_parquet(folder, samples)
    is_json = {column(n): sample.name == "json" for n, sample in numbered}
    csv = [",".join(plain[0])] + [
        ",".join(_csv_cell(value, is_json=is_json.get(name, False)) for name, value in row.items()) for row in plain
    ]
    (folder / "in.csv").write_text("\n".join(csv) + "\n", newline="")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    return {
        "duckdb": {"kind": "duckdb", "file": "in.duckdb", **ORDER},
        "sqlite": {"kind": "sqlite", "file": "in.sqlite", "types": types, **ORDER},
        "Parquet": {"kind": "file", "path": "in.parquet"},
        "CSV": {"kind": "file", "path": "in.csv", "types": types},
        "JSON lines": {"kind": "file", "path": "in.jsonl", "types": types},
        "data": {"kind": "data", "data": plain, "types": types},
    }


def _fill_postgres(ends: Ends, samples: list[Sample]) -> None:
    columns = ", ".join(f"{column(n)} {s.postgres}" for n, s in enumerate(samples))
    with psycopg.connect(ends.database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE samples (id int, {columns})")
        for row in range(ROWS):
            values = [_postgres_text(s, s.at(row)) for s in samples]
            marks = ", ".join(f"%s::text::{s.postgres}" for s in samples)
            connection.execute(f"INSERT INTO samples VALUES (%s, {marks})", [row, *values])  # type: ignore[arg-type]


def _postgres_text(sample: Sample, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return _array_text(value, "{}") if sample.is_array else sample.text(value)


def _fill_duckdb(folder: Path, samples: list[Sample]) -> None:
    columns = ", ".join(f"{column(n)} {s.duckdb}" for n, s in enumerate(samples))
    with duckdb.connect(str(folder / "in.duckdb")) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE samples (id int, {columns})")
        for row in range(ROWS):
            values = [_duckdb_value(s, s.at(row)) for s in samples]
            marks = ", ".join(f"CAST(? AS {s.duckdb})" for s in samples)
            connection.execute(f"INSERT INTO samples VALUES (?, {marks})", [row, *values])


def _duckdb_value(sample: Sample, value: Any) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    return _array_text(value, "[]") if sample.is_array else sample.text(value)


def _fill_sqlite(folder: Path, samples: list[Sample], plain: list[dict[str, Any]]) -> None:
    connection = sqlite3.connect(folder / "in.sqlite")
    columns = ", ".join(column(n) for n in range(len(samples)))
    connection.execute(f"CREATE TABLE samples (id integer, {columns})")
    for row in plain:
        values = [json.dumps(v) if isinstance(v, list | dict) else v for v in row.values()]
        for n, sample in enumerate(samples):
            if sample.name == "json" and row[column(n)] is not None:
                values[n + 1] = json.dumps(row[column(n)])
        connection.execute(f"INSERT INTO samples VALUES ({', '.join('?' * len(values))})", values)
    connection.commit()
    connection.close()


def _write_parquet(folder: Path, samples: list[Sample]) -> None:
    arrays: dict[str, Any] = {"id": pa.array(range(ROWS), pa.int32())}
    for n, sample in enumerate(samples):
        values = [sample.at(row) for row in range(ROWS)]
        if sample.arrow is None:  # Parquet has no such type
            arrays[column(n)] = pa.array([None if v is None else sample.plain(v) for v in values], pa.string())
        elif sample.arrow == pa.uuid():
            arrays[column(n)] = pa.array([None if v is None else v.bytes for v in values], pa.uuid())
        elif sample.arrow == pa.json_():
            arrays[column(n)] = pa.array([None if v is None else json.dumps(v) for v in values], pa.json_())
        elif sample.name == "uuid[]":
            arrays[column(n)] = pa.array([None if v is None else [str(i) for i in v] for v in values], sample.arrow)
        else:
            arrays[column(n)] = pa.array(values, sample.arrow)
    pq.write_table(pa.table(arrays), folder / "in.parquet")


def _csv_cell(value: Any, *, is_json: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) and not is_json else json.dumps(value)
    return '"' + text.replace('"', '""') + '"' if isinstance(value, str | list | dict) else text


# ── targets ──────────────────────────────────────────────────────────────────────────────────


class Stored(NamedTuple):
    """A column as a target has it: its type there, and its values."""

    type: str
    values: list[Any]


def targets(ends: Ends) -> dict[str, tuple[dict[str, Any], Callable[[list[Sample]], list[Stored]]]]:
    """The fields of every target, and what reads it."""
    parts = {name: ends.s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    return {
        "postgres": ({"kind": "postgres", "auth": ends.database, "table": "out"}, lambda s: _read_postgres(ends, s)),
        **local_targets(ends.folder),
        "Arrow": ({"kind": "file", "path": "out.arrow"}, lambda s: _read_arrow(ends.folder / "out.arrow", s)),
        "S3 (Parquet)": (
            {"kind": "s3", "path": f"s3://{ends.bucket}/out.parquet", "auth": parts},
            lambda s: _read_s3(ends, s),
        ),
    }


def local_targets(folder: Path) -> dict[str, tuple[dict[str, Any], Callable[[list[Sample]], list[Stored]]]]:
    """The targets that need no server."""
    return {
        "duckdb": ({"kind": "duckdb", "file": "out.duckdb", "table": "out"}, lambda s: _read_duckdb(folder, s)),
        "sqlite": ({"kind": "sqlite", "file": "out.sqlite", "table": "out"}, lambda s: _read_sqlite(folder, s)),
        "Parquet": ({"kind": "file", "path": "out.parquet"}, lambda s: _read_parquet(folder / "out.parquet", s)),
        "CSV": ({"kind": "file", "path": "out.csv"}, lambda s: _read_csv(folder / "out.csv", s)),
        "JSON lines": ({"kind": "file", "path": "out.jsonl"}, lambda s: _read_json(folder / "out.jsonl", s)),
    }


def _read_postgres(ends: Ends, samples: list[Sample]) -> list[Stored]:
    stored = []
    with psycopg.connect(ends.database) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        types = dict(connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'out'::regclass AND attnum > 0").fetchall())  # fmt: skip
        for n in range(len(samples)):
            text = f"to_jsonb({column(n)})::text" if types[column(n)].endswith("[]") else f"{column(n)}::text"
            if types[column(n)].startswith("numeric") and types[column(n)].endswith("[]"):
                text = f"to_jsonb({column(n)}::text[])::text"
            found = connection.execute(f"SELECT {text} FROM out ORDER BY id").fetchall()  # type: ignore[arg-type]
            stored.append(Stored(types[column(n)], [row[0] for row in found]))
    return stored


def _read_duckdb(folder: Path, samples: list[Sample]) -> list[Stored]:
    with duckdb.connect(str(folder / "out.duckdb"), read_only=True) as connection:
        return [read_duckdb_column(connection, "out", column(n)) for n in range(len(samples))]


def read_duckdb_column(connection: Any, table: str, name: str) -> Stored:
    """A column of a table of DuckDB."""
    connection.execute("SET TimeZone = 'UTC'")
    kind = connection.execute(f"SELECT typeof({name}) FROM {table}").fetchall()[0][0]
    text = f"{name}::VARCHAR"
    if kind.endswith("[]"):
        text = f"to_json({name}::VARCHAR[])::VARCHAR"
    if kind == "BLOB":
        text = f"'\\x' || hex({name})"
    if kind == "INTERVAL":
        text = name
    rows = connection.sql(f"SELECT {text} AS v FROM {table} ORDER BY id").to_arrow_table().column(0).to_pylist()
    return Stored(kind, rows)


def _read_sqlite(folder: Path, samples: list[Sample]) -> list[Stored]:
    connection = sqlite3.connect(folder / "out.sqlite")
    stored = []
    for n in range(len(samples)):
        found = connection.execute(f"SELECT {column(n)}, typeof({column(n)}) FROM out ORDER BY id").fetchall()
        kinds = sorted({kind for _, kind in found} - {"null"})
        stored.append(Stored(" or ".join(kinds), [value for value, _ in found]))
    connection.close()
    return stored


def _read_parquet(path: Any, samples: list[Sample]) -> list[Stored]:
    return read_table(pq.read_table(path).sort_by("id"), samples)


def _read_arrow(path: Path, samples: list[Sample]) -> list[Stored]:
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        return read_table(stream.read_all().sort_by("id"), samples)


def read_table(table: Any, samples: list[Sample]) -> list[Stored]:
    """The columns of an Arrow table."""
    return [
        Stored(str(table.schema.field(column(n)).type).replace("extension<arrow.", "").replace(">", "")
               if "extension" in str(table.schema.field(column(n)).type) else
               str(table.schema.field(column(n)).type).replace("element: ", "").replace("item: ", ""),
               table.column(column(n)).to_pylist())
        for n in range(len(samples))
    ]  # fmt: skip


def _read_s3(ends: Ends, samples: list[Sample]) -> list[Stored]:
    import obstore
    from obstore.store import S3Store

    config = {name: ends.s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    store = S3Store(ends.bucket, config=config, client_options={"allow_http": True})  # type: ignore[arg-type]
    content = obstore.get(store, "out.parquet").bytes()
    return _read_parquet(pa.BufferReader(bytes(content)), samples)


def _read_csv(path: Path, samples: list[Sample]) -> list[Stored]:
    rows = duckdb.sql(
        f"SELECT {', '.join(map(column, range(len(samples))))} FROM read_csv('{path}', all_varchar=true, header=true, delim=',', quote='\"', escape='\"', "
        "allow_quoted_nulls=false) ORDER BY id::int"
    ).fetchall()
    return [Stored("text", [row[n] for row in rows]) for n in range(len(samples))]


def _read_json(path: Path, samples: list[Sample]) -> list[Stored]:
    rows = [json.loads(line, parse_float=Decimal) for line in path.read_text().splitlines()]
    rows.sort(key=lambda row: row["id"])
    stored = []
    for n in range(len(samples)):
        values = [row[column(n)] for row in rows]
        kinds = {bool: "boolean", int: "number", Decimal: "number", str: "text", list: "list", dict: "object"}
        kind = " or ".join(sorted({kinds[type(v)] for v in values if v is not None}))
        if samples[n].name == "json":
            values = [json.dumps(value, default=float) if value is not None else None for value in values]
        stored.append(Stored(kind, values))
    return stored


# ── the matrix ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_ends(postgres: dict[str, Any], s3: dict[str, Any]) -> Iterator[Ends]:
    """A folder, a database, a bucket and an API."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-matrix-") as folder,
        services.fresh_database(postgres) as database,
        services.fresh_bucket(s3) as bucket,
        _api(Path(folder)) as api,
    ):
        yield Ends(Path(folder), database, s3, bucket, api)


@contextmanager
def _api(folder: Path) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            rows = [json.loads(line) for line in (folder / self.path.lstrip("/")).read_text().splitlines()]
            body = json.dumps(rows).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def transfer(ends: Ends, source: dict[str, Any], target: dict[str, Any]) -> Any:
    """Run one transfer."""
    return run_tool("transfer", {"source": source, "targets": [{**target, "mode": "replace"}]},
                    host=ToolHost(folder=ends.folder))  # fmt: skip


def reset(ends: Ends) -> None:
    """Remove what a transfer has written."""
    for path in ends.folder.glob("out.*"):
        path.unlink()
    with psycopg.connect(ends.database, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS out")


def differences(samples: list[Sample], stored: list[Stored]) -> list[str]:
    """The values that are not what was sent."""
    found = []
    for sample, column_ in zip(samples, stored, strict=True):
        sent = [sample.at(row) for row in range(ROWS)]
        try:
            arrived = [None if value is None else sample.read(value) for value in column_.values]
            expected = [value if value is None else _expected(sample, value) for value in sent]
        except Exception as problem:
            found.append(f"{sample.name} ({column_.type}): {column_.values!r}: {problem!r}")
            continue
        if arrived != expected:
            found.append(f"{sample.name} ({column_.type}): {expected!r} became {arrived!r}")
    return found


def _expected(sample: Sample, value: Any) -> Any:
    return sample.read(value) if sample.name in ("double: NaN, infinity", "real") else value


def page(cells: dict[str, dict[str, list[str]]]) -> str:
    """The documentation page: for every target, the type that each type has there, by source."""
    return "\n".join([HEAD.rstrip("\n"), "", *tables(cells, ALL), *_of_plugins()])


def _of_plugins() -> list[str]:
    """The tables that the tests of plug-ins have written."""
    lines = []
    for file in sorted(PLUGINS.glob("*/types.md")):
        name = file.parent.name
        text = file.read_text().replace("## ", "### ").rstrip("\n")
        lines += [f"## Plug-in [`noetl-{name}`](plugins/{name}.md)", "", text, ""]
    return lines


def tables(cells: dict[str, dict[str, list[str]]], samples: list[Sample] = SAMPLES) -> list[str]:
    """A table for each target."""
    lines = []
    for target, by_source in cells.items():
        names = list(by_source)
        lines += [f"## To {target}", "", f"| type | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for n, sample in enumerate(samples):
            kinds = [by_source[name][n] for name in names]
            lines.append(f"| {sample.name} | {' | '.join(kinds)} |")
        lines.append("")
    return lines


HEAD = """# Type matrix

Generated by `python -m tests.tools.type_matrix`; `tests/tools/test_type_matrix.py` runs every cell on real servers.

Every value of every cell arrives exactly: the test reads the target with its own driver and compares. A cell has the type
of the column that `transfer` creates. Sources without types of their own (SQLite, CSV, JSON, http, `data`; Excel and fixed width
here, whose cells are texts and cannot be empty texts) declare them with `types`; how values without a type in the target are written is in
[keep types in a transfer](../howto/keep-types.md). The tables of plug-ins are written by their own tests
(`NOETL_WRITE_TYPES=1 make test-plugins PLUGINS=NAME`), which also read what they have written.
"""


def measure(ends: Ends) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Run all transfers: the types at each target by source, and everything that is wrong."""
    cells: dict[str, dict[str, list[str]]] = {}
    wrong: list[str] = []
    every = sources(ends, ALL)
    for target_name, (target, read) in targets(ends).items():
        for source_name, source in every.items():
            reset(ends)
            outcome = transfer(ends, source, target)
            if outcome.error is not None:
                wrong.append(f"{source_name} -> {target_name}: {outcome.error.message}")
                continue
            samples = sheet_samples(ALL) if source_name in ("Excel", "fixed width") else ALL
            stored = read(samples)
            cells.setdefault(target_name, {})[source_name] = [each.type for each in stored]
            wrong += [f"{source_name} -> {target_name}: {each}" for each in differences(samples, stored)]
    return cells, wrong


def main() -> None:
    """Write the page."""
    key = f"matrix-{uuid.uuid4()}"
    with open_ends(services.shared("postgres", key), services.shared("s3", key)) as ends:
        cells, wrong = measure(ends)
    for each in wrong:
        print(each)
    if not wrong:
        PAGE.write_text(page(cells))


if __name__ == "__main__":
    main()
