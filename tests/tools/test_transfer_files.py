"""Files of a transfer: partitions, compression, only new objects, workbooks, fixed widths; and actions on objects."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import tracemalloc
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.data.files import table_files
from noetl.testing.tools import ToolHost, run_tool

PARTS = ("endpoint", "access_key_id", "secret_access_key", "region")


def move(folder: Path, source: Any, *targets: Any, **others: Any) -> Outcome:
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=ToolHost(folder=folder))


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


def failure(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


def test_files_of_killed_transfers_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
    kept = [f"o.jsonl.{host}-{os.getpid()}-999999.unfinished", "o.jsonl.elsewhere-1-1.unfinished", "mine.unfinished"]
    gone = [
        f"o.jsonl.{host}-{ended.pid}-1.unfinished",
        f"other.csv.{ended.pid}-9.unfinished",
        "o.jsonl.old-1-1.unfinished",
    ]
    for name in (*kept, *gone):
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / gone[2], (1, 1))
    for day in ("day=1", "day=2"):  # what may be the only copy of a partition stays
        (tmp_path / f"{day}.{host}-{ended.pid}-1.unfinished").mkdir()
    (tmp_path / "day=1").mkdir()
    good(move(tmp_path, [{"a": 1}], {"kind": "file", "path": "o.jsonl"}))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"o.jsonl", "day=1", f"day=2.{host}-{ended.pid}-1.unfinished", *kept}


# ── partitions ───────────────────────────────────────────────────────────────────────────────


def orders(*days: int, price: float = 1.5) -> dict[str, Any]:
    rows = [
        {"id": day * 10 + n, "region": region, "at": f"2024-01-{day:02}T0{n}:00:00Z", "price": price}
        for day in days
        for n, region in enumerate(["eu", "us/west", None])
    ]
    return {"kind": "data", "data": rows, "types": {"at": "timestamptz"}}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_rows_are_divided_into_folders(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "lake", "partition_by": ["region", "date_trunc('day', at)"]}
    good(move(tmp_path, orders(1, 2), target))
    assert files(tmp_path / "lake") == sorted(
        f"region={region}/at_day=2024-01-0{day}/part-0.parquet"
        for region in ("eu", "us%2Fwest", "__HIVE_DEFAULT_PARTITION__")
        for day in (1, 2)
    )
    found = duckdb.sql(f"select count(*), count(distinct id) from '{tmp_path}/lake/**/*.parquet'").fetchall()
    assert found == [(6, 6)]


def test_running_a_day_again_replaces_its_partition_only(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "lake", "partition_by": "date_trunc('day', at) as day", "format": "jsonl"}
    good(move(tmp_path, orders(1, 2), target))
    before = files(tmp_path / "lake")
    good(move(tmp_path, orders(2, price=9.0), target))
    assert files(tmp_path / "lake") == before == ["day=2024-01-01/part-0.jsonl", "day=2024-01-02/part-0.jsonl"]
    prices = [
        {json.loads(line)["price"] for line in (tmp_path / "lake" / name).read_text().splitlines()} for name in before
    ]
    assert prices == [{1.5}, {9.0}]


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_rows_of_many_partitions_are_encoded_one_partition_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    from noetl.tools.transfer.targets.files import object_target, partitioned_target

    open_encoders: set[int] = set()
    most = 0

    class Counted(object_target.FileEncoder):
        def write(self, table: Any) -> bytes:
            nonlocal most
            open_encoders.add(id(self))
            most = max(most, len(open_encoders))
            return super().write(table)

        def close(self, schema: Any) -> bytes:
            open_encoders.discard(id(self))
            return super().close(schema)

    monkeypatch.setattr(object_target, "FileEncoder", Counted)
    monkeypatch.setattr(partitioned_target, "MAX_WAITING", 2000)
    rows = [{"id": n, "p": n % 100, "name": f"name {n}"} for n in range(1000)]
    target = {"kind": "file", "path": "lake", "partition_by": ["p"], "format": format}
    call = {"source": {"kind": "data", "data": rows}, "targets": [target], "chunk": {"size": 50}}
    good(run_tool("transfer", call, host=ToolHost(folder=tmp_path)))
    assert most <= partitioned_target.MAX_ENCODERS + 1
    assert len(files(tmp_path / "lake")) == 100
    stored = duckdb.sql(f"select id, p, name from '{tmp_path}/lake/*/*.{format}' order by id").fetchall()
    assert stored == [(row["id"], row["p"], row["name"]) for row in rows]
    assert duckdb.sql(f"select id from '{tmp_path}/lake/p=7/part-0.{format}'").fetchall() == [
        (n,) for n in range(7, 1000, 100)
    ]


def test_append_adds_a_file_to_a_partition_and_replace_removes_all_of_them(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "lake", "partition_by": ["date_trunc('month', at)"]}
    for number in range(3):
        call = {"source": orders(number + 1), "targets": [{**target, "mode": "append"}]}
        good(run_tool("transfer", call, host=ToolHost(folder=tmp_path), part=f"-{number}"))
    folder = tmp_path / "lake" / "at_month=2024-01"
    assert len(files(folder)) == 3
    good(move(tmp_path, orders(9), target))
    assert files(tmp_path / "lake") == ["at_month=2024-01/part-0.parquet"]
    assert pq.read_table(folder / "part-0.parquet").num_rows == 3


def _replace(folder: str, price: float, stop_at: int) -> None:
    """Replace the partitions in a process that is killed at a call of `os.rename`, `os.replace` or `renameat2`."""
    from noetl.tools.transfer.targets.files import partitions

    calls = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **named)

        return call

    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.mkdir = counted(Path.mkdir)  # type: ignore[method-assign]
    partitions._exchange = counted(partitions._exchange)
    partitions.shutil.rmtree = counted(partitions.shutil.rmtree)  # type: ignore[assignment]
    target = {"kind": "file", "path": "lake", "partition_by": ["date_trunc('day', at)"]}
    outcome = move(Path(folder), orders(1, 2, price=price), target)
    os._exit(0 if outcome.error is None else 1)


@pytest.mark.parametrize("stop_at", range(1, 12))
def test_a_killed_transfer_leaves_the_old_or_the_new_partition(tmp_path: Path, stop_at: int) -> None:
    target = {"kind": "file", "path": "lake", "partition_by": ["date_trunc('day', at)"]}
    good(move(tmp_path, orders(1, 2), target))
    extra = tmp_path / "lake" / "at_day=2024-01-02" / "more.parquet"
    extra.write_bytes((tmp_path / "lake" / "at_day=2024-01-02" / "part-0.parquet").read_bytes())
    process = multiprocessing.get_context("spawn").Process(target=_replace, args=(str(tmp_path), 9.0, stop_at))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    for day, old in (("at_day=2024-01-01", 3), ("at_day=2024-01-02", 6)):
        prices = duckdb.sql(
            f"select price from '{tmp_path}/lake/*/*.parquet' where 'at_day=' || \"at\"::date = '{day}'"
        ).fetchall()
        assert prices in ([(1.5,)] * old, [(9.0,)] * 3), (day, process.exitcode)
    good(move(tmp_path, orders(1, 2, price=9.0), target))
    found = duckdb.sql(
        f"select distinct price, count(*) from '{tmp_path}/lake/at_day=2024-01-0?/*.parquet' group by 1"
    ).fetchall()
    assert found == [(9.0, 6)]


NAMES = ("in/2023.csv", "in/2024.csv", "in/2025.csv", "in/{a,b}.csv", "odd/{a,b}.csv", "odd/a.csv", "odd/{1,2}/x.csv")


@pytest.mark.parametrize("kind", ["file", "s3"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("in/{2024,2025}.csv", [1, 2]),
        ("{in,odd}/{2024,a}*.csv", [1, 5]),
        ("in/20{23,{24,26}}.csv", [0, 1]),
        ("in/{2023,none}.csv", [0]),
        ("in/{a,b}.csv", [3]),  # nothing else has such a name
        ("odd/{a,b}.csv", [5]),
        ("odd/[{]a,b}.csv", [4]),
        ("odd/{1,2}/*.csv", [6]),
    ],
)
def test_alternatives_in_patterns(
    tmp_path: Path, s3: dict[str, Any], bucket: str, kind: str, path: str, expected: list[int]
) -> None:
    auth = {name: s3[name] for name in PARTS}
    base = "" if kind == "file" else f"s3://{bucket}/"
    others = {} if kind == "file" else {"auth": auth}
    for number, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"id\n{number}\n")
        if kind == "s3":
            good(run_tool("object", {"uri": base + name, "data": f"id\n{number}\n", "format": "text", **others}))
    source = {"kind": kind, "path": base + path, **others}
    good(move(tmp_path, source, {"kind": "file", "path": "o.jsonl"}))
    assert [json.loads(line)["id"] for line in (tmp_path / "o.jsonl").read_text().splitlines()] == expected
    missing = {**source, "path": f"{base}none/{{a,b}}.csv"}
    assert "none/{a,b}.csv" in failure(move(tmp_path, missing, {"kind": "file", "path": "o.jsonl"}))


@pytest.mark.parametrize(
    ("place", "name", "value", "where"),
    [
        ("source", "nested", "tables", "a target"),
        ("source", "mode", "replace", "a target"),
        ("source", "bad_rows", "quarantine", "beside `source`, or to a target"),
        ("targets", "incremental", {"cursor": "id"}, "the source"),
        ("targets", "only_new", True, "the source"),
        ("targets", "types", {"id": "text"}, "the source"),
        ("task", "incremental", {"cursor": "id"}, "the source"),
    ],
)
def test_fields_at_the_wrong_level(tmp_path: Path, place: str, name: str, value: Any, where: str) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n")
    source = {"kind": "file", "path": "in.csv"} | ({name: value} if place == "source" else {})
    target = {"kind": "sqlite", "file": "o.sqlite", "table": "t"} | ({name: value} if place == "targets" else {})
    message = failure(move(tmp_path, source, target, **({name: value} if place == "task" else {})))
    assert f"`{name}` belongs {'to ' if 'beside' not in where else ''}{where}" in message
    assert not (tmp_path / "o.sqlite").exists()


def test_partitions_of_an_object_store_are_single_objects(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    auth = {name: s3[name] for name in PARTS}
    target = {"kind": "s3", "auth": auth, "path": f"s3://{bucket}/lake", "partition_by": ["date_trunc('day', at)"]}
    for price in (1.5, 9.0):
        good(move(tmp_path, orders(1, 2, price=price), target))
    listing = {"action": "list", "uri": f"s3://{bucket}/lake", "auth": auth}
    keys = [each["key"] for each in good(run_tool("object", listing))["objects"]]
    assert keys == ["lake/at_day=2024-01-01/part-0.parquet", "lake/at_day=2024-01-02/part-0.parquet"]
    source = {"kind": "s3", "auth": auth, "path": f"s3://{bucket}/lake/**/*.parquet"}
    good(move(tmp_path, source, {"kind": "duckdb", "file": "o.duckdb", "table": "t"}))
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        assert connection.execute("select count(*), min(price) from t").fetchall() == [(6, 9.0)]
    other = {"uri": f"s3://{bucket}/lake/at_day=2024-01-02/other.parquet", "auth": auth, "data": [{"a": 1}]}
    good(run_tool("object", other))
    assert "objects that mode replace did not write" in failure(move(tmp_path, orders(2), target))


def test_partitions_stay_in_their_folder(tmp_path: Path) -> None:
    source = {"kind": "data", "data": [{"id": 1, "../up": "../x", "doc": {"a": [1]}}]}
    good(move(tmp_path, source, {"kind": "file", "path": "lake", "partition_by": ["../up", "doc"]}))
    assert files(tmp_path) == ["lake/..%2Fup=..%2Fx/doc=%7B%22a%22%3A%5B1%5D%7D/part-0.parquet"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition_by": ["nothing"]}, "the rows have no column 'nothing'"),
        (
            {"partition_by": ["date_trunc('day', region)"]},
            "date_trunc needs a date or timestamp, and 'region' is string",
        ),
        ({"partition_by": ["date_trunc('century', at)"]}, "the unit 'century' is not one of"),
        ({"partition_by": ["lower(region)"]}, "is neither a column nor date_trunc"),
        ({"partition_by": [5]}, "`partition_by` is a list of columns"),
        ({"partition_by": ["region", "region"]}, "has the same name twice"),
        ({"partition_by": ["id"], "compression": "lzma"}, "compression 'lzma' is not one of zstd, gzip, snappy, none"),
        ({"path": "x.csv.gz", "compression": "snappy"}, "compression 'snappy' is not one of gzip, zstd, bz2, xz, none"),
        ({"path": "x.parquet.gz"}, "parquet is compressed inside the file"),
        ({"path": "x.csv", "mode": "append"}, "use `partition_by`"),
    ],
)
def test_wrong_fields_of_files_are_errors(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    assert message in failure(move(tmp_path, orders(1), {"kind": "file", "path": "lake", **fields}))
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob("*.unfinished"))


# ── compression ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["o.csv.gz", "o.jsonl.zst", "o.json.gz", "o.csv.zst", "o.csv.bz2", "o.jsonl.xz"])
def test_compressed_files_are_written_and_read(tmp_path: Path, path: str) -> None:
    rows = [{"id": n, "text": f"żółć {n}"} for n in range(5000)]
    good(move(tmp_path, rows, {"kind": "file", "path": path}))
    plain = len(json.dumps(rows))
    assert (tmp_path / path).stat().st_size < plain / 3
    good(move(tmp_path, {"kind": "file", "path": path}, {"kind": "duckdb", "file": "o.duckdb", "table": "t"}))
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        assert connection.execute("select count(*), max(text) from t").fetchall() == [(5000, "żółć 999")]
    got = good(run_tool("object", {"action": "get", "uri": str(tmp_path / path)}))
    assert len(got if isinstance(got, list) else got["rows"]) == 5000


@pytest.mark.parametrize("path", ["o.csv.gz", "o.jsonl.zst", "o.json.gz"])
def test_files_without_compression_may_have_any_ending(tmp_path: Path, path: str) -> None:
    side = {"kind": "file", "path": path, "compression": "none"}
    good(move(tmp_path, [{"id": 1}, {"id": 2}], side))
    good(move(tmp_path, side, {"kind": "file", "path": "o.parquet"}))
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("path", ["o.csv.snappy", "o.jsonl.lz4", "o.csv.zip"])
def test_rows_are_not_written_as_parquet_under_the_name_of_another_compression(tmp_path: Path, path: str) -> None:
    message = failure(move(tmp_path, [{"id": 1}], {"kind": "file", "path": path}))
    assert message.endswith("is not supported; use .gz, .zst, .bz2 or .xz") and not (tmp_path / path).exists()


def test_the_codec_inside_a_parquet_file_can_be_chosen(tmp_path: Path) -> None:
    for codec, name in (("gzip", "GZIP"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED"), (None, "ZSTD")):
        target = {"kind": "file", "path": f"{codec}.parquet", **({"compression": codec} if codec else {})}
        good(move(tmp_path, [{"a": 1}], target))
        meta = pq.ParquetFile(tmp_path / f"{codec}.parquet").metadata
        assert meta.row_group(0).column(0).compression == name


def test_a_file_that_is_not_compressed_as_its_name_says_is_an_error(tmp_path: Path) -> None:
    for name in ("x.csv.gz", "x.csv.zst", "x.csv.bz2", "x.csv.xz"):
        (tmp_path / name).write_text("a\n1\n")
        message = failure(move(tmp_path, {"kind": "file", "path": name}, {"kind": "file", "path": "o.jsonl"}))
        assert name in message and "not valid" in message
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a\n1\n2\n" * 1000)[:-20])
    assert "cut.csv.gz: the content is not valid gzip: Compressed" in failure(
        move(tmp_path, {"kind": "file", "path": "cut.csv.gz"}, {"kind": "file", "path": "o.jsonl"})
    )


# ── only new objects ─────────────────────────────────────────────────────────────────────────


def count(place: dict[str, Any], folder: Path) -> list[tuple[Any, ...]]:
    query = "select count(*), count(distinct id) from t"
    if place["kind"] == "postgres":
        with psycopg.connect(place["auth"]) as connection:
            return connection.execute(query).fetchall()
    kind = place["kind"]
    rows = good(run_tool(kind, {"file": place["file"], "command": query}, host=ToolHost(folder=folder)))["rows"]
    return [tuple(row.values()) for row in rows]


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def table(request: pytest.FixtureRequest, database: str) -> dict[str, Any]:
    place = {"auth": database} if request.param == "postgres" else {"file": f"t.{request.param}"}
    return {"kind": request.param, "table": "t", **place}


def test_objects_are_loaded_once(tmp_path: Path, table: dict[str, Any]) -> None:
    source = {"kind": "file", "glob": "in/*.csv", "only_new": True}
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.csv").write_text(f"id,name\n{number},a\n")
    first = good(move(tmp_path, source, table))
    assert first["objects"] == {"loaded": 3, "skipped": 0}
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 0, "skipped": 3}
    (tmp_path / "in" / "9.csv").write_text("id,name\n9,a\n")
    (tmp_path / "in" / "0.csv").write_text("id,name\n100,changed\n")
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 2, "skipped": 2}
    assert count(table, tmp_path) == [(5, 5)]


def test_a_failed_load_remembers_nothing(tmp_path: Path, table: dict[str, Any]) -> None:
    source = {"kind": "file", "glob": "in/*.jsonl", "only_new": True, "types": {"id": "bigint"}}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "in" / "2.jsonl").write_text('{"id": "no number"}\n')
    assert "2.jsonl" in failure(move(tmp_path, source, table))
    (tmp_path / "in" / "2.jsonl").write_text('{"id": 2}\n')
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 2, "skipped": 0}
    assert count(table, tmp_path) == [(2, 2)]


def _load(folder: str, table: dict[str, Any], stop_before: str) -> None:
    """Load in a process that is killed before a step of the target."""
    from noetl.tools.transfer.targets import duckdb_target, postgres_target

    async def killed(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    cls: Any = {"postgres": postgres_target.PostgresTarget, "duckdb": duckdb_target.DuckdbTarget}[table["kind"]]
    if stop_before == "after commit":
        commit = cls.commit

        async def commit_and_stop(self: Any) -> None:
            await commit(self)
            os.kill(os.getpid(), signal.SIGKILL)

        cls.commit = commit_and_stop
    else:
        setattr(cls, stop_before, killed)
    move(Path(folder), {"kind": "file", "glob": "in/*.csv", "only_new": True}, table)


@pytest.mark.parametrize("stop_before", ["write", "prepare", "record_objects", "commit", "after commit"])
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
def test_a_killed_load_loses_and_doubles_nothing(tmp_path: Path, database: str, kind: str, stop_before: str) -> None:
    place = {"auth": database} if kind == "postgres" else {"file": "t.duckdb"}
    table = {"kind": kind, "table": "t", **place}
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / "in" / f"{number}.csv").write_text(f"id\n{number}\n")
    process = multiprocessing.get_context("spawn").Process(target=_load, args=(str(tmp_path), table, stop_before))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    summary = good(move(tmp_path, {"kind": "file", "glob": "in/*.csv", "only_new": True}, table))
    assert summary["objects"]["loaded"] == (0 if stop_before == "after commit" else 5)
    assert count(table, tmp_path) == [(5, 5)]


def test_only_new_reads_object_stores(tmp_path: Path, s3: dict[str, Any], bucket: str, table: dict[str, Any]) -> None:
    auth = {name: s3[name] for name in PARTS}
    for number in range(3):
        put = {"uri": f"s3://{bucket}/in/{number}.jsonl.gz", "auth": auth, "data": [{"id": number}]}
        good(run_tool("object", put))
    source = {"kind": "s3", "auth": auth, "glob": f"s3://{bucket}/in/*.jsonl.gz", "only_new": True}
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 3, "skipped": 0}
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 0, "skipped": 3}
    assert count(table, tmp_path) == [(3, 3)]


def test_a_folder_without_objects_has_nothing_new(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    auth = {name: s3[name] for name in PARTS}
    (tmp_path / "in").mkdir()
    table = {"kind": "duckdb", "file": "t.duckdb", "table": "t"}
    for kind, folder in (("file", "in"), ("s3", f"s3://{bucket}/in")):
        source = {"kind": kind, "auth": auth, "glob": f"{folder}/*.csv", "only_new": True}
        moved = good(move(tmp_path, source, table))
        assert (moved["rows"], moved["objects"]) == (0, {"loaded": 0, "skipped": 0})
        assert "not found" in failure(move(tmp_path, {**source, "only_new": False}, table))
        assert "not found" in failure(move(tmp_path, {**source, "glob": f"{folder}/a.csv"}, table))
    for kind, folder in (("file", "other"), ("s3", f"s3://no-{bucket}/in")):
        source = {"kind": kind, "auth": auth, "glob": f"{folder}/*.csv", "only_new": True}
        assert "not found" in failure(move(tmp_path, source, table))


@pytest.mark.parametrize("empty", ["e.csv", "e.jsonl", "e.json", "rows.json"])
def test_a_file_without_rows_has_no_columns_and_empties_what_it_replaces(tmp_path: Path, empty: str) -> None:
    (tmp_path / empty).write_text({"e.json": "[]", "rows.json": '{"data": []}'}.get(empty, ""))
    source = {"kind": "file", "path": empty}
    new = {"kind": "sqlite", "file": "n.sqlite", "table": "t"}
    for given in (source, {**source, "types": {"id": "bigint"}}):
        assert good(move(tmp_path, given, new, {"kind": "file", "path": "new.parquet"}))["rows"] == 0
    assert not (tmp_path / "new.parquet").exists()
    old = [{"kind": "file", "path": f"o.{ending}"} for ending in ("jsonl", "json", "csv", "parquet")]
    for data in ({"kind": "data", "data": [{"id": 1}]}, source):
        good(move(tmp_path, data, *old))
    for target in old:
        assert good(move(tmp_path, target, {**new, "table": "copy"}))["rows"] == 0
    good(move(tmp_path, {"kind": "data", "data": [{"id": 1}]}, new))
    assert pq.read_schema(tmp_path / "o.parquet").names == ["id"]


def test_only_new_needs_one_table_that_grows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    source = {"kind": "file", "glob": "*.csv", "only_new": True}
    table = {"kind": "sqlite", "file": "t.sqlite", "table": "t"}
    assert "exactly one target" in failure(move(tmp_path, source, {**table, "mode": "replace"}))
    assert "exactly one target" in failure(move(tmp_path, source, table, {**table, "table": "u"}))
    assert "a table of postgres, duckdb or sqlite" in failure(move(tmp_path, source, {"kind": "file", "path": "o.csv"}))


# ── workbooks and fixed widths ───────────────────────────────────────────────────────────────


SHEET = """<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>
<row r="2"><c r="A2" t="inlineStr"><is><t>id</t></is></c><c r="B2" t="inlineStr"><is><t>name</t></is></c>
<c r="C2" t="inlineStr"><is><t>price</t></is></c><c r="D2" t="inlineStr"><is><t>at</t></is></c>
<c r="E2" t="inlineStr"><is><t>ok</t></is></c></row>
<row r="3"><c r="A3"><v>1</v></c><c r="B3" t="inlineStr"><is><t>a</t></is></c><c r="C3"><v>1.5</v></c>
<c r="D3" s="1"><v>45293.5</v></c><c r="E3" t="b"><v>1</v></c></row>
<row r="4"><c r="A4"><v>2</v></c><c r="C4"><v>2</v></c><c r="E4" t="b"><v>0</v></c></row>
</sheetData></worksheet>"""
WORKBOOK = {
    "[Content_Types].xml": """<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Default Extension="xml" ContentType="application/xml"/></Types>""",
    "_rels/.rels": """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
Target="xl/workbook.xml"/></Relationships>""",
    "xl/workbook.xml": """<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"
xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>
<sheet name="Sheet" sheetId="1" r:id="r1"/><sheet name="second" sheetId="2" r:id="r2"/></sheets></workbook>""",
    "xl/_rels/workbook.xml.rels": """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/>
<Relationship Id="r2" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet2.xml"/>
<Relationship Id="r3" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles" Target="styles.xml"/>
</Relationships>""",
    "xl/styles.xml": """<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><cellXfs count="2">
<xf numFmtId="0"/><xf numFmtId="22" applyNumberFormat="1"/></cellXfs></styleSheet>""",
    "xl/worksheets/sheet1.xml": SHEET,
    "xl/worksheets/sheet2.xml": '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData/></worksheet>',
}  # fmt: skip


def test_a_sheet_of_a_workbook_is_read_with_its_types(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        for name, content in WORKBOOK.items():
            archive.writestr(name, content)
    good(move(tmp_path, {"kind": "file", "path": "b.xlsx"}, {"kind": "file", "path": "o.parquet"}))
    table = pq.read_table(tmp_path / "o.parquet")
    assert [str(field.type) for field in table.schema] == ["int64", "string", "double", "timestamp[us]", "bool"]
    first, second = table.to_pylist()
    assert first == {"id": 1, "name": "a", "price": 1.5, "at": datetime.fromisoformat("2024-01-02T12:00"), "ok": True}
    assert second == {"id": 2, "name": None, "price": 2.0, "at": None, "ok": False}
    for sheet, message in (("third", "no sheet 'third'; its sheets are Sheet, second"), (7, "has 2 sheets")):
        wrong = move(tmp_path, {"kind": "file", "path": "b.xlsx", "sheet": sheet}, {"kind": "file", "path": "o.csv"})
        assert message in failure(wrong)
    (tmp_path / "bad.xlsx").write_text("no workbook")
    assert "cannot be read as a workbook" in failure(
        move(tmp_path, {"kind": "file", "path": "bad.xlsx"}, {"kind": "file", "path": "o.csv"})
    )


def workbook(path: Path, *rows: list[Any]) -> None:
    def cell(value: Any) -> str:
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        return "<c/>" if value is None else f"<c><v>{value}</v></c>"

    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = f'<worksheet xmlns="{space}"><sheetData>{lines}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (WORKBOOK | {"xl/worksheets/sheet1.xml": sheet}).items():
            archive.writestr(name, content)


def test_the_row_with_the_names_can_be_chosen(tmp_path: Path) -> None:
    workbook(tmp_path / "b.xlsx", ["Report"], [], ["id", 2024, "code"], [1, 2.5, "A7"], [2, 3, 12])
    source = {"kind": "file", "path": "b.xlsx", "header_row": 3}
    good(move(tmp_path, source, {"kind": "file", "path": "o.jsonl"}))
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "2024": 2.5, "code": "A7"}, {"id": 2, "2024": 3.0, "code": 12}]
    for number, message in ((0, "from 1, not 0"), (9, "has no row 9")):
        assert message in failure(move(tmp_path, {**source, "header_row": number}, {"kind": "file", "path": "o.csv"}))


def test_the_encoding_of_a_file_of_fixed_width(tmp_path: Path) -> None:
    source = {"kind": "file", "path": "in.txt", "format": "fixed", "widths": {"id": 2, "name": 5}}
    target = {"kind": "file", "path": "o.jsonl"}
    (tmp_path / "in.txt").write_text("01Änna\n", encoding="utf-8-sig")
    good(move(tmp_path, source, target))
    assert json.loads((tmp_path / "o.jsonl").read_text()) == {"id": "01", "name": "Änna"}
    (tmp_path / "in.txt").write_text("01Änna\n", encoding="latin-1")
    assert "in.txt: line 1 is not utf-8: set `encoding`" in failure(move(tmp_path, source, target))
    assert "the encoding 'klingon' is not known" in failure(move(tmp_path, {**source, "encoding": "klingon"}, target))
    good(move(tmp_path, {**source, "encoding": "latin-1"}, target))
    assert json.loads((tmp_path / "o.jsonl").read_text()) == {"id": "01", "name": "Änna"}


def test_columns_of_fixed_width(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("00001Anna      12.50\n00002Bob           \n\n")
    source = {"kind": "file", "path": "in.txt", "format": "fixed", "widths": {"id": 5, "name": 10, "price": 5},
              "types": {"price": "decimal(8, 2)"}}  # fmt: skip
    good(move(tmp_path, source, {"kind": "file", "path": "o.jsonl"}))
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"id": "00001", "name": "Anna", "price": 12.5}, {"id": "00002", "name": "Bob", "price": None}]
    (tmp_path / "in.txt").write_text("00001Anna      12.50 too long\n")
    assert "line 1 has" in failure(move(tmp_path, source, {"kind": "file", "path": "o.jsonl"}))
    for widths in (None, {"id": 0}):
        wrong = move(tmp_path, {**source, "widths": widths}, {"kind": "file", "path": "o.jsonl"})
        assert "widths" in failure(wrong)


# ── actions on objects ───────────────────────────────────────────────────────────────────────


def test_objects_are_copied_moved_and_described(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    auth = {name: s3[name] for name in PARTS}

    def act(**fields: Any) -> Outcome:
        return run_tool("object", {"auth": auth, **fields}, host=ToolHost(folder=tmp_path))

    base = f"s3://{bucket}"
    good(act(action="put", uri=f"{base}/in/a.json", data={"x": 1}))
    assert good(act(action="copy", uri=f"{base}/in/a.json", to="archive/"))["uri"] == f"{base}/archive/a.json"
    good(act(action="move", uri=f"{base}/in/a.json", to=f"{base}/done/b.json"))
    assert good(act(action="exists", uri=f"{base}/in/a.json"))["exists"] is False
    assert good(act(action="get", uri=f"{base}/done/b.json")) == {"x": 1}
    assert good(act(action="stat", uri=f"{base}/done/b.json"))["size"] == 7
    local = good(act(action="copy", uri=f"{base}/done/b.json", to=f"file://{tmp_path}/local.json"))
    assert local["bytes"] == 7 and json.loads((tmp_path / "local.json").read_text()) == {"x": 1}
    same = act(action="copy", uri=f"{base}/done/b.json", to=f"{base}/done/b.json")
    assert "is the object itself" in failure(same)
    kept = act(action="copy", uri=f"{base}/done/b.json", to="archive/a.json", create=True)
    assert "already exists" in failure(kept)
    missing = act(action="move", uri=f"{base}/none.json", to="x.json")
    assert missing.error is not None and missing.error.kind == "not_found"
    assert "`to`" in failure(act(action="copy", uri=f"{base}/done/b.json"))


def test_many_small_json_files_are_read_with_little_memory(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:02}.jsonl").write_text(f'{{"id": {number}, "long": "{"x" * 70_000}"}}\n')
    good(move(tmp_path, {"kind": "file", "path": "*.jsonl"}, {"kind": "duckdb", "file": "o.duckdb", "table": "t"}))
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        assert connection.execute("select count(*), min(length(long)) from t").fetchall() == [(60, 70_000)]


def test_the_row_groups_of_a_parquet_file_that_were_read_are_not_in_memory(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
    with pq.ParquetWriter(tmp_path / "in.parquet", schema, compression="none", use_dictionary=False) as writer:
        for number in range(24):
            writer.write_table(pa.table({"id": [number], "noise": [os.urandom(1 << 20)]}, schema))
    with (tmp_path / "in.parquet").open("rb") as file:
        source = pq.ParquetFile(file)
        tracemalloc.start()
        try:
            ids = [batch.column(0)[0].as_py() for batch in table_files.parquet_batches(source, 1000)]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert ids == list(range(24))
    assert peak < 8 << 20


def test_a_value_that_is_too_long_for_a_folder_is_an_error(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "out", "partition_by": ["k"]}
    assert "a value of 'k' has 300 characters" in failure(move(tmp_path, [{"k": "x" * 300}], target))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["report.xlsx", "report.XLS", "report.ods"])
def test_workbooks_are_not_written(tmp_path: Path, path: str) -> None:
    outcome = run_tool(
        "transfer",
        {"data": [{"a": 1}], "targets": [{"kind": "file", "path": path}]},
        host=ToolHost(folder=tmp_path),
    )
    assert outcome.error is not None and "not as excel" in outcome.error.message
    assert list(tmp_path.iterdir()) == []
