"""W6: MySQL to Parquet beside connectorx and dlt, and 10,000 objects of 10 KB from S3 beside bare obstore.

Every measurement is taken in its own process, NoETL and the others alternately: NoETL with the plug-in in the
environment of `make test-plugins PLUGINS=mysql`, connectorx and dlt in environments of their own. The S3 API is moto's.

    python -m bench.connectors [mysql] [objects] [ROWS] [REPEATS]
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.measurements import Measurement, peak_mb, summarize
from bench.peers import Peer, install
from devcluster import services

ROWS = 1_000_000
REPEATS = 3
OBJECTS, OBJECT_BYTES, AT_ONCE = 10_000, 10_000, 32
ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).parent / "peers" / "mysql_parquet.py"
CONNECTORX = Peer("connectorx", "connectorx", ("connectorx", "pyarrow"))
DLT = Peer("dlt_mysql", "dlt (pyarrow back end)", ("dlt[parquet,filesystem,sql_database]", "pymysql", "pyarrow"))
FILL = """
CREATE TABLE noetl.src ENGINE=InnoDB SELECT seq AS id, seq % 1000 AS grp, concat('user name ', seq) AS name,
  concat('user', seq, '@example.org') AS email, timestamp('2024-01-01') + interval seq second AS created,
  cast(seq * 7919 % 100003 / 100.0 AS DOUBLE) AS price, cast(seq / 7 AS DECIMAL(20,4)) AS amount,
  seq % 3 = 0 AS active, json_object('k', seq % 97, 'note', concat('row ', seq)) AS attrs FROM seq_1_to_{rows}
"""


def _once(python: str | Path, *command: str, folder: Path = ROOT) -> dict[str, float]:
    done = subprocess.run([str(python), *command], capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _transfer(source: dict[str, Any], target: dict[str, Any]) -> float:
    from noetl.runtime.resources import close_loop_resources
    from noetl.testing.tools import ToolHost, tool_call
    from noetl.tools.registry import load

    async def move() -> float:
        host = ToolHost()
        host.progress = lambda **counts: None  # type: ignore[method-assign]
        began = time.perf_counter()
        outcome = await load("transfer")(tool_call("transfer", {"source": source, "targets": [target]}, host=host))
        elapsed = time.perf_counter() - began
        assert outcome.status == "ok", outcome.error
        await close_loop_resources()
        return elapsed

    return asyncio.run(move())


def plugin_environment(name: str) -> Path:
    """The Python of the environment in which a plug-in is installed."""
    sys.path[:0] = [str(ROOT / "plugins")]
    found: Path = import_module("run_tests").environment(name)
    return found


# ── MySQL ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def mariadb() -> Iterator[str]:
    """A MariaDB; gives the URL of its database."""
    sys.path[:0] = [str(ROOT / "plugins" / "_servers")]
    debian, server_files = import_module("debian"), import_module("mariadb")

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as name:
        folder = Path(name)
        server = debian.ServerProcess(
            server_files.command(debian.program("mariadbd", server_files.PACKAGES), folder, port), folder
        )
        try:
            server.wait_until(answers)
            yield f"mysql://{server_files.USER}:{quote(server_files.PASSWORD, safe='')}@127.0.0.1:{port}/noetl"
        finally:
            server.stop()


def measure_mysql(rows: int, repeats: int) -> Iterator[Measurement]:
    """Rows per second of the whole table to Parquet, and the CPU time of a row with the start of the process."""
    pythons = {
        "noetl": plugin_environment("mysql"),
        "connectorx": install(CONNECTORX),
        "dlt": install(DLT),
    }
    samples: dict[str, list[dict[str, float]]] = {engine: [] for engine in pythons}
    with mariadb() as url:

        def run(engine: str, method: str, *arguments: str) -> dict[str, float]:
            with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
                return _once(pythons[engine], str(SCRIPT), method, url, *arguments, folder, folder=Path(folder))

        run("noetl", "statement", FILL.format(rows=rows))
        for _ in range(repeats):
            for engine in pythons:
                samples[engine].append(run(engine, engine, "src"))
    for engine, found in samples.items():
        rates, peak = [rows / each["seconds"] for each in found], max(each["rss_mb"] for each in found)
        yield summarize(engine, "W6", "mysql to parquet", rates, "rows/s", peak)
        cpu = [each["cpu_seconds"] * 1e6 / rows for each in found]
        yield summarize(engine, "W6", "mysql to parquet, CPU of a row", cpu, "us", peak)


# ── small objects ───────────────────────────────────────────────────────────────────────


def _object_store(bucket: str, info: dict[str, Any]) -> Any:
    from obstore.store import S3Store

    return S3Store(
        bucket,
        endpoint=info["endpoint"],
        access_key_id=info["access_key_id"],
        secret_access_key=info["secret_access_key"],
        region=info.get("region") or "us-east-1",
        client_options={"allow_http": True},
    )


async def _for_each(names: Sequence[str], work: Any) -> None:
    waiting = iter(names)

    async def worker() -> None:
        for name in waiting:
            await work(name)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def _read_bare(bucket: str, info: dict[str, Any]) -> float:
    """List and read every object."""
    import obstore

    store = _object_store(bucket, info)

    async def read() -> float:
        began = time.perf_counter()
        names = [item["path"] for part in obstore.list(store) for item in part]

        async def get(name: str) -> None:
            await (await obstore.get_async(store, name)).bytes_async()

        await _for_each(names, get)
        assert len(names) == OBJECTS, len(names)
        return time.perf_counter() - began

    return asyncio.run(read())


def _fill_bucket(bucket: str, info: dict[str, Any]) -> None:
    import obstore

    store, text = _object_store(bucket, info), "x" * (OBJECT_BYTES - 60)

    async def put(name: str) -> None:
        row = {"id": int(name.partition(".")[0]), "name": f"object {name}", "text": text}
        await obstore.put_async(store, name, json.dumps(row).encode())

    asyncio.run(_for_each([f"{number:05}.json" for number in range(OBJECTS)], put))


def measure_objects(repeats: int) -> Iterator[Measurement]:
    """Objects per second: listed and read by obstore alone, and as rows of a Parquet file by NoETL."""
    samples: dict[str, list[dict[str, float]]] = {"noetl": [], "baseline": []}
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        services.S3(Path(folder)) as server,
        services.fresh_bucket(server.info) as bucket,
    ):
        _fill_bucket(bucket, server.info)
        for _ in range(repeats):
            for engine, method in (("baseline", "bare"), ("noetl", "objects")):
                taken = _once(sys.executable, "-m", "bench.connectors", "one", method, bucket, json.dumps(server.info))
                samples[engine].append(taken)
    for engine, found in samples.items():
        rates, peak = [OBJECTS / each["seconds"] for each in found], max(each["rss_mb"] for each in found)
        yield summarize(engine, "W6", "10 KB objects of S3 to parquet", rates, "objects/s", peak)


def _run_one(method: str, bucket: str, info: dict[str, Any]) -> float:
    if method == "bare":
        return _read_bare(bucket, info)
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        target = {"kind": "file", "path": f"{folder}/rows.parquet"}
        return _transfer({"kind": "s3", "auth": info, "path": f"s3://{bucket}/*.json"}, target)


def measure(rows: int = ROWS, repeats: int = REPEATS, parts: Sequence[str] = ()) -> Iterator[Measurement]:
    """All measurements, or those of some parts."""
    if not parts or "mysql" in parts:
        yield from measure_mysql(rows, repeats)
    if not parts or "objects" in parts:
        yield from measure_objects(repeats)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        elapsed = _run_one(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
        print(json.dumps({"seconds": elapsed, "rss_mb": round(peak_mb(), 1)}), flush=True)
        os._exit(0)  # threads of obstore sometimes abort a process whose interpreter is being finalized
    else:
        numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
        for each in measure(*numbers, parts=[text for text in sys.argv[1:] if not text.isdigit()]):
            line = f"{each.engine:12} {each.metric:32} {each.median:12,.1f} {each.unit:10} {each.rss_mb or '':>8}"
            print(f"{line} MB", flush=True)
