"""G2: SIGKILL over servers, workers, Postgres and NATS while executions run; none lost, none doubled.

Each execution writes rows to a table, each in a transaction that records the task's idempotency key. So the table says
whether something was done twice, or not at all, whatever the log says.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import psycopg
from msgspec import Struct, field

from chaos.findings import Finding
from chaos.judging import Judgement, judge
from chaos.machine import Cluster, running

ITEMS = 4
WORKERS = 6
PATIENCE = 3.0  # seconds until another kind is drawn, when nothing of the first is there
SHARES = {"server": 30, "worker": 30, "nats": 25, "postgres": 15}  # of a hundred kills
POISON = "3 workers in a row were lost"  # rule 5: a run that costs three workers fails; many kills may hit one thrice
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


class Killed(Struct):
    """What was done, and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    recovered: list[float] = field(default_factory=list)  # seconds from a kill of everything to the last end
    seconds: float = 0.0
    poisoned: int = 0  # executions that failed since a run of theirs was hit three times in a row
    judged: Judgement = field(default_factory=Judgement)

    @property
    def total(self) -> int:
        """How many processes were killed."""
        return sum(self.kills.values())


def prepare(cluster: Cluster) -> None:
    """The table that remembers what was done."""
    with psycopg.connect(cluster.dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS chaos_effects(number int NOT NULL, item int NOT NULL)")


def kill_while_running(
    cluster: Cluster,
    *,
    executions: int,
    kills: int,
    pause: float = 0.5,
    seed: int = 1,
    within: float = 180.0,
    only: tuple[str, ...] = ("server", "worker", "nats", "postgres"),
    signum: signal.Signals = signal.SIGKILL,
) -> Killed:
    """Kill parts in turn while executions are submitted and run; then everything must come to its end.

    The first kills take every part once; the others are drawn by `SHARES`. A kill waits until a server is ready: what
    never gets to work has nothing to lose, and a slow machine would do nothing but start."""
    draw = random.Random(seed)
    parts = sorted(name for name in cluster.pids() if _kind(name) in only)
    untouched = draw.sample(parts, len(parts))
    done = Killed()
    numbers: dict[str, int] = {}  # of the requests, by execution
    doubled: list[str] = []
    broken: list[str] = []
    began = time.monotonic()

    def submit(lane: int) -> None:
        for number in range(lane, executions, 4):
            try:
                found = cluster.submit(PLAYBOOK, {"dsn": dsn, "number": number}, f"chaos-{seed}-{number}")
                if numbers.setdefault(found, number) != number:
                    doubled.append(f"{found} was acknowledged for two requests")
            except RuntimeError as problem:
                broken.append(str(problem))
            time.sleep(gap)

    dsn = cluster.dsn
    gap = max(0.0, kills * pause / max(1, executions) * 4 * 0.8)  # so that requests come while parts are killed
    lanes = [threading.Thread(target=submit, args=[lane]) for lane in range(4)]
    for lane in lanes:
        lane.start()
    for _ in range(kills):
        victim = _victim(cluster, draw, untouched, parts)
        if victim is None or not cluster.send(victim, signum):
            broken.append("nothing of the cluster came back within a minute")
            break
        done.kills[_kind(victim)] += 1
        time.sleep(pause * draw.uniform(0.5, 1.5))
    stopped = time.monotonic()
    for lane in lanes:
        lane.join()
    ids = list(numbers)
    left = cluster.unfinished(ids, within)
    done.recovered.append(time.monotonic() - stopped)
    done.seconds = time.monotonic() - began
    cluster.wait_whole(60)
    done.judged = judge(cluster.dsn, ids)
    failed = {each for each in ids for what in done.judged.broken if each in what and POISON in what}
    done.poisoned = len(failed)
    done.judged.broken = [what for what in done.judged.broken if POISON not in what]
    done.judged.broken += [*broken, *doubled, *(f"execution {each} did not end within {within:g} s" for each in left)]
    done.judged.broken += _effects(cluster, executions, {numbers[each] for each in failed})
    return done


def _victim(cluster: Cluster, draw: random.Random, untouched: list[str], parts: Sequence[str]) -> str | None:
    """The next part to kill, once a server is ready: one that was not killed yet, else one of a kind that is drawn."""
    kinds = sorted({_kind(name) for name in parts})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (kind,) = draw.choices(kinds, [SHARES[each] for each in kinds])
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            working = cluster.working()
            if any(_kind(name) == "server" for name in working):
                eligible = [
                    name
                    for name in working
                    if (name in untouched if untouched else name in parts and _kind(name) == kind)
                ]
                if eligible:
                    victim = draw.choice(eligible)
                    untouched[:] = [name for name in untouched if name != victim]
                    return victim
            time.sleep(0.02)
    return None


def _kind(name: str) -> str:
    return name.partition("-")[0]


def _effects(cluster: Cluster, executions: int, failed: set[int]) -> list[str]:
    """What was done twice, or not at all; requests that failed may have left something undone."""
    rows: list[tuple[int, int, int]] = []
    for _ in range(50):
        with suppress(psycopg.OperationalError), psycopg.connect(cluster.dsn) as connection:
            rows = connection.execute(
                "SELECT number, item, count(*)::int FROM chaos_effects GROUP BY number, item"
            ).fetchall()
            break
        time.sleep(0.2)
    counted = {(number, item): count for number, item, count in rows}
    broken = []
    for number in range(executions):
        for item in (-1, *range(ITEMS)):
            count = counted.pop((number, item), 0)
            if count > 1 or (count == 0 and number not in failed):
                broken.append(f"effect {item} of request {number} was done {count} times")
    return broken + [f"an effect nobody asked for: {each}" for each in counted]


def experiment(*, quick: bool) -> Finding:
    """G2, on the cluster that `noetl cluster start` gives."""
    executions, kills = (40, 12) if quick else (200, 500)
    # Leases outlast what it takes to start a server and Postgres again: a worker that lives is not to be called lost.
    with running(workers=WORKERS, NOETL_SERVER_LEASE_SECONDS="8", NOETL_SLOTS="16") as cluster:
        prepare(cluster)
        done = kill_while_running(cluster, executions=executions, kills=kills, within=300)
    judged = done.judged
    return Finding(
        part="kills",
        guarantee="G2",
        target="500 SIGKILLs over servers, workers, Postgres and NATS during 200 executions: 0 lost, 0 doubled",
        did=f"`noetl cluster start` (2 servers, {WORKERS} workers, Postgres, NATS); {executions} executions of "
        f"{ITEMS + 2} runs, {ITEMS + 1} of them with an effect in a database; {kills} kills meanwhile.",
        figures={
            "SIGKILLs": f"{done.total} ({', '.join(f'{count} {name}' for name, count in sorted(done.kills.items()))})",
            "executions that ended well": f"{judged.outcomes['success']} of {executions}",
            "effects lost or doubled": str(sum("effect" in each for each in judged.broken)),
            "broken promises in the logs": str(len(judged.broken)),
            "events": f"{judged.events:,}",
            "leases taken back": f"{judged.losses} (and {judged.returns} whose order got lost were given back)",
            "all had ended after the last kill in": f"{done.recovered[-1]:.1f} s",
        },
        broken=judged.broken,
        missed=[f"{done.poisoned} executions failed: three workers in a row were killed under one of their runs"]
        if done.poisoned
        else [],
    )


def rolling(*, quick: bool) -> Finding:
    """A rolling restart: servers and workers are asked to stop (SIGTERM) one after the other, and started again."""
    executions, stops = (30, 6) if quick else (120, 24)
    with running(NOETL_SERVER_LEASE_SECONDS="10", NOETL_SLOTS="16") as cluster:
        prepare(cluster)
        done = kill_while_running(
            cluster, executions=executions, kills=stops, pause=1.5, within=300, only=("server", "worker"),
            signum=signal.SIGTERM,
        )  # fmt: skip
    judged = done.judged
    lost = [f"{judged.losses} runs lost an attempt although nothing was killed"] if judged.losses else []
    return Finding(
        part="rolling",
        guarantee="drain",
        target="A rolling restart of servers and workers: everything ends, no run loses an attempt",
        did=f"`noetl cluster start`; {executions} executions while servers and workers get SIGTERM in turn.",
        figures={
            "SIGTERMs": f"{done.total} ({', '.join(f'{count} {name}' for name, count in sorted(done.kills.items()))})",
            "executions that ended well": f"{judged.outcomes['success']} of {executions}",
            "attempts lost": str(judged.losses),
            "runs given back": str(judged.returns),
            "effects lost or doubled": str(sum("effect" in each for each in judged.broken)),
        },
        broken=judged.broken,
        missed=lost,
    )
