"""The playbooks of the simulation: one for each construct that a fault can interrupt."""

from __future__ import annotations

import random

_HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: {name}}}\n"

_BODIES = {
    "chain": """
workflow:
  - step: start
    tool: {kind: effect, value: 1}
    set: {ctx.a: "{{ output.data }}"}
    next: {arcs: [{step: middle}]}
  - step: middle
    tool: {kind: effect, value: "{{ ctx.a + 1 }}"}
    set: {ctx.b: "{{ output.data }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: effect, value: "{{ [ctx.a, ctx.b] }}"}
""",
    "retries": """
workflow:
  - step: start
    tool:
      - name: flaky
        kind: effect
        value: done
        fails: 2
        spec:
          policy:
            rules:
              - when: "{{ output.status == 'error' }}"
                then: {do: retry, attempts: 40, delay: 1, backoff: linear}
      - name: after
        kind: effect
        value: "{{ flaky.data ~ '!' }}"
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
""",
    "pages": """
workflow:
  - step: start
    tool:
      - {name: init, kind: noop, set: {step.page: 0, step.seen: []}}
      - name: fetch
        kind: effect
        value: "{{ step.page }}"
        set: {step.seen: "{{ step.seen + [output.data] }}", step.page: "{{ step.page + 1 }}"}
        spec:
          policy:
            rules:
              - {when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}
              - {when: "{{ step.page < 4 }}", then: {do: jump, to: fetch}}
      - {name: show, kind: effect, value: "{{ step.seen }}"}
""",
    "fan_out": """
workflow:
  - step: start
    loop:
      in: "{{ range(7) | list }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 4, policy: {reduce: {ctx.sum: sum}}}
    tool:
      - {name: work, kind: effect, value: "{{ iter.n * 2 }}", takes: 0.5, set: {ctx.sum: "{{ iter.n }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: effect, value: "{{ {'sum': ctx.sum, 'all': start.results} }}"}
""",
    "list_loop": """
workflow:
  - step: start
    loop: {in: "{{ [3, 1, 2] }}", iterator: n}
    tool:
      - {name: add, kind: effect, value: "{{ iter.n }}", set: {ctx.list: "{{ (ctx.list | default([])) + [iter.n] }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: effect, value: "{{ ctx.list }}"}
""",
    "join": """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}, {step: never, when: "{{ false }}"}]}
  - step: left
    tool: {kind: effect, value: 1, takes: 2}
    next: {arcs: [{step: join}]}
  - step: right
    tool: {kind: effect, value: 2}
    next: {arcs: [{step: join}]}
  - step: never
    tool: {kind: noop}
    next: {arcs: [{step: join}]}
  - step: join
    tool: {kind: effect, value: "{{ left.data + right.data }}"}
""",
    "gate": """
executor: {spec: {return_step: gated}}
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: opener}]}
  - step: opener
    tool: {kind: effect, value: key, takes: 1}
    set: {ctx.key: "{{ output.data }}"}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.key is defined }}", then: {allow: true}}]}}}
    tool: {kind: effect, value: "{{ ctx.key }}"}
""",
    "failure": """
workflow:
  - step: start
    tool:
      - {name: broken, kind: effect, fails: 1000}
    next:
      arcs:
        - {step: fine}
        - {step: repair, when: "{{ event.name == 'step.failed' }}"}
  - {step: fine, tool: {kind: noop}}
  - step: repair
    tool: {kind: effect, value: repaired}
""",
    "called": """
workload: {n: 0}
workflow:
  - step: start
    tool: {kind: effect, value: "{{ workload.n * 10 }}"}
""",
    "calls": """
workflow:
  - step: start
    loop: {in: "{{ [1, 2] }}", iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: playbook, path: called, input: {n: "{{ iter.n }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: effect, value: "{{ start.results }}"}
""",
    "nested": """
workflow:
  - step: start
    loop:
      in: "{{ [[1, 2], [3]] }}"
      iterator: group
      spec: {mode: parallel, max_in_flight: 2}
      loop: {in: "{{ iter.group }}", iterator: n}
    tool: {kind: effect, value: "{{ iter.n }}"}
""",
    "long": """
workflow:
  - step: start
    loop: {in: "{{ [1, 2, 3, 4] }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool:
      - name: work
        kind: effect
        value: "{{ iter.n }}"
        takes: 12
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
""",
    "booked": """
workflow:
  - step: start
    spec: {policy: {compensation: {tool: [{name: undo, kind: effect, value: "{{ output.data }}"}]}}}
    tool: {kind: effect, value: booking}
    next: {arcs: [{step: confirm}]}
  - step: confirm
    spec: {policy: {compensation: {tool: [{name: undo, kind: effect, value: "{{ output.data }}"}]}}}
    tool: {kind: effect, value: confirmation}
""",
    "saga": """
workflow:
  - step: start
    spec:
      policy:
        compensation:
          tool:
            - name: undo
              kind: effect
              value: "{{ output.data }}"
              fails: 1
              spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
            - {name: note, kind: effect, value: "{{ failure.kind }}"}
    tool: {kind: effect, value: 1}
    next: {arcs: [{step: rooms}]}
  - step: rooms
    loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel, max_in_flight: 2}}
    spec: {policy: {compensation: {tool: {kind: effect, value: "{{ iter.n }}", takes: 1}}}}
    tool: {kind: effect, value: "{{ iter.n }}"}
    next: {arcs: [{step: called_step}]}
  - step: called_step
    tool: {kind: playbook, path: booked}
    next: {arcs: [{step: broken}]}
  - step: broken
    tool: {kind: effect, fails: 1000}
""",
    "once": """
workflow:
  - step: start
    tool:
      - {name: before, kind: effect, value: 1, takes: 1}
      - name: once
        kind: effect
        value: paid
        takes: 4
        spec:
          effect: at_most_once
          policy: {rules: [{when: "{{ output.error.kind == 'ambiguous' }}", then: {do: continue}}, {else: {then: {do: continue}}}]}
      - {name: after, kind: effect, value: "{{ once.data | default('unknown', true) }}", takes: 1}
""",
    "fail_fast": """
workflow:
  - step: start
    loop: {in: "{{ range(12) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: effect, value: 1, takes: "{{ 2 if iter.n == 1 else 30 }}", fails: "{{ 1000 if iter.n == 1 else 0 }}"}
    next: {arcs: [{step: fine}, {step: repair, when: "{{ event.name == 'step.failed' }}"}]}
  - {step: fine, tool: {kind: noop}}
  - step: repair
    tool: {kind: effect, value: repaired}
""",
    "timeout_fires": """
workflow:
  - step: start
    spec: {policy: {lifecycle: {timeout_s: 8}}}
    tool: {kind: effect, value: too late, takes: 90}
    next: {arcs: [{step: fine}, {step: late, when: "{{ event.name == 'step.failed' and output.error.kind == 'timeout' }}"}]}
  - {step: fine, tool: {kind: effect, value: in time}}
  - {step: late, tool: {kind: effect, value: timed out}}
""",
    "signalled": """
executor: {spec: {return_step: gated}}
workflow:
  - step: start
    tool: {kind: effect, value: 1}
    next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: slow}]}
  - step: slow
    tool:
      - name: wait
        kind: effect
        value: 1
        takes: 60
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.sent is defined }}", then: {allow: true}}]}}}
    tool: {kind: effect, value: "{{ ctx.sent }}"}
""",
    "lifecycle_timeout": """
workflow:
  - step: start
    spec: {policy: {lifecycle: {timeout_s: 300}}}
    tool: {kind: effect, value: in time, takes: 3}
""",
    "asks": """
workflow:
  - step: start
    tool:
      - name: ask
        kind: wait
        signal: answer
        timeout: 15s
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 100}}]}}
      - name: again  # the only signal is taken already
        kind: wait
        signal: answer
        timeout: 1s
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue}}, {else: {then: {do: fail}}}]}}
      - name: after
        kind: effect
        value: "{{ ask.data.n }}"
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
""",
    "keyed": """
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}, {step: d}, {step: e}]}
  - step: a
    tool: {kind: effect, value: {customer: x, change: 1}, takes: 1}
    next: {spec: &keys {policy: {partition: "{{ output.data.customer }}", dedupe: "{{ output.data.change }}", priority: 3}}, arcs: [{step: apply}]}
  - step: b
    tool: {kind: effect, value: {customer: x, change: 2}, takes: 1}
    next: {spec: *keys, arcs: [{step: apply}]}
  - step: c
    tool: {kind: effect, value: {customer: y, change: 3}, takes: 2}
    next: {spec: *keys, arcs: [{step: apply}]}
  - step: d
    tool: {kind: effect, value: {customer: x, change: 1}, takes: 2}
    next: {spec: *keys, arcs: [{step: apply}]}
  - step: e
    tool: {kind: effect, value: {customer: x, change: 4}}
    next: {spec: *keys, arcs: [{step: apply}]}
  - step: apply
    tool:
      - name: apply
        kind: effect
        value: 1
        takes: 3
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
""",
    "around": """
workflow:
  - step: start
    loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
    tool:
      - name: work
        kind: effect
        value: "{{ [lock.data, iter.n] }}"
        takes: 2
        fails: 1
        spec:
          policy:
            rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]
            before: [{name: lock, kind: effect, value: "{{ iter.n * 10 }}", takes: 1}]
            after: [{name: note, kind: effect, value: "{{ output.data }}", takes: 1}]
            finally: [{name: unlock, kind: effect, value: "{{ lock.data }}", takes: 1}]
      - {name: end, kind: effect, value: "{{ [output.data, unlock.data] }}"}
""",
    "poison": """
workflow:
  - step: start
    tool: {kind: effect, value: 1, kills: true, takes: 1}
    next: {arcs: [{step: fine}, {step: given_up, when: "{{ event.name == 'step.failed' and output.error.kind == 'worker.lost' }}"}]}
  - {step: fine, tool: {kind: noop}}
  - {step: given_up, tool: [{name: note, kind: effect, value: given up}]}
""",
    "pauses": """
workflow:
  - step: start
    loop: {in: "{{ [3, 1, 2] }}", iterator: n, spec: {mode: parallel}}
    tool:
      - {name: pause, kind: wait, for: "{{ iter.n * 20 }}s"}
      - {name: after, kind: effect, value: "{{ iter.n }}"}
""",
}

TIMED = frozenset(
    {"lifecycle_timeout", "timeout_fires", "asks", "pauses", "keyed"}
)  # their outcome depends on the wall clock
GENERATED = "generated"
COUNTER = "counter"  # adds one to `state`; executions of it overlap
COUNTER_TEXT = (
    _HEAD.format(name=COUNTER)
    + """
workflow:
  - step: start
    tool:
      - name: work
        kind: effect
        value: 1
        takes: 2
        spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 40}}]}}
    set: {state.n: "{{ (state.n | default(0)) + 1 }}"}
"""
)
MOST_IN_FLIGHT = {"fan_out": 4, "list_loop": 1, "calls": 2, "long": 4, "saga": 2, "fail_fast": 4}  # iterations at once

TEXTS: dict[str, str] = {name: _HEAD.format(name=name) + body for name, body in _BODIES.items()}


def choose_playbooks(seed: int, count: int) -> list[str]:
    """The playbooks of a seed."""
    return random.Random(seed).choices([*sorted(TEXTS), *[GENERATED] * (len(TEXTS) // 2)], k=count)


def counters_of(seed: int) -> list[str]:
    """The executions of a seed that change the same `state`: some in one seed of eight."""
    chance = random.Random(f"counters {seed}")
    return [COUNTER] * chance.randint(2, 3) if chance.random() < 0.125 else []


def limits_of(seed: int, paths: list[str]) -> dict[str, int]:
    """The limits of a seed: none in half of the cases, else the workers' pool, one of its playbooks, or both."""
    chance = random.Random(seed + 1)
    if chance.random() < 0.5:
        return {}
    found = {"pool default": chance.randint(1, 3)} if chance.random() < 0.7 else {}
    path = chance.choice(paths)
    return found | {f"playbook {path}": 1} | ({"playbook called": 1} if path == "calls" else {})
