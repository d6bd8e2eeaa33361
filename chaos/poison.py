"""G9: playbooks that would take everything, beside one that only wants to run.

Each must end as a failure with a kind, or be refused with diagnostics, within five seconds; a canary that runs again
and again on the same server must hardly notice.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from chaos.findings import Finding, milliseconds, percentile
from chaos.load import ONE
from chaos.solo import solo
from tests.server.http.serving import Cluster

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: poison, path: chaos/poison}\n"
WITHIN = 5.0
FINAL = ("success", "failed", "cancelled")


def poisons() -> dict[str, str]:
    """Sixty of them, by name."""
    found: dict[str, str] = {}
    for limits in ({}, {"max_task_runs": 50}):
        found[f"a task that jumps to itself{_limited(limits)}"] = _steps(
            {"step": "a", "spec": limits, "tool": [_task("again", "noop", _else("jump", to="again"))]}
        )
    found["tasks that jump to each other"] = _steps(
        {"step": "a", "tool": [_task(name, "noop", _else("jump", to=to)) for name, to in ("pq", "qr", "rp")]}
    )
    for delay in (0, 0.001, 0.01):
        found[f"a retry that never helps, {delay}"] = _python(
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
        found[f"steps that follow each other for ever{_limited(limits)}"] = _circle({"kind": "noop"}, **limits)
    found["steps of python that follow each other for ever"] = _circle({"kind": "python", "code": "result = 1"})
    found["a step that follows itself for ever"] = _steps(
        {"step": "a", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "a"}]}}
    )
    found["steps without tasks that follow each other for ever"] = _steps(
        {"step": "a", "next": {"arcs": [{"step": "b"}]}}, {"step": "b", "next": {"arcs": [{"step": "a"}]}}
    )
    for wide in (5, 15):
        found[f"a file of {wide} MB"] = HEAD + "workload: {a: " + "x" * wide * 1_000_000 + "}\n"
    for depth in (100, 1_000, 10_000):
        found[f"YAML {depth} deep"] = HEAD + "workload: " + "[" * depth + "]" * depth + "\n"
    aliases = "\n".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))
    found["YAML aliases that multiply"] = f"{HEAD}workload:\n  a0: &a0 [x]\n{aliases}\nworkflow: []\n"
    found["a key twice"] = HEAD + "workflow: [{step: a, step: b, tool: {kind: noop}}]\n"
    found["no YAML"] = HEAD + "workflow: [{step: a\n"
    found["a million steps"] = HEAD + "workflow:\n" + "- {step: s, tool: {kind: noop}}\n" * 50_000
    found["a step that is not there"] = _steps(
        {"step": "a", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "nowhere"}]}}
    )
    found["a kind that is not there"] = _steps({"step": "a", "tool": {"kind": "magic"}})
    return found


TEMPLATES = {
    "a very long range": "{{ range(10**9) | list }}",
    "a very long text": "{{ 'x' * 10**9 }}",
    "a very large power": "{{ 9 ** 999999999 }}",
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
    "a sum that grows": "{{ (range(9999) | list) * 9999 }}",
    "a format that is wide": "{{ '%999999999d' % 1 }}",
    "a replacement that grows": "{{ ('x' * 9999).replace('x', 'x' * 9999).replace('x', 'x' * 9999) }}",
    "the way out of the sandbox": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}
PROGRAMS = {
    "for ever": "while True:\n    pass",
    "asleep": "import time\ntime.sleep(3600)",
    "raises": "raise SystemExit(3)",
    "is gone": "import os\nos._exit(9)",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "recurses": "def f():\n    return f()\nresult = f()",
    "gives what no JSON is": "result = object()",
    "does not compile": "result = (",
    "breaks its own output": "import os\nos.close(1)\nos.close(0)\nraise RuntimeError('x')",
}
COMMANDS = {
    "for ever": "while true; do :; done",
    "asleep": "sleep 3600",
    "endless output": "yes",
    "fails": "exit 7",
    "is not there": "/no/such/program",
    "ignores signals": "trap '' TERM INT; sleep 3600",
    "leaves children": "sleep 3600 & sleep 3600 & wait",
}


def _limited(limits: dict[str, int]) -> str:
    return "".join(f", {name} {value}" for name, value in limits.items())


def _circle(tool: dict[str, Any], **limits: int) -> str:
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
    """A small playbook, run again and again; how long each run took."""

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
    """Every poison once, one after the other, beside the canary."""
    cases = poisons()
    if quick:
        cases = dict(list(cases.items())[:: max(1, len(cases) // 12)])
    slowest: tuple[float, str] = (0.0, "")
    refused = 0
    kinds: dict[str, int] = {}
    broken: list[str] = []
    late: list[str] = []
    with solo(workers=1, NOETL_SLOTS="32") as cluster:
        with Canary(cluster) as before:
            time.sleep(1 if quick else 20)
        with Canary(cluster) as beside:
            for name, text in cases.items():
                began = time.monotonic()
                answer = _ending(cluster, text)
                took = time.monotonic() - began
                slowest = max(slowest, (took, name))
                if answer == "diagnostics":
                    refused += 1
                elif answer in ("", "success", "internal"):
                    broken.append(f"{name}: {answer or 'no typed failure'}")
                else:
                    kinds[answer] = kinds.get(answer, 0) + 1
                if took > WITHIN:
                    late.append(f"{name} took {took:.1f} s")
        with Canary(cluster) as after:  # so that a slow spell of the machine is not taken for the poisons' doing
            time.sleep(1 if quick else 20)
        status, _ = cluster.ask("GET", "/readyz", token="")
    if status != 200:
        broken.append("the server is not ready afterwards")
    alone, among = percentile([*before.took, *after.took], 0.99), percentile(beside.took, 0.99)
    if among > 2 * alone:
        late.append(f"the canary's p99 went from {milliseconds(alone)} to {milliseconds(among)}")
    return Finding(
        part="poison",
        guarantee="G9",
        target="60 poison playbooks: a typed failure within 5 s each; a canary's p99 at most doubles",
        did=f"One server on SQLite, one worker; {len(cases)} poison playbooks in turn, a canary beside them.",
        figures={
            "ended with a kind": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            "refused with diagnostics": str(refused),
            "slowest": f"{slowest[0]:.1f} s ({slowest[1]})",
            "canary's p99 alone / beside": f"{milliseconds(alone)} / {milliseconds(among)}",
        },
        broken=broken,
        missed=late,
    )


def _ending(cluster: Cluster, text: str) -> str:
    """How a playbook ended: the kind of its error, `diagnostics`, or a word that is wrong."""
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
