"""Flow diagnostics of random playbooks are true: at run time the reported problem occurs for at least one request."""

from __future__ import annotations

import itertools
import random

import pytest

from noetl import open_local
from noetl.core.language.compile import compile_playbook
from noetl.tools import registry as tools

GUARDS = 4  # each workflow runs once for every combination of its guards


class Net:
    """An acyclic workflow; every guard reads its own value of the request."""

    def __init__(self, seed: int, *, gates: bool) -> None:
        chance = random.Random(seed)
        count = chance.randrange(4, 7)
        self.reader = f"s{chance.randrange(1, count)}" if not gates else ""
        guards = iter(range(GUARDS))
        lines = ["apiVersion: noetl.io/v2", "kind: Playbook", "metadata: {name: net}"]
        lines += ["workload: {" + ", ".join(f"g{each}: false" for each in range(GUARDS)) + "}", "workflow:"]
        for number in range(count):
            parts = [f"step: s{number}", "tool: {kind: noop}"]
            if f"s{number}" == self.reader:
                parts.append('input: {v: "{{ ctx.k }}"}')
            elif chance.random() < 0.45:
                parts.append("set: {ctx.k: true}")
            if gates and number and chance.random() < 0.6:
                requested = self._gate(chance, count)
                rule = f'{{when: "{{{{ {requested} }}}}", then: {{allow: true}}}}'
                parts.append(f"spec: {{policy: {{admit: {{rules: [{rule}]}}}}}}")
            targets = chance.sample(range(number + 1, count), min(count - number - 1, chance.randrange(1, 4)))
            mode = chance.choice(["exclusive", "exclusive", "inclusive"])
            arcs = []
            for target in targets:
                last = target == targets[-1] or mode == "inclusive"  # an arc without a guard takes every success
                guard = next(guards, None) if chance.random() < 0.6 or not last else None
                when = f', when: "{{{{ workload.g{guard} }}}}"' if guard is not None else ""
                arcs.append(f"{{step: s{target}{when}}}")
            if arcs:
                parts.append(f"next: {{spec: {{mode: {mode}}}, arcs: [{', '.join(arcs)}]}}")
            lines.append("- {" + ", ".join(parts) + "}")
        self.text = "\n".join(lines) + "\n"
        found = compile_playbook(self.text, file="net.yaml", specs=tools.specs())
        assert found.playbook is not None, found.diagnostics
        self.found = [(f"s{one.line - 6}", one.code, one.message) for one in found.diagnostics]

    @staticmethod
    def _gate(chance: random.Random, count: int) -> str:
        one, other = (f"s{chance.randrange(count)}" for _ in range(2))
        return chance.choice(
            [f"done('{one}')", f"done('{one}') and done('{other}')", f"any_done(['{one}', '{other}'])", "ctx.k | default(false)"]
        )  # fmt: skip

    def warned(self, code: str) -> dict[str, str]:
        return {step: message for step, found, message in self.found if found == code}


class Tasks:
    """A pipeline that only goes forward: rules that set, jump, skip and break, and one task that reads."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        count = chance.randrange(3, 6)
        self.reader = f"t{chance.randrange(1, count)}"
        guards = iter(range(GUARDS))
        lines = ["apiVersion: noetl.io/v2", "kind: Playbook", "metadata: {name: tasks}"]
        lines += ["workload: {" + ", ".join(f"g{each}: false" for each in range(GUARDS)) + "}"]
        lines += ["workflow:", "- step: s", "  tool:"]
        for number in range(count):
            parts = [f"name: t{number}", "kind: noop"]
            if f"t{number}" == self.reader:
                parts.append('input: {v: "{{ step.k }}"}')
            elif chance.random() < 0.3:
                parts.append("set: {step.k: 1}")
            rules = []
            while chance.random() < 0.6 and (guard := next(guards, None)) is not None and f"t{number}" != self.reader:
                do = chance.choice(["do: continue", "do: skip", "do: break", "do: fail", f"do: jump, to: t{count - 1}"])
                sets = ", set: {step.k: 2}" if chance.random() < 0.5 and "skip" not in do else ""
                rules.append(f'{{when: "{{{{ workload.g{guard} }}}}", then: {{{do}{sets}}}}}')
            if rules:
                sets = ", set: {step.k: 3}" if chance.random() < 0.3 else ""
                rules.append(f"{{else: {{then: {{do: continue{sets}}}}}}}")
                parts.append(f"spec: {{policy: {{rules: [{', '.join(rules)}]}}}}")
            lines.append("  - {" + ", ".join(parts) + "}")
        self.text = "\n".join(lines) + "\n"
        found = compile_playbook(self.text, file="tasks.yaml", specs=tools.specs())
        assert found.playbook is not None, found.diagnostics
        self.said = [one.message for one in found.diagnostics if one.code == "unset-on-path"]


@pytest.fixture(scope="module")
def run_playbooks(tmp_path_factory):
    """Runs a net with every request: for each, which steps ran and which of them failed."""
    import asyncio

    async def run_all(texts: list[str]) -> list[list[dict[str, str]]]:
        answers = []
        async with await open_local(store="memory:", home=tmp_path_factory.mktemp("home")) as engine:
            for text in texts:
                runs = []
                for values in itertools.product([False, True], repeat=GUARDS):
                    payload = {f"g{number}": value for number, value in enumerate(values)}
                    result = await engine.run(text, payload=payload)
                    runs.append({each.step: each.status for each in result.steps} | {"": str(result.error)})
                answers.append(runs)
        return answers

    return lambda texts: asyncio.run(run_all(texts))


def test_a_value_reported_as_unset_is_unset_for_some_request(run_playbooks):
    nets = [net for net in (Net(seed, gates=False) for seed in range(60)) if net.warned("unset-on-path")]
    assert len(nets) > 8
    for net, runs in zip(nets, run_playbooks([net.text for net in nets]), strict=True):
        statuses = [run[net.reader] for run in runs if net.reader in run]
        if "before anything" in net.warned("unset-on-path")[net.reader]:
            assert set(statuses) == {"failed"}, net.text
        else:
            assert "failed" in statuses, net.text


def test_a_gate_reported_as_closed_never_opens(run_playbooks):
    nets = [net for net in (Net(seed, gates=True) for seed in range(40)) if net.warned("closed-gate")]
    assert len(nets) > 8
    for net, runs in zip(nets, run_playbooks([net.text for net in nets]), strict=True):
        closed = net.warned("closed-gate")
        assert not [step for run in runs for step in closed if run.get(step) in ("success", "failed")], net.text


def test_a_task_reported_to_read_too_early_fails_for_some_request(run_playbooks):
    pipelines = [each for each in (Tasks(seed) for seed in range(80)) if each.said]
    assert len(pipelines) > 8
    for pipeline, runs in zip(pipelines, run_playbooks([each.text for each in pipelines]), strict=True):
        assert any('"step.k" is not defined' in run[""] for run in runs), pipeline.text
