"""G2: SIGKILL of servers, workers, Postgres and NATS while executions run; no effect is lost or duplicated.

Each execution inserts rows into a table, each in a transaction that records the idempotency key of the task. The table
shows lost and duplicated effects independently of the log.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
from msgspec import Struct, field

from chaos.cluster import Cluster, running_cluster
from chaos.findings import Finding
from chaos.oracles import OracleReport, check_executions

ITEMS = 4
WORKERS = 6
PATIENCE = 3.0  # seconds to wait for a component of the drawn kind
SHARES = {"server": 30, "worker": 30, "nats": 25, "postgres": 15}  # percent of the kills
POISON = "3 workers in a row were lost"  # rule 5: a run that loses three workers fails; with many kills this can happen
RETRY = "{do: retry, attempts: 400, delay: 0.3}"
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: chaos, path: chaos/kills}}
workload: {{dsn: '', number: 0}}
workflow:
  - step: start
    tool: {{kind: python, input: {{n: "{{{{ workload.number }}}}"}}, code: "import time; time.sleep(0.02); result = n"}}
    next: {{arcs: [{{step: each}}]}}
  - step: each
    loop: {{in: "{{{{ range({ITEMS}) | list }}}}", iterator: item, spec: {{mode: parallel, max_in_flight: 3}}}}
    tool:
      - name: wait
        kind: noop
        spec: {{policy: {{rules: [{{when: "{{{{ _attempt < 3 }}}}", then: {{do: retry, attempts: 3, delay: 0.15}}}}]}}}}
      - name: effect
        kind: postgres
        auth: "{{{{ workload.dsn }}}}"
        command: "INSERT INTO chaos_effects(number, item) VALUES (:number, :item)"
        params: {{number: "{{{{ workload.number }}}}", item: "{{{{ iter.item }}}}"}}
        spec:
          exactly_once: true
          policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {RETRY}}}]}}
    next: {{arcs: [{{step: end}}]}}
  - step: end
    tool:
      - name: last
        kind: postgres
        auth: "{{{{ workload.dsn }}}}"
        command: "INSERT INTO chaos_effects(number, item) VALUES (:number, -1)"
        params: {{number: "{{{{ workload.number }}}}"}}
        spec:
          exactly_once: true
          policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {RETRY}}}]}}
"""


class Work(Struct, frozen=True):
    """A playbook to run, the status it ends with, and a check of its side effects by the number of the request of each
    execution."""

    playbook: str
    expected: str
    check: Callable[[Cluster, dict[str, int]], list[str]]


class KillReport(Struct):
    """The kills and their results."""

    kills: Counter[str] = field(default_factory=Counter)
    recovered: list[float] = field(default_factory=list)  # seconds from the last kill to the end of the last execution
    seconds: float = 0.0
    poisoned: int = 0  # executions that failed because one run lost three workers in a row
    report: OracleReport = field(default_factory=OracleReport)

    @property
    def total(self) -> int:
        """The number of killed processes."""
        return sum(self.kills.values())


def create_effects_table(dsn: str) -> None:
    """Create the table of side effects."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS chaos_effects(number int NOT NULL, item int NOT NULL)")


def kill_while_running(
    cluster: Cluster,
    *,
    executions: int,
    kills: int,
    pause: float = 0.5,
    within: float = 180.0,
    only: tuple[str, ...] = ("server", "worker", "nats", "postgres"),
    signum: signal.Signals = signal.SIGKILL,
    work: Work | None = None,
) -> KillReport:
    """Kill components while executions are submitted and run; then every execution must end.

    The first kills hit every component once; the others are drawn by `SHARES`. A kill waits until a server is ready,
    because otherwise a slow machine would only restart processes. Without `work`, the playbook of this module runs."""
    draw = random.Random(1)
    components = sorted(name for name in cluster.pids() if _kind(name) in only)
    untouched = draw.sample(components, len(components))
    done = KillReport()
    numbers: dict[str, int] = {}  # request number by execution
    duplicates: list[str] = []
    violations: list[str] = []
    began = time.monotonic()

    def submit(offset: int) -> None:
        for number in range(offset, executions, 4):
            try:
                found = cluster.submit(
                    work.playbook if work else PLAYBOOK, {"dsn": dsn, "number": number}, f"chaos-{number}"
                )
                if numbers.setdefault(found, number) != number:
                    duplicates.append(f"{found} was acknowledged for two requests")
            except RuntimeError as problem:
                violations.append(str(problem))
            time.sleep(gap)

    dsn = cluster.dsn
    gap = max(0.0, kills * pause / max(1, executions) * 4 * 0.8)  # spreads the requests over the time of the kills
    submitters = [threading.Thread(target=submit, args=[offset]) for offset in range(4)]
    for thread in submitters:
        thread.start()
    for _ in range(kills):
        victim = _next_victim(cluster, draw, untouched, components)
        if victim is None or not cluster.send(victim, signum):
            violations.append("no component was ready within a minute")
            break
        done.kills[_kind(victim)] += 1
        time.sleep(pause * draw.uniform(0.5, 1.5))
    stopped = time.monotonic()
    for thread in submitters:
        thread.join()
    ids = list(numbers)
    left = cluster.unfinished(ids, within)
    done.recovered.append(time.monotonic() - stopped)
    done.seconds = time.monotonic() - began
    cluster.wait_until_ready(60)
    done.report = check_executions(cluster.dsn, ids, expected=work.expected if work else "success")
    failed = {each for each in ids for what in done.report.violations if each in what and POISON in what}
    done.poisoned = len(failed)
    done.report.violations = [what for what in done.report.violations if POISON not in what]
    done.report.violations += [*violations, *duplicates]
    done.report.violations += [f"execution {each} did not end within {within:g} s" for each in left]
    if work is None:
        done.report.violations += check_effects(cluster.dsn, executions, {numbers[each] for each in failed})
    else:
        done.report.violations += work.check(cluster, numbers)
    return done


def _next_victim(cluster: Cluster, draw: random.Random, untouched: list[str], components: Sequence[str]) -> str | None:
    """The next component to kill, once a server is ready: one not killed yet, else one of a drawn kind."""
    kinds = sorted({_kind(name) for name in components})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (kind,) = draw.choices(kinds, [SHARES[each] for each in kinds])
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ready = cluster.ready_components()
            if any(_kind(name) == "server" for name in ready):
                eligible = [
                    name
                    for name in ready
                    if (name in untouched if untouched else name in components and _kind(name) == kind)
                ]
                if eligible:
                    victim = draw.choice(eligible)
                    untouched[:] = [name for name in untouched if name != victim]
                    return victim
            time.sleep(0.02)
    return None


def _kind(name: str) -> str:
    return name.partition("-")[0]


def read_rows(dsn: str, query: LiteralString) -> list[tuple[Any, ...]]:
    """The rows of a query, which is repeated while Postgres restarts."""
    for _ in range(50):
        with suppress(psycopg.OperationalError), psycopg.connect(dsn) as connection:
            return connection.execute(query).fetchall()
        time.sleep(0.2)
    raise RuntimeError("Postgres is not available")


def check_effects(dsn: str, executions: int, failed: set[int]) -> list[str]:
    """Effects that are duplicated or missing; failed requests may have missing effects."""
    rows = read_rows(dsn, "SELECT number, item, count(*)::int FROM chaos_effects GROUP BY number, item")
    counted = {(number, item): count for number, item, count in rows}
    violations = []
    for number in range(executions):
        for item in (-1, *range(ITEMS)):
            count = counted.pop((number, item), 0)
            if count > 1 or (count == 0 and number not in failed):
                violations.append(f"effect {item} of request {number} occurred {count} times")
    return violations + [f"unexpected effect: {each}" for each in counted]


def experiment(*, quick: bool) -> Finding:
    """G2, on a cluster started by `python -m devcluster start`."""
    executions, kills = (40, 12) if quick else (200, 500)
    # Leases are longer than a restart of a server and Postgres, so that live workers are not considered lost.
    with running_cluster(workers=WORKERS, NOETL_SERVER_LEASE_SECONDS="8", NOETL_SLOTS="16") as cluster:
        create_effects_table(cluster.dsn)
        done = kill_while_running(cluster, executions=executions, kills=kills, within=300)
    report = done.report
    return Finding(
        part="kills",
        guarantee="G2",
        target="500 SIGKILLs of servers, workers, Postgres and NATS during 200 executions: 0 lost, 0 duplicated",
        setup=f"`python -m devcluster start` (2 servers, {WORKERS} workers, Postgres, NATS); {executions} executions "
        f"of {ITEMS + 2} runs, {ITEMS + 1} of them with a side effect in a database; {kills} kills during that time.",
        figures={
            "SIGKILLs": f"{done.total} ({', '.join(f'{count} {name}' for name, count in sorted(done.kills.items()))})",
            "successful executions": f"{report.outcomes['success']} of {executions}",
            "effects lost or duplicated": str(sum("effect" in each for each in report.violations)),
            "violations in the logs": str(len(report.violations)),
            "events": f"{report.events:,}",
            "expired leases": f"{report.losses} (and {report.returns} returned, whose order was lost)",
            "time from the last kill to the last end": f"{done.recovered[-1]:.1f} s",
        },
        violations=report.violations,
        missed=[f"{done.poisoned} executions failed: one of their runs lost three workers in a row"]
        if done.poisoned
        else [],
    )


def rolling(*, quick: bool) -> Finding:
    """A rolling restart: servers and workers get SIGTERM one after the other and are started again."""
    executions, stops = (30, 6) if quick else (120, 24)
    with running_cluster(NOETL_SERVER_LEASE_SECONDS="10", NOETL_SLOTS="16") as cluster:
        create_effects_table(cluster.dsn)
        done = kill_while_running(
            cluster, executions=executions, kills=stops, pause=1.5, within=300, only=("server", "worker"),
            signum=signal.SIGTERM,
        )  # fmt: skip
    report = done.report
    lost = [f"{report.losses} runs lost an attempt although no process was killed"] if report.losses else []
    return Finding(
        part="rolling",
        guarantee="drain",
        target="A rolling restart of servers and workers: every execution ends, no run loses an attempt",
        setup=f"`python -m devcluster start`; {executions} executions while servers and workers receive SIGTERM in "
        "turn.",
        figures={
            "SIGTERMs": f"{done.total} ({', '.join(f'{count} {name}' for name, count in sorted(done.kills.items()))})",
            "successful executions": f"{report.outcomes['success']} of {executions}",
            "attempts lost": str(report.losses),
            "returned runs": str(report.returns),
            "effects lost or duplicated": str(sum("effect" in each for each in report.violations)),
        },
        violations=report.violations,
        missed=lost,
    )
