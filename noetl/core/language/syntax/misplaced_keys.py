"""Words of the language beside a task's `kind` that belong elsewhere, and their places."""

from __future__ import annotations

from noetl.core.model.tool import ToolSpec

_RULE = "write a rule of the task: `spec: {policy: {rules: [{when: ..., then: {do: ...}}]}}`"
_RETRY = "write `retry: {attempts, delay, backoff, max_delay}` beside `kind`, or a rule with `do: retry`"
_STEP = "it belongs to the step: write it beside `step`"
_LOOP = "write `loop: {in: ..., iterator: ..., spec: {...}}` beside `step`"
_ADMIT = "write `spec: {policy: {admit: {...}}}` beside `step`"
_ROOT = "it belongs to the playbook: write it at the top level"
_SKIP = (
    "to skip the task write `spec: {policy: {rules: [{when: ..., then: {do: skip}}]}}` (the condition for skipping), "
    "or put it under `choose`; the guard of a step belongs to the arc that leads to it"
)

PLACES = {
    "when": _SKIP,
    "policy": "write `spec: {policy: {rules: [...]}}`",
    "rules": "write `spec: {policy: {rules: [...]}}`",
    "on_unmatched": "write `spec: {policy: {on_unmatched: ..., rules: [...]}}`",
    "do": _RULE,
    "then": _RULE,
    "else": _RULE,
    "attempts": _RETRY,
    "max_attempts": _RETRY,
    "backoff": _RETRY,
    "delay": _RETRY,
    "max_delay": _RETRY,
    "set_ctx": "write `set: {ctx.<name>: ...}` beside `kind`",
    "set_iter": "write `set: {iter.<name>: ...}` beside `kind`",
    "set_step": "write `set: {step.<name>: ...}` beside `kind`",
    "ctx": "write `set: {ctx.<name>: ...}` beside `kind`",
    "iter": "write `set: {iter.<name>: ...}` beside `kind`",
    "step": "a task is named by `name`; a step is an item of `workflow`",
    "tool": "a task is itself an item of `tool`: write `kind` and its parameters",
    "loop": f"{_STEP}: `loop: {{in: ..., iterator: ...}}`",
    "in": _LOOP,
    "iterator": _LOOP,
    "max_in_flight": _LOOP,
    "reduce": "write `loop: {spec: {policy: {reduce: {...}}}}` beside `step`",
    "next": f"{_STEP}: `next: {{arcs: [{{step: ...}}]}}`",
    "arcs": "write `next: {arcs: [{step: ...}]}` beside `step`",
    "admit": _ADMIT,
    "on_deny": _ADMIT,
    "join": _ADMIT,
    "once": _ADMIT,
    "lifecycle": "write `spec: {policy: {lifecycle: {timeout_s: ...}}}` beside `step`",
    "timeout_s": "write `spec: {timeout: ...}`, or `spec: {policy: {lifecycle: {timeout_s: ...}}}` beside `step`",
    "deadline_s": "write `spec: {policy: {lifecycle: {deadline_s: ...}}}` beside `step`",
    "failure": "write `spec: {policy: {failure: {mode: ...}}}` beside `step`",
    "synthesize": "write `spec: {policy: {synthesize: ...}}` beside `step`",
    "choose": "write it as an item of `tool`, without `kind`",
    "while": "write it as an item of `tool`, without `kind`",
    "until": "write an item of `tool` without `kind`, or `loop: {spec: {until: ...}}` beside `step`",
    "workload": _ROOT,
    "workflow": _ROOT,
    "workbook": _ROOT,
    "keychain": _ROOT,
    "executor": _ROOT,
    "metadata": _ROOT,
    "apiVersion": _ROOT,
    "effect": "write `spec: {effect: ...}`",
    "max_task_runs": "write `spec: {max_task_runs: ...}`",
    "pool": "write `spec: {pool: ...}` beside `step`",
}

# Words that no kind has as a parameter. A plug-in that is not installed may have parameters named like the others.
TASK_WORDS = frozenset({"when", "loop", "next", "set_ctx", "set_iter", "policy", "rules"})


def place_of(key: str, spec: ToolSpec) -> str:
    """Where a word belongs that a kind does not declare as a parameter; empty if it has no other place."""
    if key in spec.spec_keys or key in spec.defaults:
        return f"write `spec: {{{key}: ...}}`"
    return PLACES.get(key, "")
