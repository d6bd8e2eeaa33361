"""G5: workers are suspended during their runs and resumed after other workers have executed these runs.

A suspended worker (SIGSTOP) sends no heartbeats; its runs are leased to other workers when the leases expire. When it
resumes (SIGCONT), it reports its runs: none of these reports may be accepted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

from chaos.findings import Finding, percentile
from chaos.oracles import check_executions
from chaos.single_server import single_server, submit
from noetl.core.model.events import Recorded, StepStarted
from noetl.storage.factory import open_stores
from tests.server.http.serving import Cluster

TERM = 2.0
GRACE = 2.0
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: zombies, path: chaos/zombies}
workflow:
  - step: hold
    tool: {kind: python, code: "import time; time.sleep(1.5); result = 1"}
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: noop}
"""


def experiment(*, quick: bool) -> Finding:
    """Rounds: submit, wait until workers have runs, suspend two workers, wait for the others, resume them."""
    goal, slots = (16, 8) if quick else (200, 16)
    zombies = 0
    delays: list[float] = []
    ids: list[str] = []
    settings = {"NOETL_SERVER_LEASE_SECONDS": f"{TERM:g}", "NOETL_SLOTS": str(slots)}
    with single_server(workers=4, **settings) as cluster:
        _workers(cluster, lambda runs: len(runs) == 4)
        while zombies < goal:
            fresh = [submit(cluster, PLAYBOOK) for _ in range(2 * slots)]
            ids += fresh
            victims = _workers(cluster, lambda runs: any(runs.values()))
            pids = [int(worker.split("-")[-2]) for worker in victims]
            stopped = time.time()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            held = _leases(cluster, fresh, victims)
            time.sleep(TERM + GRACE + 1.5)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            for each in fresh:
                cluster.finished(each, 60)
            again = _leases(cluster, fresh, None)
            released = [after for run, after in again.items() if run in held and after[0] > held[run][0]]
            zombies += len(released)
            delays += [at - stopped for _, at in released]
        report = check_executions(str(cluster.home / "noetl.db"), ids)
    late = [each for each in delays if each > TERM + GRACE]
    return Finding(
        part="zombies",
        guarantee="G5",
        target="200 runs of suspended workers: 0 stale events accepted; new lease within the lease term plus 2 s",
        setup=f"One server, 4 workers with {slots} slots, leases of {TERM:g} s; two workers suspended with SIGSTOP "
        "during their runs, and resumed after the runs were leased to others.",
        figures={
            "runs of suspended workers": str(zombies),
            "stale events accepted": str(len(report.violations)),
            "leased to another worker after, median / worst": f"{percentile(delays, 0.5):.2f} s / {max(delays):.2f} s",
            "successful executions": f"{report.outcomes['success']} of {len(ids)}",
        },
        violations=report.violations,
        missed=[f"{len(late)} runs were leased to another worker later than {TERM + GRACE:g} s"] if late else [],
    )


def _workers(cluster: Cluster, when: Callable[[dict[str, int]], bool]) -> set[str]:
    """Wait until the condition is true; returns the two workers with the most runs."""
    deadline = time.monotonic() + 60
    runs: dict[str, int] = {}
    while time.monotonic() < deadline:
        _, document = cluster.ask("GET", "/api/workers")
        runs = {each["worker"]: len(each["runs"]) for each in document["items"]}
        if when(runs):
            return set(sorted(runs, key=lambda worker: -runs[worker])[:2])
        time.sleep(0.02)
    raise RuntimeError(f"the workers claimed no runs: {runs}")


def _leases(cluster: Cluster, ids: list[str], workers: set[str] | None) -> dict[str, tuple[int, float]]:
    """Epoch and time of the newest lease of each first step, optionally only of these workers."""
    found: dict[str, tuple[int, float]] = {}
    for log in asyncio.run(_logs(str(cluster.home / "noetl.db"), ids)):
        started = [each for each in log if isinstance(each.body, StepStarted) and each.body.step == "hold"]
        ended = any(each.body.NAME == "step.done" for each in log)
        if started and isinstance(started[-1].body, StepStarted):
            body = started[-1].body
            if workers is None or (body.worker in workers and not ended):
                found[log[0].execution_id] = (body.epoch, started[-1].at)
    return found


async def _logs(store: str, ids: list[str]) -> list[list[Recorded]]:
    events, _ = open_stores(store)
    try:
        return [await events.read(each) for each in ids]
    finally:
        await events.close()
