"""Generated playbooks with the outcome that the language promises, computed without the engine.

A playbook is a chain of *blocks*. Each block writes one key of `ctx`; the last step returns all of them. The model of a
block is one Python value, so it shares no code with the engine, the pipeline or the templates.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

RETRY = "spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 40}}]}}"


class Block(msgspec.Struct):
    """The steps of a block as YAML, the step that enters it, and the value that it writes to `ctx.bN`."""

    entry: str
    steps: str  # `{NEXT}` stands for the entry of the next block
    value: Any


def _takes(chance: random.Random) -> str:
    return f"takes: {chance.choice([0.01, 0.01, 0.5, 3, 12])}"


def _tasks(number: int, chance: random.Random) -> Block:
    """A pipeline whose tasks fail some times and build a value."""
    name, parts = f"s{number}", [chance.randint(0, 9) for _ in range(chance.randint(1, 3))]
    lines = [
        f"      - {{name: t{index}, kind: effect, value: {part}, fails: {chance.choice([0, 0, 1, 2])}, {_takes(chance)}, {RETRY}}}"
        for index, part in enumerate(parts)
    ]
    read = " + ".join(f"t{index}.data" for index in range(len(parts)))
    steps = (
        f"  - step: {name}\n    tool:\n" + "\n".join(lines) + "\n"
        f'      - {{name: total, kind: effect, value: "{{{{ {read} }}}}", {RETRY}}}\n'
        f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    return Block(name, steps, sum(parts))


def _loop(number: int, chance: random.Random) -> Block:
    """A loop that reduces or lists its items."""
    name, items = f"s{number}", [chance.randint(0, 9) for _ in range(chance.randint(0, 6))]
    mode = chance.choice(["parallel, max_in_flight: 3", "parallel", "sequential"])
    steps = (
        f'  - step: {name}\n    loop: {{in: "{{{{ {items} }}}}", iterator: n, spec: {{mode: {mode}}}}}\n'
        f'    tool:\n      - {{name: work, kind: effect, value: "{{{{ iter.n * 3 }}}}", {_takes(chance)}, {RETRY}}}\n'
        f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    return Block(name, steps, [3 * each for each in items])


def _reduced(number: int, chance: random.Random) -> Block:
    """A parallel loop whose iterations end in another order than they began, and whose values are joined by their index."""
    name, items = f"s{number}", [chance.randint(0, 9) for _ in range(chance.randint(2, 6))]
    steps = (
        f'  - step: {name}\n    loop: {{in: "{{{{ {items} }}}}", iterator: n, spec: {{mode: parallel, policy: {{reduce: {{ctx.b{number}: append}}}}}}}}\n'
        f'    tool:\n      - {{name: work, kind: effect, value: 1, takes: "{{{{ (10 - iter.n) / 5 }}}}", set: {{ctx.b{number}: "{{{{ iter.n }}}}"}}, {RETRY}}}\n'
        f"    next: {{arcs: [{{step: NEXT}}]}}\n"
    )
    return Block(name, steps, items)


def _tolerant(number: int, chance: random.Random) -> Block:
    """A loop that tolerates some failed iterations, and the step that handles one failure more."""
    name, failing, most = f"s{number}", chance.randint(0, 3), chance.randint(1, 2)
    steps = (
        f"  - step: {name}\n    loop: {{in: [0, 1, 2, 3], iterator: n, spec: {{mode: {chance.choice(['parallel', 'sequential'])}}}}}\n"
        f"    spec: {{policy: {{failure: {{mode: best_effort, max_failed: {most}}}}}}}\n"
        f'    tool: [{{name: work, kind: effect, value: "{{{{ iter.n }}}}", fails: "{{{{ 1000 if iter.n < {failing} else 0 }}}}", {_takes(chance)}}}]\n'
        f"    set: {{ctx.b{number}: \"{{{{ output.data if output.status == 'ok' else output.error.details.failed }}}}\"}}\n"
        f"    next: {{arcs: [{{step: NEXT}}, {{step: NEXT, when: \"{{{{ event.name == 'step.failed' }}}}\"}}]}}\n"
    )
    listed = [None if each < failing else each for each in range(4)]
    return Block(name, steps, listed if failing <= most else most + 1)


def _until(number: int, chance: random.Random) -> Block:
    """A loop that stops after an element."""
    name, items = f"s{number}", [chance.randint(0, 4) for _ in range(chance.randint(1, 6))]
    steps = (
        f'  - step: {name}\n    loop: {{in: "{{{{ {items} }}}}", iterator: n, spec: {{until: "{{{{ output.data == 3 }}}}"}}}}\n'
        f'    tool:\n      - {{name: work, kind: effect, value: "{{{{ iter.n }}}}", {_takes(chance)}, {RETRY}}}\n'
        f'    set: {{ctx.b{number}: "{{{{ [output.data, output.loop.succeeded] }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    done = items[: items.index(3) + 1] if 3 in items else items
    return Block(name, steps, [done, len(done)])


def _boundaries(number: int, chance: random.Random) -> Block:
    """A loop whose router takes one arc over both of its boundary events."""
    name, boundary = f"s{number}", chance.choice(["loop.done", "step.done"])
    steps = (
        f"  - step: {name}\n    loop: {{in: [0, 1, 2], iterator: n, spec: {{mode: parallel}}}}\n"
        f"    tool: [{{name: work, kind: effect, value: 1, {_takes(chance)}, {RETRY}}}]\n"
        f"    next: {{arcs: [{{step: {name}_guarded, when: \"{{{{ event.name == '{boundary}' }}}}\"}}, {{step: {name}_plain}}]}}\n"
    )
    for arm in ("guarded", "plain"):
        steps += (
            f"  - step: {name}_{arm}\n    tool: [{{name: work, kind: effect, value: {arm}, {RETRY}}}]\n"
            f"    set: {{ctx.b{number}: \"{{{{ (ctx.b{number} | default('')) ~ output.data }}}}\"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n"
        )
    return Block(name, steps, "guarded")


def _conflict(number: int, chance: random.Random) -> Block:
    """Parallel iterations that write one key: equal values are fine, different ones fail the step."""
    name, items = f"s{number}", [chance.randint(0, 1) for _ in range(chance.randint(1, 3))]
    steps = (
        f'  - step: {name}\n    loop: {{in: "{{{{ {items} }}}}", iterator: n, spec: {{mode: parallel}}}}\n'
        f'    tool: [{{name: work, kind: effect, value: 1, {_takes(chance)}, set: {{ctx.x{number}: "{{{{ iter.n }}}}"}}, {RETRY}}}]\n'
        f"    set: {{ctx.b{number}: \"{{{{ 'equal' if output.status == 'ok' else output.error.kind }}}}\"}}\n"
        f"    next: {{arcs: [{{step: NEXT}}, {{step: NEXT, when: \"{{{{ event.name == 'step.failed' }}}}\"}}]}}\n"
    )
    return Block(name, steps, "equal" if len({*items}) == 1 else "ctx.conflict")


def _branches(number: int, chance: random.Random) -> Block:
    """Branches that run at the same time and are joined."""
    name, values = f"s{number}", [chance.randint(0, 9) for _ in range(chance.randint(2, 3))]
    arms = [f"{name}_{index}" for index in range(len(values))]
    steps = f"  - step: {name}\n    next: {{spec: {{mode: inclusive}}, arcs: [{', '.join(f'{{step: {arm}}}' for arm in arms)}]}}\n"
    for arm, value in zip(arms, values, strict=True):
        steps += (
            f"  - step: {arm}\n    tool: [{{name: work, kind: effect, value: {value}, {_takes(chance)}, {RETRY}}}]\n"
            f"    next: {{arcs: [{{step: {name}_join}}]}}\n"
        )
    read = " + ".join(f"{arm}.data" for arm in arms)
    steps += (
        f'  - step: {name}_join\n    tool: [{{name: add, kind: effect, value: "{{{{ {read} }}}}", {RETRY}}}]\n'
        f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    return Block(name, steps, sum(values))


def _repair(number: int, chance: random.Random) -> Block:
    """A step that fails, and the step that handles the failure."""
    name, value = f"s{number}", chance.randint(0, 9)
    looped = "    loop: {in: [0, 1, 2, 3], iterator: n, spec: {mode: parallel}}\n" if chance.random() < 0.5 else ""
    fails = '"{{ 1000 if iter.n == 1 else 0 }}"' if looped else "1000"
    steps = (
        f"  - step: {name}\n{looped}    tool: [{{name: work, kind: effect, value: 1, fails: {fails}, {_takes(chance)}}}]\n"
        f"    next: {{arcs: [{{step: NEXT}}, {{step: {name}_repair, when: \"{{{{ event.name == 'step.failed' }}}}\"}}]}}\n"
        f"  - step: {name}_repair\n    tool: [{{name: work, kind: effect, value: {value}, {_takes(chance)}, {RETRY}}}]\n"
        f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    return Block(name, steps, value)


def _choice(number: int, chance: random.Random) -> Block:
    """A router that takes one of two arcs."""
    name, value = f"s{number}", chance.randint(0, 9)
    steps = (
        f"  - step: {name}\n    tool: [{{name: work, kind: effect, value: {value}, {_takes(chance)}, {RETRY}}}]\n"
        f'    next: {{arcs: [{{step: {name}_big, when: "{{{{ output.data > 4 }}}}"}}, {{step: {name}_small}}]}}\n'
    )
    for arm in ("big", "small"):
        steps += (
            f"  - step: {name}_{arm}\n    tool: [{{name: work, kind: effect, value: {arm}, {RETRY}}}]\n"
            f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
        )
    return Block(name, steps, "big" if value > 4 else "small")


def _calls(number: int, chance: random.Random) -> Block:
    """A call of a child playbook."""
    name, value = f"s{number}", chance.randint(0, 9)
    steps = (
        f"  - step: {name}\n    tool: [{{name: call, kind: playbook, path: called, input: {{n: {value}}}}}]\n"
        f'    set: {{ctx.b{number}: "{{{{ output.data }}}}"}}\n    next: {{arcs: [{{step: NEXT}}]}}\n'
    )
    return Block(name, steps, 10 * value)


_KINDS: list[Callable[[int, random.Random], Block]] = [
    _tasks,
    _tasks,
    _loop,
    _loop,
    _reduced,
    _tolerant,
    _until,
    _boundaries,
    _conflict,
    _branches,
    _repair,
    _choice,
    _calls,
]


def generate(seed: int) -> tuple[str, tuple[str, Any]]:
    """The text of a playbook and its outcome: status and data."""
    chance = random.Random(f"playbook {seed}")
    blocks = [chance.choice(_KINDS)(number, chance) for number in range(chance.randint(1, 4))]
    entries = [*(block.entry for block in blocks[1:]), "end"]
    steps = "".join(
        block.steps.replace("step: NEXT", f"step: {entry}") for block, entry in zip(blocks, entries, strict=True)
    )
    shown = ", ".join(f"ctx.b{number}" for number in range(len(blocks)))
    text = (
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: generated, path: generated}}\n"
        f"executor: {{spec: {{entry_step: {blocks[0].entry}}}}}\nworkflow:\n{steps}"
        f'  - step: end\n    tool: [{{name: show, kind: effect, value: "{{{{ [{shown}] }}}}", {RETRY}}}]\n'
    )
    return text, ("success", [block.value for block in blocks])
