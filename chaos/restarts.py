"""G4: a long loop while the server is killed repeatedly; restarts are fast, and little work is repeated.

Every iteration appends a line to a file, which shows how often it was executed.
"""

from __future__ import annotations

import time
from collections import Counter

from chaos.findings import Finding, percentile
from chaos.oracles import check_executions
from chaos.single_server import kill_server, single_server, submit

SLOTS, WORKERS = 16, 2
READY_SECONDS = 2.0


def playbook(items: int, file: str) -> str:
    """A loop that records each iteration in a file."""
    return f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: restarts, path: chaos/restarts}}
workflow:
  - step: each
    loop: {{in: "{{{{ range({items}) | list }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 64}}}}
    tool:
      kind: python
      input: {{n: "{{{{ iter.n }}}}"}}
      code: |
        with open({file!r}, "a") as lines:
            lines.write(f"{{n}}\\n")
        result = n
"""


def experiment(*, quick: bool) -> Finding:
    """Kill the server at equal intervals of the progress of the loop."""
    items, kills = (1_000, 4) if quick else (10_000, 20)
    ready: list[float] = []
    with single_server(workers=WORKERS, NOETL_SLOTS=str(SLOTS)) as cluster:
        file = cluster.home / "done.txt"
        file.touch()
        began = time.monotonic()
        execution_id = submit(cluster, playbook(items, str(file)))
        for number in range(1, kills + 1):
            goal = items * number // (kills + 1)
            deadline = time.monotonic() + 120
            while _lines(file) < goal and time.monotonic() < deadline:
                time.sleep(0.02)
            ready.append(kill_server(cluster))
        document = cluster.finished(execution_id, 300)
        seconds = time.monotonic() - began
        done = Counter(file.read_text().split())
        report = check_executions(str(cluster.home / "noetl.db"), [execution_id])
    violations = list(report.violations)
    missing = [n for n in range(items) if not done[str(n)]]
    violations += [f"iteration {n} was not executed" for n in missing[:5]]
    repeated = sum(done.values()) - items
    most = kills * SLOTS * WORKERS
    if repeated > most:
        violations.append(f"{repeated} iterations were repeated, more than the {most} that were in flight")
    slow = [each for each in ready if each > READY_SECONDS]
    return Finding(
        part="restarts",
        guarantee="G4",
        target="10,000-iteration loop, 20 server kills: ready in 2 s, at most the work in flight is repeated",
        setup=f"One server on SQLite, {WORKERS} workers with {SLOTS} slots over HTTP; {items:,} iterations, {kills} "
        "SIGKILLs of the server.",
        figures={
            "time to readiness, median / worst": f"{percentile(ready, 0.5):.2f} s / {max(ready):.2f} s",
            "repeated iterations": f"{repeated} (at most {most} were in flight)",
            "iterations lost": str(len(missing)),
            "status": str(document["status"]),
            "duration of the loop": f"{seconds:.1f} s",
            "events": f"{report.events:,}",
        },
        violations=violations,
        missed=[f"{len(slow)} of {kills} restarts took longer than {READY_SECONDS:g} s"] if slow else [],
    )


def _lines(file: object) -> int:
    with open(str(file), "rb") as lines:
        return sum(1 for _ in lines)
