"""W5: 1,000,000 rows of 10 mixed columns from Postgres and from HTTP, and the baseline of each transfer.

The baseline uses the drivers directly, in the same run: ADBC batches written to DuckDB or Parquet, a binary COPY piped
by psql, a hand-written asyncio script for the pages of an API. Every measurement is taken in its own process; NoETL
and the baseline alternate.

    python -m bench.transfer [ROWS] [REPEATS] [SHAPE ...]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.http_server import PAGE, http_server
from bench.measurements import Measurement, peak_mb, summarize
from devcluster import services
from noetl.core.templates.deferred import DeferredTemplate

ROWS = 1_000_000
REPEATS = 3
COLUMNS = (
    "id bigint, grp int, name text, email text, created timestamp, updated timestamptz, price float8, score float8, "
    "active boolean, attrs jsonb"
)
FILL = """
INSERT INTO src SELECT g, g % 1000, 'user name ' || g, 'user' || g || '@example.org',
  timestamp '2024-01-01' + g * interval '1 second', timestamptz '2024-01-01 00:00Z' + g * interval '2 second',
  (g::bigint * 7919 % 100003) / 100.0, sqrt(g), g % 3 = 0,
  jsonb_build_object('k', g % 97, 'tags', jsonb_build_array('a', 'b', g % 7), 'note', 'row ' || g)
FROM generate_series(1, {rows}) g
"""


class Servers:
    """The servers of a measurement."""

    def __init__(self, source: str, target: str, api: str, rows: int, psql: str) -> None:
        self.source, self.target, self.api, self.rows, self.psql = source, target, api, rows, psql

    def fresh_table(self) -> None:
        """Create an empty target table after a checkpoint of the previous round."""
        import psycopg

        with psycopg.connect(self.target, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS dst")
            connection.execute(f"CREATE TABLE dst ({COLUMNS})")
            connection.execute("CHECKPOINT")

    def check(self) -> None:
        """Check the number of rows."""
        import psycopg

        with psycopg.connect(self.target) as connection:
            found = connection.execute("SELECT count(*) FROM dst").fetchone()
        assert found == (self.rows,), found


# ── baseline ─────────────────────────────────────────────────────────────────────────────────


def baseline_duckdb(servers: Servers, folder: Path) -> float:
    """ADBC batches written to a new table of DuckDB."""
    import adbc_driver_postgresql.dbapi as adbc
    import duckdb

    began = time.perf_counter()
    with adbc.connect(servers.source) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM src")
        reader = cursor.fetch_record_batch()  # noqa: F841 - the query below reads it by name
        lake = duckdb.connect(str(folder / "raw.duckdb"))
        lake.execute("CREATE TABLE dst AS SELECT * FROM reader")
        lake.close()
    return time.perf_counter() - began


def baseline_parquet(servers: Servers, folder: Path) -> float:
    """ADBC batches written to a Parquet file."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    import pyarrow.parquet as pq

    began = time.perf_counter()
    with adbc.connect(servers.source) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM src")
        reader = cursor.fetch_record_batch()
        schema = pa.schema([(field.name, _storage(field.type)) for field in reader.schema])
        with pq.ParquetWriter(folder / "raw.parquet", schema, compression="zstd") as writer:
            for batch in reader:
                arrays = [each.storage if isinstance(each, pa.ExtensionArray) else each for each in batch.columns]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return time.perf_counter() - began


def _storage(kind: Any) -> Any:
    import pyarrow as pa

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def baseline_postgres(servers: Servers, folder: Path) -> float:
    """psql piped into psql, in the binary format of Postgres."""
    servers.fresh_table()
    command = (
        f'{servers.psql} -qX "{servers.source}" -c "COPY src TO STDOUT (FORMAT binary)" | '
        f'{servers.psql} -qX "{servers.target}" -c "COPY dst FROM STDIN (FORMAT binary)"'
    )
    began = time.perf_counter()
    subprocess.run(command, shell=True, check=True)
    elapsed = time.perf_counter() - began
    servers.check()
    return elapsed


def baseline_http(servers: Servers, folder: Path) -> float:
    """A hand-written script: pages are prefetched, rows are written as COPY text."""
    import aiohttp
    import msgspec
    import psycopg

    servers.fresh_table()
    escape = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

    def line(row: dict[str, Any]) -> str:
        attrs = msgspec.json.encode(row["attrs"]).decode().translate(escape)
        name, email = row["name"].translate(escape), row["email"].translate(escape)
        return (
            f"{row['id']}\t{row['grp']}\t{name}\t{email}\t{row['created']}\t{row['updated']}\t{row['price']}\t"
            f"{row['score']}\t{row['active']}\t{attrs}\n"
        )

    async def move() -> float:
        connection = await psycopg.AsyncConnection.connect(servers.target)
        count = servers.rows // PAGE
        numbers, queue = iter(range(count)), asyncio.Queue[Any](8)
        async with aiohttp.ClientSession() as session:

            async def read() -> None:
                for number in numbers:
                    async with session.get(f"{servers.api}&page={number}") as response:
                        await queue.put(msgspec.json.decode(await response.read()))

            began = time.perf_counter()
            readers = [asyncio.create_task(read()) for _ in range(4)]
            async with connection.cursor().copy("COPY dst FROM STDIN") as copy:
                for _ in range(count):
                    page = await queue.get()
                    await copy.write("".join([line(row) for row in page["data"]]))
            await connection.commit()
            elapsed = time.perf_counter() - began
            await asyncio.gather(*readers)
        await connection.close()
        return elapsed

    elapsed = asyncio.run(move())
    servers.check()
    return elapsed


# ── NoETL ────────────────────────────────────────────────────────────────────────────────


def _transfer(source: dict[str, Any], *targets: dict[str, Any], warm: dict[str, Any], chunk: Any = None) -> float:
    """One warm call of the tool."""
    from noetl.runtime.resources import close_loop_resources
    from noetl.testing.tools import ToolHost, tool_call
    from noetl.tools.registry import load

    async def move() -> float:
        run, host = load("transfer"), ToolHost()
        host.progress = lambda **counts: None  # type: ignore[method-assign]
        await run(tool_call("transfer", warm, host=host))
        given = {"source": source, "targets": list(targets), "chunk": chunk}
        began = time.perf_counter()
        outcome = await run(tool_call("transfer", given, host=host))
        elapsed = time.perf_counter() - began
        assert outcome.status == "ok", outcome.error
        await close_loop_resources()
        return elapsed

    return asyncio.run(move())


def _warm(servers: Servers, folder: Path) -> dict[str, Any]:
    few = {"kind": "postgres", "auth": servers.source, "query": "SELECT * FROM src LIMIT 10"}
    targets = [{"kind": "duckdb", "file": str(folder / "warm.duckdb"), "table": "t"}]
    targets.append({"kind": "file", "path": str(folder / "warm.parquet")})
    return {"source": few, "targets": targets}


def noetl_duckdb(servers: Servers, folder: Path) -> float:
    """Postgres to a new table of DuckDB."""
    source = {"kind": "postgres", "auth": servers.source, "table": "src"}
    target = {"kind": "duckdb", "file": str(folder / "ours.duckdb"), "table": "dst"}
    return _transfer(source, target, warm=_warm(servers, folder))


def noetl_parquet(servers: Servers, folder: Path) -> float:
    """Postgres to a Parquet file."""
    source = {"kind": "postgres", "auth": servers.source, "table": "src"}
    return _transfer(source, {"kind": "file", "path": str(folder / "ours.parquet")}, warm=_warm(servers, folder))


def noetl_postgres(servers: Servers, folder: Path) -> float:
    """Postgres to Postgres."""
    servers.fresh_table()
    source = {"kind": "postgres", "auth": servers.source, "table": "src"}
    target = {"kind": "postgres", "auth": servers.target, "table": "dst"}
    elapsed = _transfer(source, target, warm=_warm(servers, folder))
    servers.check()
    return elapsed


def noetl_http(servers: Servers, folder: Path) -> float:
    """Pages of an API to Postgres."""
    servers.fresh_table()
    pages = {"param": "page", "start": 0, "last": servers.rows // PAGE - 1, "ahead": 4}
    source = {"kind": "http", "url": servers.api, "pages": pages}
    target = {"kind": "postgres", "auth": servers.target, "table": "dst"}
    elapsed = _transfer(source, target, warm=_warm(servers, folder), chunk={"path": "data"})
    servers.check()
    return elapsed


def noetl_three(servers: Servers, folder: Path) -> float:
    """Postgres to Postgres, DuckDB and S3 in parallel, chunk by chunk."""
    servers.fresh_table()
    source = {"kind": "postgres", "auth": servers.source, "table": "src"}
    with services.S3(folder / "s3") as store, services.fresh_bucket(store.info) as bucket:
        path = DeferredTemplate("s3://" + bucket + "/{{ chunk.index }}.parquet")
        targets = (
            {"kind": "postgres", "auth": servers.target, "table": "dst"},
            {"kind": "duckdb", "file": str(folder / "three.duckdb"), "table": "dst"},
            {"kind": "s3", "auth": store.info, "path": path},
        )
        elapsed = _transfer(source, *targets, warm=_warm(servers, folder), chunk={"size": 10_000})
    servers.check()
    return elapsed


METHODS: dict[str, Callable[[Servers, Path], float]] = {
    name: function for name, function in globals().items() if name.startswith(("baseline_", "noetl_"))
}
PAIRS = {
    "duckdb": "postgres to duckdb",
    "parquet": "postgres to parquet",
    "postgres": "postgres to postgres",
    "http": "http pages to postgres",
}


# ── measuring ───────────────────────────────────────────────────────────────────────────


def _once(servers: Servers, method: str) -> tuple[float, float]:
    """Seconds and peak megabytes of one run in its own process."""
    arguments = [servers.source, servers.target, servers.api, str(servers.rows), servers.psql]
    done = subprocess.run(
        [sys.executable, "-m", "bench.transfer", "one", method, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{method} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["rss_mb"]


@contextmanager
def running_servers(rows: int = ROWS) -> Iterator[Servers]:
    """A durable Postgres with the source table and an empty target database, and an API with the same rows."""
    import psycopg

    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        services.Postgres(folder, durable=True) as server,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE src")
            connection.execute("CREATE DATABASE dst")
        with psycopg.connect(server.dsn("src"), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE src ({COLUMNS})")
            connection.execute(FILL.format(rows=rows))
            connection.execute("VACUUM ANALYZE src")
        with http_server() as url:
            api = f"{url}/rows?rows={rows}"
            yield Servers(server.dsn("src"), server.dsn("dst"), api, rows, str(server.program("psql")))


def measure(rows: int = ROWS, repeats: int = REPEATS, pairs: tuple[str, ...] = tuple(PAIRS)) -> Iterator[Measurement]:
    """Rows per second of each transfer, NoETL and baseline alternately, with the peak memory of NoETL."""
    with running_servers(rows) as servers:
        for name in pairs:
            baseline, noetl, rss = [], [], 0.0
            for _ in range(repeats):
                baseline.append(rows / _once(servers, f"baseline_{name}")[0])
                seconds, peak = _once(servers, f"noetl_{name}")
                noetl.append(rows / seconds)
                rss = max(rss, peak)
            yield summarize("noetl", "W5", PAIRS[name], noetl, "rows/s", rss)
            yield summarize("baseline", "W5", PAIRS[name], baseline, "rows/s")
        seconds, rss = _once(servers, "noetl_three")
        yield summarize("noetl", "W5", "postgres to three targets", [rows / seconds], "rows/s", rss)


def _run_one(method: str, source: str, target: str, api: str, rows: str, psql: str) -> None:
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        seconds = METHODS[method](Servers(source, target, api, int(rows), psql), Path(folder))
    peak = peak_mb()
    print(json.dumps({"seconds": seconds, "rss_mb": round(peak, 1)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        _run_one(*sys.argv[2:])
    else:
        numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
        chosen = tuple(text for text in sys.argv[1:] if not text.isdigit()) or tuple(PAIRS)
        for each in measure(*numbers, pairs=chosen):
            print(f"{each.engine:6} {each.metric:28} {each.median:12,.0f} {each.unit} {each.rss_mb or ''}", flush=True)
