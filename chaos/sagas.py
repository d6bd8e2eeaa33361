"""G15: SIGKILLs while executions fail and undo their completed steps; every step is undone, once, in order.

Each booking and each cancellation inserts a row in a transaction that records the idempotency key of its task. The
table shows forgotten, repeated and misordered compensations independently of the log.
"""

from __future__ import annotations

import asyncio

import psycopg

from chaos.cluster import Cluster, running_cluster
from chaos.findings import Finding
from chaos.kills import POISON, WORKERS, KillReport, Work, kill_while_running, read_rows
from noetl.core.model.events import Recorded
from noetl.storage.factory import open_stores

ROOMS = 3
RETRY = "{do: retry, attempts: 400, delay: 0.3}"


def _insert(what: str, action: str) -> str:
    return f"""
      - name: {action}
        kind: postgres
        auth: "{{{{ workload.dsn }}}}"
        command: "INSERT INTO chaos_sagas(number, what, action) VALUES (:number, :what, '{action}')"
        params: {{number: "{{{{ workload.number }}}}", what: "{what}"}}
        spec:
          exactly_once: true
          policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {RETRY}}}]}}"""


def _step(name: str, what: str, then: str, more: str = "") -> str:
    undo = _insert(what, "undo").replace("\n", "\n        ")
    return f"""
  - step: {name}{more}
    spec:
      policy:
        compensation:
          tool:{undo}
    tool:{_insert(what, "do")}
    next: {{arcs: [{{step: {then}}}]}}"""


_LOOP = f"""
    loop: {{in: "{{{{ range({ROOMS}) | list }}}}", iterator: room, spec: {{mode: parallel, max_in_flight: 2}}}}"""
_ROOMS = _step("rooms", "room {{ iter.room }}", "hotel", _LOOP)
_STEPS = _step("flight", "flight", "rooms") + _ROOMS + _step("hotel", "hotel", "car")
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: saga, path: chaos/saga}}
workload: {{dsn: '', number: 0}}
workflow:{_STEPS}
  - step: car
    tool: {{kind: python, code: "import time; time.sleep(0.05); raise ValueError('no car')"}}
"""
BOOKED = ("flight", *(f"room {number}" for number in range(ROOMS)), "hotel")


def create_table(cluster: Cluster) -> None:
    """Create the table of bookings and cancellations."""
    with psycopg.connect(cluster.dsn) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS chaos_sagas(id bigserial, number int NOT NULL, what text NOT NULL, "
            "action text NOT NULL)"
        )


def check_bookings(
    rows: list[tuple[int, str, str]], executions: int, poisoned: frozenset[int] = frozenset()
) -> list[str]:
    """Bookings that were not cancelled exactly once, in reverse order; `rows` are (number, what, action) in order.

    A run that lost three workers in a row has failed although it may have made its booking (rule 5)."""
    violations = []
    for number in range(executions):
        done = [what for each, what, action in rows if each == number and action == "do"]
        undone = [what for each, what, action in rows if each == number and action == "undo"]
        for what in BOOKED:
            made, cancelled = done.count(what), undone.count(what)
            if made != 1 and number not in poisoned:
                violations.append(f"request {number} booked {what} {made} times")
            if cancelled != made and not (number in poisoned and cancelled < made):
                violations.append(f"request {number} booked {what} {made} times and cancelled it {cancelled} times")
        groups = [what.partition(" ")[0] for what in undone]
        expected = (
            ["hotel"] * groups.count("hotel") + ["room"] * groups.count("room") + ["flight"] * groups.count("flight")
        )
        if groups != expected:
            violations.append(f"request {number} cancelled in the order {undone}")
    return violations


async def _poisoned(dsn: str, numbers: dict[str, int]) -> list[int]:
    """The requests of which a run lost three workers in a row."""
    events, _ = open_stores(dsn)
    try:
        return [number for each, number in numbers.items() if any(map(_is_poison, await events.read(each)))]
    finally:
        await events.close()


def _is_poison(recorded: Recorded) -> bool:
    output = getattr(recorded.body, "output", None)
    return output is not None and output.error is not None and POISON in output.error.message


def kill_sagas(cluster: Cluster, *, executions: int, kills: int, within: float = 300) -> KillReport:
    """Kill components while sagas run and are undone."""
    create_table(cluster)

    def check(cluster: Cluster, numbers: dict[str, int]) -> list[str]:
        rows = read_rows(cluster.dsn, "SELECT number, what, action FROM chaos_sagas ORDER BY id")
        poisoned = asyncio.run(_poisoned(cluster.dsn, numbers))
        return check_bookings(rows, executions, frozenset(poisoned))

    work = Work(PLAYBOOK, "failed", check)
    return kill_while_running(cluster, executions=executions, kills=kills, within=within, work=work)


def experiment(*, quick: bool) -> Finding:
    """G15, on a cluster started by `python -m devcluster start`."""
    executions, kills = (30, 12) if quick else (150, 300)
    with running_cluster(workers=WORKERS, NOETL_SERVER_LEASE_SECONDS="8", NOETL_SLOTS="16") as cluster:
        done = kill_sagas(cluster, executions=executions, kills=kills)
    report = done.report
    return Finding(
        part="sagas",
        guarantee="G15",
        target="sagas under 300 SIGKILLs: every completed step is undone once, in order, none is forgotten",
        setup=f"`python -m devcluster start` (2 servers, {WORKERS} workers, Postgres, NATS); {executions} executions "
        f"that book {len(BOOKED)} things and then fail; {kills} kills during that time. The bookings and cancellations "
        "are rows of a table.",
        figures={
            "SIGKILLs": f"{done.total} ({', '.join(f'{count} {name}' for name, count in sorted(done.kills.items()))})",
            "executions that failed and were undone": f"{report.outcomes['failed']} of {executions}",
            "cancellations forgotten, repeated or misordered": str(
                sum("request" in each for each in report.violations)
            ),
            "violations in the logs": str(len(report.violations)),
            "events": f"{report.events:,}",
            "expired leases": f"{report.losses} (and {report.returns} returned, whose order was lost)",
            "time from the last kill to the last end": f"{done.recovered[-1]:.1f} s",
        },
        violations=report.violations,
    )
