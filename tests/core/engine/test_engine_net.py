"""The static net of random playbooks, compared with plain searches over their arcs."""

from __future__ import annotations

import random

import pytest
import yaml
from engine_harness import playbook

from noetl.core.engine.evaluation.compiled_net import Net


def random_net(chance: random.Random) -> Net:
    """A net with cycles, steps that no other reaches, guards and gates."""
    names = [f"s{number}" for number in range(chance.randint(1, 9))]
    steps = []
    for name in names:
        arcs = [{"step": chance.choice(names)} for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        for arc in arcs:
            if chance.random() < 0.2:
                arc["when"] = "{{ ctx.x }}"
        admit = chance.choice(
            [{}] * 6 + [{"once": True}, {"rules": [{"when": "{{ ctx.x }}", "then": {"allow": True}}]}]
        )
        step = {"step": name, "tool": {"kind": "noop"}, "spec": {"policy": {"admit": admit}}, "next": {"arcs": arcs}}
        steps.append({key: value for key, value in step.items() if key != "next" or arcs})
    return Net(playbook(yaml.safe_dump({"executor": {"spec": {"entry_step": "s0"}}, "workflow": steps})))


def reachable(net: Net, origin: str) -> set[str]:
    """The steps that a token at a step can reach, by a search."""
    found: set[str] = set()
    left = [origin]
    while left:
        for arc in net.steps[left.pop()].router.arcs:
            if arc.target not in found:
                found.add(arc.target)
                left.append(arc.target)
    return found


def may_end(net: Net, name: str) -> bool:
    """Whether a token may wait or end at a step: a gate, or no arc without a guard."""
    step = net.steps[name]
    gated = bool(step.admission.rules) or step.admission.once
    return gated or all(arc.when is not None for arc in step.router.arcs)


@pytest.mark.parametrize("seed", range(150))
def test_reachability_and_endless_cycles_are_those_of_a_search(seed):
    net = random_net(random.Random(seed))
    for origin in net.steps:
        found = reachable(net, origin)
        for target in net.steps:
            assert origin == target or net.reaches(origin, target) == (target in found), (origin, target)
        assert net.endless(origin) == (not any(may_end(net, name) for name in {origin, *found})), origin
        others = {name for name in net.steps if name != origin and origin in reachable(net, name)}
        assert net.origins(origin) == net.mask(others)
