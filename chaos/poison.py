"""G9: playbooks that try to exhaust resources, next to a canary playbook.

Each one must fail with an error kind, or be rejected with diagnostics, within five seconds. The latency of a canary on
the same server must at most double.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from chaos.findings import Finding, milliseconds, percentile
from chaos.load import ONE
from chaos.single_server import single_server
from tests.server.http.serving import Cluster

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: poison, path: chaos/poison}\n"
WITHIN = 5.0
FINAL = ("success", "failed", "cancelled")


def poison_playbooks() -> dict[str, str]:
    """The poison playbooks by name."""
    found: dict[str, str] = {}
    for limits in ({}, {"max_task_runs": 50}):
        found[f"a task that jumps to itself{_limited(limits)}"] = _steps(
            {"step": "a", "spec": limits, "tool": [_task("again", "noop", _else("jump", to="again"))]}
        )
    found["tasks that jump to each other"] = _steps(
        {"step": "a", "tool": [_task(name, "noop", _else("jump", to=to)) for name, to in ("pq", "qr", "rp")]}
    )
    for delay in (0, 0.001, 0.01):
        found[f"a retry that never succeeds, {delay}"] = _python(
            "raise RuntimeError('no')", _else("retry", attempts=20, delay=delay)
        )
    for name, template in TEMPLATES.items():
        found[f"template: {name}"] = _steps({"step": "a", "tool": {"kind": "noop", "input": {"x": template}}})
        found[f"guard: {name}"] = _steps(
            {"step": "a", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "b", "when": template}]}},
            {"step": "b", "tool": {"kind": "noop"}},
        )
    for name, code in PROGRAMS.items():
        found[f"python: {name}"] = _python(code)
    for name, command in COMMANDS.items():
        found[f"shell: {name}"] = _steps(
            {"step": "a", "tool": {"kind": "shell", "command": command, "spec": {"timeout": 1}}}
        )
    for count in (2_000_000, 10_000_000, 100_000_000):
        found[f"a loop of {count:,}"] = _steps(
            {"step": "a", "loop": {"in": f"{{{{ range({count}) | list }}}}", "iterator": "n"}, "tool": {"kind": "noop"}}
        )
    for value in ("{{ 7 }}", "{{ none }}", "{{ {'a': 1}.nothing }}"):
        found[f"a loop over {value}"] = _steps(
            {"step": "a", "loop": {"in": value, "iterator": "n"}, "tool": {"kind": "noop"}}
        )
    for limits in ({}, {"max_step_runs": 100}):
        found[f"a cycle of steps{_limited(limits)}"] = _cycle({"kind": "noop"}, **limits)
    found["a cycle of python steps"] = _cycle({"kind": "python", "code": "result = 1"})
    found["a step that routes to itself"] = _steps(
        {"step": "a", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "a"}]}}
    )
    found["a cycle of steps without tasks"] = _steps(
        {"step": "a", "next": {"arcs": [{"step": "b"}]}}, {"step": "b", "next": {"arcs": [{"step": "a"}]}}
    )
    for wide in (5, 15):
        found[f"a file of {wide} MB"] = HEAD + "workload: {a: " + "x" * wide * 1_000_000 + "}\n"
    for depth in (100, 1_000, 10_000):
        found[f"YAML {depth} deep"] = HEAD + "workload: " + "[" * depth + "]" * depth + "\n"
    aliases = "\n".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))
    found["YAML aliases that multiply"] = f"{HEAD}workload:\n  a0: &a0 [x]\n{aliases}\nworkflow: []\n"
    found["a duplicate key"] = HEAD + "workflow: [{step: a, step: b, tool: {kind: noop}}]\n"
    found["invalid YAML"] = HEAD + "workflow: [{step: a\n"
    found["a million steps"] = HEAD + "workflow:\n" + "- {step: s, tool: {kind: noop}}\n" * 50_000
    found["an unknown step"] = _steps({"step": "a", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "nowhere"}]}})
    found["an unknown kind"] = _steps({"step": "a", "tool": {"kind": "magic"}})
    return found


TEMPLATES = {
    "a very long range": "{{ range(10**9) | list }}",
    "a very long text": "{{ 'x' * 10**9 }}",
    "a very large power": "{{ 9 ** 999999999 }}",
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
    "a sum that grows": "{{ (range(9999) | list) * 9999 }}",
    "a format that is wide": "{{ '%999999999d' % 1 }}",
    "a replacement that grows": "{{ ('x' * 9999).replace('x', 'x' * 9999).replace('x', 'x' * 9999) }}",
    "a sandbox escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}
PROGRAMS = {
    "infinite loop": "while True:\n    pass",
    "long sleep": "import time\ntime.sleep(3600)",
    "raises": "raise SystemExit(3)",
    "exits at once": "import os\nos._exit(9)",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "recurses": "def f():\n    return f()\nresult = f()",
    "result is not JSON": "result = object()",
    "does not compile": "result = (",
    "breaks its own output": "import os\nos.close(1)\nos.close(0)\nraise RuntimeError('x')",
}
COMMANDS = {
    "infinite loop": "while true; do :; done",
    "long sleep": "sleep 3600",
    "endless output": "yes",
    "fails": "exit 7",
    "unknown program": "/no/such/program",
    "ignores signals": "trap '' TERM INT; sleep 3600",
    "leaves children": "sleep 3600 & sleep 3600 & wait",
}


def _limited(limits: dict[str, int]) -> str:
    return "".join(f", {name} {value}" for name, value in limits.items())


def _cycle(tool: dict[str, Any], **limits: int) -> str:
    return _steps(
        {"step": "a", "tool": tool, "next": {"arcs": [{"step": "b"}]}},
        {"step": "b", "tool": tool, "next": {"arcs": [{"step": "a"}]}},
        **limits,
    )


def _task(name: str, kind: str, rule: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, **fields, "spec": {"policy": {"rules": [rule]}}}


def _else(do: str, **more: Any) -> dict[str, Any]:
    return {"else": {"then": {"do": do, **more}}}


def _python(code: str, rule: dict[str, Any] | None = None) -> str:
    spec: dict[str, Any] = {"timeout": 1}
    if rule is not None:
        spec["policy"] = {"rules": [rule]}
    return _steps({"step": "a", "tool": {"kind": "python", "code": code, "spec": spec}})


def _steps(*steps: dict[str, Any], **limits: int) -> str:
    executor = {"spec": {"policy": {"limits": limits}}}
    return HEAD + f"executor: {json.dumps(executor)}\nworkflow: " + json.dumps(steps) + "\n"


class Canary:
    """Runs a small playbook repeatedly and records the duration of each run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took: list[float] = []

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            _, document = self._cluster.ask("POST", "/api/execute", {"content": ONE})
            self._cluster.finished(document["execution_id"], 60)
            self.took.append(time.monotonic() - began)
            self._stop.wait(0.05)


def experiment(*, quick: bool) -> Finding:
    """Run every poison playbook in sequence, concurrently with the canary."""
    cases = poison_playbooks()
    if quick:
        cases = dict(list(cases.items())[:: max(1, len(cases) // 12)])
    slowest: tuple[float, str] = (0.0, "")
    refused = 0
    kinds: dict[str, int] = {}
    violations: list[str] = []
    late: list[str] = []
    with single_server(workers=1, NOETL_SLOTS="32") as cluster:
        with Canary(cluster) as before:
            time.sleep(1 if quick else 20)
        with Canary(cluster) as during:
            for name, text in cases.items():
                began = time.monotonic()
                result = _ending(cluster, text)
                took = time.monotonic() - began
                slowest = max(slowest, (took, name))
                if result == "diagnostics":
                    refused += 1
                elif result in ("", "success", "internal"):
                    violations.append(f"{name}: {result or 'no typed failure'}")
                else:
                    kinds[result] = kinds.get(result, 0) + 1
                if took > WITHIN:
                    late.append(f"{name} took {took:.1f} s")
        with Canary(cluster) as after:  # again, so that a slow phase of the machine does not count
            time.sleep(1 if quick else 20)
        status, _ = cluster.ask("GET", "/readyz", token="")
    if status != 200:
        violations.append("the server is not ready after the experiment")
    alone, concurrent = percentile([*before.took, *after.took], 0.99), percentile(during.took, 0.99)
    if concurrent > 2 * alone:
        late.append(f"the p99 of the canary increased from {milliseconds(alone)} to {milliseconds(concurrent)}")
    return Finding(
        part="poison",
        guarantee="G9",
        target="60 poison playbooks: each fails with an error kind within 5 s; the p99 of a canary at most doubles",
        setup=f"One server on SQLite, one worker; {len(cases)} poison playbooks in sequence, with a concurrent canary.",
        figures={
            "failed with an error kind": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            "rejected with diagnostics": str(refused),
            "slowest": f"{slowest[0]:.1f} s ({slowest[1]})",
            "p99 of the canary alone / concurrently": f"{milliseconds(alone)} / {milliseconds(concurrent)}",
        },
        violations=violations,
        missed=late,
    )


def _ending(cluster: Cluster, text: str) -> str:
    """The result of a playbook: its error kind, `diagnostics`, or an unexpected status."""
    status, document = cluster.ask("POST", "/api/execute", {"content": text})
    if status == 422 and document.get("diagnostics"):
        return "diagnostics"
    if status == 413:
        return "too large"
    if status != 202:
        return ""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        _, shown = cluster.ask("GET", f"/api/executions/{document['execution_id']}")
        if shown["status"] in FINAL:
            error = shown.get("error") or {}
            kind = error.get("kind", "") if isinstance(error, dict) else str(error)
            return kind or shown["status"]
        time.sleep(0.02)
    cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel", {})
    return ""
