"""G13: many waiting executions on Postgres cost a server nothing, and a signal to one of them is answered fast.

One execution waits; the others are copies of its rows under other ids, as the engine would have written them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import asyncpg

from chaos.findings import Finding, percentile
from chaos.single_server import kill_server, resident, single_server, submit
from devcluster import services
from noetl.storage.events.event_rows import checksum
from tests.server.http.serving import Cluster

MAX_MEGABYTES, MAX_SIGNAL_SECONDS, MAX_READY_SECONDS = 200.0, 0.1, 5.0
SIGNALS = 500
DUE = 200  # executions whose timer is due during the experiment
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waiting, path: chaos/waiting}
workflow:
  - step: start
    tool:
      - name: approval
        kind: wait
        signal: approve
        title: "Pay?"
        form: {type: object, required: [approved], properties: {approved: {type: boolean}}}
        timeout: 30d
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue}}]}}
"""


def experiment(*, quick: bool) -> Finding:
    """Restart a server beside waiting executions, answer some of them, and let the timers of some fire."""
    rows = 20_000 if quick else 1_000_000
    info = services.shared("postgres", "chaos-waiting")
    with services.fresh_database(info) as dsn, single_server(workers=1, NOETL_STORE=dsn) as cluster:
        first = submit(cluster, PLAYBOOK)
        _until(lambda: cluster.ask("GET", f"/api/executions/{first}")[1]["status"] == "waiting")
        empty = resident(cluster)
        filled = time.monotonic()
        ids = asyncio.run(_copy_rows(dsn, int(first), rows))
        filled = time.monotonic() - filled
        ready = kill_server(cluster)
        idle = resident(cluster)
        chosen = random.Random(7).sample(ids, SIGNALS)
        latencies = [_signal(cluster, each) for each in chosen]
        listing = time.monotonic()
        inbox = cluster.ask("GET", "/api/inbox?limit=100")[1]["items"]
        listing = time.monotonic() - listing
        _until(lambda: _ended(cluster, chosen), 120)
        fired = _fire_timers(dsn, cluster, ids[-DUE:])
        used = resident(cluster)
    p99, most = percentile(latencies, 0.99), max(idle, used)
    missed = [
        text
        for text, holds in (
            (f"the server uses {most:.0f} MB, the target is {MAX_MEGABYTES:.0f}", most <= MAX_MEGABYTES),
            (f"p99 of a signal is {p99 * 1000:.0f} ms, the target is 100", p99 <= MAX_SIGNAL_SECONDS),
            (f"the restart took {ready:.1f} s, the target is {MAX_READY_SECONDS:g}", ready <= MAX_READY_SECONDS),
        )
        if not holds
    ]
    return Finding(
        part="waiting",
        guarantee="G13",
        target="1,000,000 waiting executions on Postgres: server under 200 MB, a signal answered in 100 ms p99, "
        "restart ready in 5 s",
        setup=f"One server and one worker on Postgres, {rows:,} executions that wait for a signal or 30 days; "
        f"{SIGNALS} signals over HTTP, one after the other; the timers of {DUE} executions become due.",
        figures={
            "waiting executions": f"{rows:,} (rows written in {filled:.0f} s)",
            "time to readiness after SIGKILL": f"{ready:.2f} s",
            "memory of the server: empty / after the restart / at the end": f"{empty:.0f} / {idle:.0f} / {used:.0f} MB",
            "signal, median / p99 / worst": " / ".join(
                f"{each * 1000:.1f} ms" for each in (percentile(latencies, 0.5), p99, max(latencies))
            ),
            "first page of the inbox (100 executions)": f"{listing * 1000:.0f} ms",
            f"{DUE} due timers fired and ended": f"{fired:.1f} s",
        },
        violations=[] if len(inbox) == 100 else [f"the inbox has {len(inbox)} entries on its first page"],
        missed=missed,
    )


async def _copy_rows(dsn: str, first: int, count: int) -> list[str]:
    """Copy the rows of one execution to the ids after it."""
    connection = await asyncpg.connect(dsn)
    try:
        columns = "seq, status, ended, path, parent, data, due, inbox"
        row = dict(await connection.fetchrow(f"SELECT {columns} FROM noetl_executions WHERE id = $1", first))
        log = await connection.fetch("SELECT first, count, data FROM noetl_log WHERE execution = $1", first)
        name = str(first).encode()

        def executions() -> Iterator[tuple[Any, ...]]:
            for number in range(first + 1, first + 1 + count):
                data = row["data"].replace(name, b"%d" % number)
                yield (number, *{**row, "data": data}.values(), checksum(number, row["seq"], data))

        def logs() -> Iterator[tuple[Any, ...]]:
            for number in range(first + 1, first + 1 + count):
                for each in log:
                    data = each["data"].replace(name, b"%d" % number)
                    crc = checksum(number, each["first"], data, each["count"])
                    yield number, each["first"], each["count"], data, crc

        await connection.copy_records_to_table(
            "noetl_executions", records=executions(), columns=("id", *row, "crc"), timeout=600
        )
        log_columns = ("execution", "first", "count", "data", "crc")
        await connection.copy_records_to_table("noetl_log", records=logs(), columns=log_columns, timeout=600)
        await connection.execute("ANALYZE noetl_executions", timeout=600)
    finally:
        await connection.close()
    return [str(number) for number in range(first + 1, first + 1 + count)]


def _signal(cluster: Cluster, execution_id: str) -> float:
    began = time.monotonic()
    status, document = cluster.ask(
        "POST", f"/api/executions/{execution_id}/signal", {"name": "approve", "payload": {"approved": True}}
    )
    if status != 202:
        raise RuntimeError(f"signal rejected ({status}): {document}")
    return time.monotonic() - began


def _ended(cluster: Cluster, ids: list[str]) -> bool:
    return all(cluster.ask("GET", f"/api/executions/{each}")[1]["status"] == "success" for each in ids)


def _fire_timers(dsn: str, cluster: Cluster, ids: list[str]) -> float:
    """Make the timers of some executions due, and return the seconds until they have ended.

    The instant of the wait is in the log: it is moved into the past there and in the row."""

    async def make_due() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for number in map(int, ids):
                for each in await connection.fetch(
                    "SELECT first, count, data FROM noetl_log WHERE execution = $1", number
                ):
                    data = each["data"].replace(b'"timeout_s":2592000.0', b'"timeout_s":0.1')
                    crc = checksum(number, each["first"], data, each["count"])
                    await connection.execute(
                        "UPDATE noetl_log SET data = $3, crc = $4 WHERE execution = $1 AND first = $2",
                        number, each["first"], data, crc,
                    )  # fmt: skip
            await connection.execute(
                "UPDATE noetl_executions SET due = $2 WHERE id = ANY($1::int8[])",
                [int(each) for each in ids],
                time.time(),
            )
        finally:
            await connection.close()

    asyncio.run(make_due())
    began = time.monotonic()
    _until(lambda: _ended(cluster, ids), 120)
    return time.monotonic() - began


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not become true")
        time.sleep(0.05)
