"""G8, G7 and the figures of a server at rest: open-loop load, a very wide loop, footprint, lists, restarts.

Open-loop: requests are sent at their planned instants, whether or not earlier ones were answered, so a server that
falls behind shows it in its latencies.
"""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Sequence

import msgspec

from chaos.findings import Finding, milliseconds, percentile
from chaos.judging import judge
from chaos.sending import Answer, send
from chaos.solo import kill_server, resident, solo, submit
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
    with solo(workers=1, NOETL_SLOTS="256") as cluster:
        cluster.ask("POST", "/api/catalog/register", {"content": ONE})
        _send(cluster, 20, 1)  # the first requests compile and open
        answers = _send(cluster, rate, seconds)
        ids = [each[2] for each in answers if each[2]]
        store = str(cluster.home / "noetl.db")
        left = asyncio.run(_drain(store, 120))
        ends = asyncio.run(_ends(store, ids))
        judged = judge(store, ids[:: max(1, len(ids) // 300)], others=True)
    asked = rate * seconds
    acknowledged = [each[1] - each[0] for each in answers if each[2]]
    began = {each[2]: each[3] for each in answers}
    whole = [ends[each] - began[each] for each in ids if each in ends]
    broken = [*judged.broken, *([f"{left} executions never ended"] if left else [])]
    broken += [f"{len(ids) - len(ends)} acknowledged executions are not there"] if len(ends) < len(ids) else []
    missed = [f"{asked - len(ids)} of {asked} requests were not acknowledged"] if len(ids) < asked else []
    slow = percentile(acknowledged, 0.99)
    missed += [f"p99 of acknowledgements is {milliseconds(slow)}"] if slow > 0.5 else []
    took = max(each[1] for each in answers) - min(each[0] for each in answers)
    return Finding(
        part="burst",
        guarantee="G8",
        target="500 one-task executions a second over HTTP for 120 s, p99 500 ms, every one flushed",
        did=f"One server on SQLite, one worker over HTTP, the sender on the same machine; {rate} requests a second for "
        f"{seconds} s, open loop; a sample of {judged.executions} logs judged.",
        figures={
            "acknowledged": f"{len(ids):,} of {asked:,}, {len(ids) / took:,.0f} a second",
            "acknowledgement p50 / p99": f"{milliseconds(percentile(acknowledged, 0.5))} / {milliseconds(slow)}",
            "request to end of execution p50 / p99": f"{milliseconds(percentile(whole, 0.5))} / "
            f"{milliseconds(percentile(whole, 0.99))}",
            "broken promises": str(len(broken)),
        },
        broken=broken,
        missed=missed,
    )


def _send(cluster: Cluster, rate: int, seconds: int) -> list[Answer]:
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
    """One loop with very many items and very many in flight."""
    items, flying = (5_000, 500) if quick else (100_000, 10_000)
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: wide, path: load/wide}\nworkflow:\n"
        f"  - step: each\n    loop: {{in: '{{{{ range({items}) | list }}}}', iterator: n, "
        f"spec: {{mode: parallel, max_in_flight: {flying}}}}}\n    tool: {{kind: noop}}\n"
    )
    most = 0.0
    with solo(workers=2, NOETL_SLOTS=str(flying // 2)) as cluster:
        began = time.monotonic()
        execution_id = submit(cluster, text)
        status = "running"
        while status == "running" and time.monotonic() - began < 240:
            most = max(most, resident(cluster))
            _, document = cluster.ask("GET", f"/api/executions/{execution_id}")
            status = document["status"]
            time.sleep(0.2)
        seconds = time.monotonic() - began
        store = str(cluster.home / "noetl.db")
        judged = judge(store, [execution_id])
        at_once = asyncio.run(_most_at_once(store, execution_id))
    missed = [f"the server had {most:,.0f} MB"] if most > 400 else []
    missed += [f"only {at_once:,} were in flight at once"] if at_once < 0.95 * flying else []
    missed += [f"it had not ended after {seconds:.0f} s"] if status == "running" else []
    return Finding(
        part="wide",
        guarantee="G7",
        target="100,000-item parallel loop with 10,000 in flight: server under 400 MB",
        did=f"One server on SQLite, two workers with {flying // 2:,} slots each over HTTP; {items:,} items of `noop`.",
        figures={
            "server's memory at most": f"{most:,.0f} MB",
            "items": f"{items:,}, {at_once:,} of {flying:,} in flight at once",
            "took": f"{seconds:.1f} s ({items / seconds:,.0f} items a second)",
            "status": status,
        },
        broken=judged.broken,
        missed=missed,
    )


async def _most_at_once(store: str, execution_id: str) -> int:
    """How many iterations were in workers' hands at the same time, by the log."""
    events, _ = open_stores(store)
    flying = most = after = 0
    try:
        while log := await events.read(execution_id, after, 10_000):
            for each in log:
                flying += isinstance(each.body, IterationStarted)
                flying -= isinstance(each.body, IterationDone | IterationFailed)
                most = max(most, flying)
            after = log[-1].seq
        return most
    finally:
        await events.close()


# ── at rest ─────────────────────────────────────────────────────────────────────────────────


def footprint(*, quick: bool) -> Finding:
    """An idle server, a list of many executions, a restart with many running ones."""
    finished, running = (500, 100) if quick else (10_000, 1_000)
    with solo(workers=0) as cluster:
        time.sleep(1)
        idle = resident(cluster)
        cluster.stop()
        asyncio.run(_fill(cluster, finished, running))
        cluster.start_server()
        cluster.ask("GET", "/api/executions")  # the first request opens what is needed
        pages = [_listed(cluster, where) for where in ("", "?status=success", "?limit=50", "?search=one") * 10]
        lists = [_listed(cluster, f"?status=success&limit={finished}", finished) for _ in range(20)]
        ready = [kill_server(cluster) for _ in range(3)]
        loaded = resident(cluster)
    missed = [f"an idle server has {idle:.0f} MB"] if idle > 120 else []
    for name, times in (("a page", pages), ("a list of all", lists)):
        slow = percentile(times, 0.95)
        missed += [f"{name} took {milliseconds(slow)} (p95)"] if slow > 0.1 else []
    missed += [f"a restart took {max(ready):.2f} s"] if max(ready) > 2 else []
    return Finding(
        part="footprint",
        guarantee="at rest",
        target="Idle under 120 MB; 10,000 executions listed in 100 ms; ready in 2 s with 1,000 running ones",
        did=f"One server on SQLite with {finished:,} finished and {running:,} running executions.",
        figures={
            "idle server": f"{idle:.0f} MB ({loaded:.0f} MB with {running:,} running executions)",
            f"{finished:,} executions in one answer, p50 / p95": f"{milliseconds(percentile(lists, 0.5))} / "
            f"{milliseconds(percentile(lists, 0.95))}",
            "a page of the list, p50 / p95": f"{milliseconds(percentile(pages, 0.5))} / "
            f"{milliseconds(percentile(pages, 0.95))}",
            "ready after SIGKILL, median / worst": f"{percentile(ready, 0.5):.2f} s / {max(ready):.2f} s",
        },
        missed=missed,
    )


def _listed(cluster: Cluster, where: str, count: int = 1) -> float:
    """How long a list took from the question to the last byte."""
    asked = urllib.request.Request(f"{cluster.url}/api/executions{where}")
    asked.add_header("Authorization", f"Bearer {cluster.token}")
    began = time.monotonic()
    with urllib.request.urlopen(asked, timeout=60) as answer:
        data = answer.read()
    took = time.monotonic() - began
    items = msgspec.json.decode(data)["items"]
    assert len(items) >= count, f"{len(items)} executions were listed"
    return took


async def _fill(cluster: Cluster, finished: int, running: int) -> None:
    """Executions as a server leaves them: many that have ended, some that wait for a worker."""
    home, store = os.fspath(cluster.home), str(cluster.home / "noetl.db")
    async with await open_local(store=store, home=home) as engine:
        for start in range(0, finished, 500):
            ids = await asyncio.gather(
                *(engine.orchestrator.submit(Submission(text=ONE)) for _ in range(min(500, finished - start)))
            )
            await asyncio.gather(*(engine.orchestrator.wait(each, 60) for each in ids))
    async with await open_local(store=store, home=home, work=False) as engine:
        await asyncio.gather(*(engine.orchestrator.submit(Submission(text=ONE)) for _ in range(running)))
