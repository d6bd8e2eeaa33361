"""G8, G7 and the footprint of an idle server: open-loop load, a wide loop, memory, lists, restarts.

Open loop: requests are sent at their planned times, independent of earlier responses, so that an overloaded server has
high latencies.
"""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Sequence

import msgspec

from chaos.findings import Finding, milliseconds, percentile
from chaos.load_sender import Response, send
from chaos.oracles import check_executions
from chaos.single_server import kill_server, resident, single_server, submit
from noetl.core.model.events import IterationDone, IterationFailed, IterationStarted
from noetl.embedded import open_local
from noetl.runtime import event_loop as loops
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.factory import open_stores
from noetl.storage.ports.events import ExecutionFilter
from tests.server.http.serving import Cluster

ONE = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: one, path: load/one}\n"
    "workflow: [{step: only, tool: {kind: noop}}]\n"
)


# ── G8 ──────────────────────────────────────────────────────────────────────────────────────


def burst(*, quick: bool) -> Finding:
    """One-task executions at a fixed rate."""
    rate, seconds = (50, 4) if quick else (500, 120)
    with single_server(workers=1, NOETL_SLOTS="256") as cluster:
        cluster.ask("POST", "/api/catalog/register", {"content": ONE})
        _send(cluster, 20, 1)  # warm up: compile the playbook, open connections
        responses = _send(cluster, rate, seconds)
        ids = [each[2] for each in responses if each[2]]
        store = str(cluster.home / "noetl.db")
        left = asyncio.run(_drain(store, 120))
        ends = asyncio.run(_ends(store, ids))
        report = check_executions(store, ids[:: max(1, len(ids) // 300)], others=True)
    requests = rate * seconds
    acknowledged = [each[1] - each[0] for each in responses if each[2]]
    began = {each[2]: each[3] for each in responses}
    whole = [ends[each] - began[each] for each in ids if each in ends]
    violations = [*report.violations, *([f"{left} executions did not end"] if left else [])]
    violations += [f"{len(ids) - len(ends)} acknowledged executions do not exist"] if len(ends) < len(ids) else []
    missed = [f"{requests - len(ids)} of {requests} requests were not acknowledged"] if len(ids) < requests else []
    slow = percentile(acknowledged, 0.99)
    missed += [f"p99 of acknowledgements is {milliseconds(slow)}"] if slow > 0.5 else []
    took = max(each[1] for each in responses) - min(each[0] for each in responses)
    return Finding(
        part="burst",
        guarantee="G8",
        target="500 one-task executions per second over HTTP for 120 s, p99 500 ms, each flushed to disk",
        setup=f"One server on SQLite, one worker over HTTP, the sender on the same machine; {rate} requests per second "
        f"for {seconds} s, open loop; a sample of {report.executions} logs checked.",
        figures={
            "acknowledged": f"{len(ids):,} of {requests:,}, {len(ids) / took:,.0f} per second",
            "acknowledgement p50 / p99": f"{milliseconds(percentile(acknowledged, 0.5))} / {milliseconds(slow)}",
            "request to end of execution p50 / p99": f"{milliseconds(percentile(whole, 0.5))} / "
            f"{milliseconds(percentile(whole, 0.99))}",
            "violations": str(len(violations)),
        },
        violations=violations,
        missed=missed,
    )


def _send(cluster: Cluster, rate: int, seconds: int) -> list[Response]:
    return loops.run(send(cluster.url, cluster.token, b'{"path": "load/one"}', rate, seconds))


async def _drain(store: str, seconds: float) -> int:
    """Wait until nothing is unfinished; how many are after that time."""
    events, _ = open_stores(store)
    deadline = time.monotonic() + seconds
    try:
        while (left := len(await events.unfinished())) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return left
    finally:
        await events.close()


async def _ends(store: str, ids: Sequence[str]) -> dict[str, float]:
    events, _ = open_stores(store)
    wanted, found = set(ids), {}
    try:
        before: str | None = None
        while rows := await events.executions(ExecutionFilter(before=before, limit=1000)):
            found |= {row.execution_id: row.ended_at for row in rows if row.execution_id in wanted and row.ended_at}
            before = rows[-1].execution_id
        return found
    finally:
        await events.close()


# ── G7 ──────────────────────────────────────────────────────────────────────────────────────


def wide(*, quick: bool) -> Finding:
    """One loop with many items and many iterations in flight."""
    items, in_flight = (5_000, 500) if quick else (100_000, 10_000)
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: wide, path: load/wide}\nworkflow:\n"
        f"  - step: each\n    loop: {{in: '{{{{ range({items}) | list }}}}', iterator: n, "
        f"spec: {{mode: parallel, max_in_flight: {in_flight}}}}}\n    tool: {{kind: noop}}\n"
    )
    peak_mb = 0.0
    with single_server(workers=2, NOETL_SLOTS=str(in_flight // 2)) as cluster:
        began = time.monotonic()
        execution_id = submit(cluster, text)
        status = "running"
        while status == "running" and time.monotonic() - began < 240:
            peak_mb = max(peak_mb, resident(cluster))
            _, document = cluster.ask("GET", f"/api/executions/{execution_id}")
            status = document["status"]
            time.sleep(0.2)
        seconds = time.monotonic() - began
        store = str(cluster.home / "noetl.db")
        report = check_executions(store, [execution_id])
        peak = asyncio.run(_peak_in_flight(store, execution_id))
    missed = [f"the server used {peak_mb:,.0f} MB"] if peak_mb > 400 else []
    missed += [f"only {peak:,} iterations were in flight"] if peak < 0.95 * in_flight else []
    missed += [f"not finished after {seconds:.0f} s"] if status == "running" else []
    return Finding(
        part="wide",
        guarantee="G7",
        target="100,000-item parallel loop with 10,000 in flight: server under 400 MB",
        setup=f"One server on SQLite, two workers with {in_flight // 2:,} slots each over HTTP; {items:,} noop items.",
        figures={
            "peak memory of the server": f"{peak_mb:,.0f} MB",
            "items": f"{items:,}, {peak:,} of {in_flight:,} in flight",
            "duration": f"{seconds:.1f} s ({items / seconds:,.0f} items per second)",
            "status": status,
        },
        violations=report.violations,
        missed=missed,
    )


async def _peak_in_flight(store: str, execution_id: str) -> int:
    """The largest number of leased iterations, from the log."""
    events, _ = open_stores(store)
    in_flight = peak = after = 0
    try:
        while log := await events.read(execution_id, after, 10_000):
            for each in log:
                in_flight += isinstance(each.body, IterationStarted)
                in_flight -= isinstance(each.body, IterationDone | IterationFailed)
                peak = max(peak, in_flight)
            after = log[-1].seq
        return peak
    finally:
        await events.close()


# ── idle server ─────────────────────────────────────────────────────────────────────────────────


def footprint(*, quick: bool) -> Finding:
    """Memory of an idle server, lists of many executions, restart with many running executions."""
    finished, running = (500, 100) if quick else (10_000, 1_000)
    with single_server(workers=0) as cluster:
        time.sleep(1)
        idle = resident(cluster)
        cluster.stop()
        asyncio.run(_fill(cluster, finished, running))
        cluster.start_server()
        cluster.ask("GET", "/api/executions")  # warm up
        pages = [_listed(cluster, where) for where in ("", "?status=success", "?limit=50", "?search=one") * 10]
        lists = [_listed(cluster, f"?status=success&limit={finished}", finished) for _ in range(20)]
        ready = [kill_server(cluster) for _ in range(3)]
        loaded = resident(cluster)
    missed = [f"an idle server uses {idle:.0f} MB"] if idle > 120 else []
    for name, times in (("a page", pages), ("the whole list", lists)):
        slow = percentile(times, 0.95)
        missed += [f"{name} took {milliseconds(slow)} (p95)"] if slow > 0.1 else []
    missed += [f"a restart took {max(ready):.2f} s"] if max(ready) > 2 else []
    return Finding(
        part="footprint",
        guarantee="idle",
        target="Idle under 120 MB; 10,000 executions listed in 100 ms; ready in 2 s with 1,000 running executions",
        setup=f"One server on SQLite with {finished:,} finished and {running:,} running executions.",
        figures={
            "idle server": f"{idle:.0f} MB ({loaded:.0f} MB with {running:,} running executions)",
            f"{finished:,} executions in one response, p50 / p95": f"{milliseconds(percentile(lists, 0.5))} / "
            f"{milliseconds(percentile(lists, 0.95))}",
            "one page of the list, p50 / p95": f"{milliseconds(percentile(pages, 0.5))} / "
            f"{milliseconds(percentile(pages, 0.95))}",
            "ready after SIGKILL, median / worst": f"{percentile(ready, 0.5):.2f} s / {max(ready):.2f} s",
        },
        missed=missed,
    )


def _listed(cluster: Cluster, where: str, count: int = 1) -> float:
    """Seconds from the request of a list to the last byte."""
    request = urllib.request.Request(f"{cluster.url}/api/executions{where}")
    request.add_header("Authorization", f"Bearer {cluster.token}")
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as response:
        data = response.read()
    took = time.monotonic() - began
    items = msgspec.json.decode(data)["items"]
    assert len(items) >= count, f"only {len(items)} executions were listed"
    return took


async def _fill(cluster: Cluster, finished: int, running: int) -> None:
    """Fill the store with finished executions and with executions that wait for a worker."""
    home, store = os.fspath(cluster.home), str(cluster.home / "noetl.db")
    async with await open_local(store=store, home=home) as engine:
        for start in range(0, finished, 500):
            ids = await asyncio.gather(
                *(engine.orchestrator.submit(Submission(text=ONE)) for _ in range(min(500, finished - start)))
            )
            await asyncio.gather(*(engine.orchestrator.wait(each, 60) for each in ids))
    async with await open_local(store=store, home=home, work=False) as engine:
        await asyncio.gather(*(engine.orchestrator.submit(Submission(text=ONE)) for _ in range(running)))
