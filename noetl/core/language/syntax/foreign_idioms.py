"""Keys and names of other tools and languages, and their equivalents here.

They are used only for hints; such a key is unknown like any other.
"""

from __future__ import annotations

import re

# Keys that a shape does not have, and their equivalents.
KEYS: dict[str, dict[str, str]] = {
    "loop.policy": {
        "failure": "it belongs to the step: write `spec: {policy: {failure: {mode: ...}}}` beside `step`",
    },
    "playbook": {
        "steps": "write the steps under `workflow`",
        "tasks": "write the steps under `workflow`",
        "jobs": "write the steps under `workflow`",
        "name": "write `metadata: {name: ...}`",
        "path": "write `metadata: {path: ...}`",
        "description": "write `metadata: {description: ...}`",
        "inputs": "declare request parameters under `workload`",
        "input": "declare request parameters under `workload`",
        "params": "declare request parameters under `workload`",
        "parameters": "declare request parameters under `workload`",
        "env": "write entries of `kind: env` under `keychain`",
        "secrets": "write entries under `keychain`",
        "credentials": "write entries under `keychain`",
    },
    "step": {
        "name": "write `step: ...`",
        "id": "write `step: ...`",
        "if": "guard the arc that leads here (`when`), or write `spec: {policy: {admit: {rules: [...]}}}`",
        "condition": "guard the arc that leads here (`when`), or write `spec: {policy: {admit: {rules: [...]}}}`",
        "needs": "add arcs from those steps to this one; a step with several incoming arcs waits for all",
        "depends_on": "add arcs from those steps to this one; a step with several incoming arcs waits for all",
        "after": "add arcs from those steps to this one; a step with several incoming arcs waits for all",
        "on_error": "route the failure with an arc: `when: \"{{ event.name == 'step.failed' }}\"`",
        "on_failure": "route the failure with an arc: `when: \"{{ event.name == 'step.failed' }}\"`",
        "catch": "route the failure with an arc: `when: \"{{ event.name == 'step.failed' }}\"`",
        "timeout": "write `spec: {policy: {lifecycle: {timeout_s: ...}}}`",
        "timeout_s": "write `spec: {policy: {lifecycle: {timeout_s: ...}}}`",
        "policy": "write `spec: {policy: ...}`",
        "admit": "write `spec: {policy: {admit: ...}}`",
        "arcs": "write `next: {arcs: [...]}`",
        "foreach": "write `loop: {in: ..., iterator: ...}`",
        "for_each": "write `loop: {in: ..., iterator: ...}`",
        "with_items": "write `loop: {in: ..., iterator: ...}`",
        "task": "write `tool: ...`",
        "tasks": "write `tool: [...]`",
        "tools": "write `tool: [...]`",
        "kind": "write `tool: {kind: ...}`",
        "inputs": "write `input`",
        "vars": "write `input`, or `set: {ctx.<name>: ...}`",
        "collect": "a loop's `output.data` is the list of its iterations' outputs; `set: {ctx.<name>: ...}` keeps it",
        "assert": "remove it, or write `spec: {validation: {input: ..., output: ...}}`",
    },
    "loop": {
        "over": "write `in`",
        "items": "write `in`",
        "each": "write `in`",
        "list": "write `in`",
        "for": "write `iterator`",
        "as": "write `iterator`",
        "item": "write `iterator`",
        "var": "write `iterator`",
        "mode": "write `spec: {mode: ...}`",
        "parallel": "write `spec: {mode: parallel}`",
        "concurrency": "write `spec: {mode: parallel, max_in_flight: ...}`",
        "max_in_flight": "write `spec: {mode: parallel, max_in_flight: ...}`",
        "until": "write `spec: {until: ...}`",
        "reduce": "write `spec: {policy: {reduce: ...}}`",
        "cursor": "a loop has a collection and no cursor; to read page by page, let one task repeat itself: pass "
        '`cursor: "{{ step.cursor | default(none) }}"` to it, with the rule `{when: "{{ output.data.next }}", then: '
        '{do: jump, to: <the task>, set: {step.cursor: "{{ output.data.next }}"}}}`',
    },
    "arc": {
        "to": "write `step`",
        "target": "write `step`",
        "next": "write `step`",
        "name": "write `step`",
        "if": "write `when`",
        "condition": "write `when`",
        "input": "write `set: {ctx.<name>: ...}`, and read it in the target's `input`",
        "data": "write `set: {ctx.<name>: ...}`, and read it in the target's `input`",
    },
    "next": {
        "mode": "write `spec: {mode: ...}`",
        "steps": "write `arcs: [{step: ...}]`",
        "when": "write `arcs: [{step: ..., when: ...}]`",
    },
    "task.rule": {
        "if": "write `when`",
        "condition": "write `when`",
        "action": "write `then: {do: ...}`",
    },
    "directive": {
        "action": "write `do`",
        "max_attempts": "write `attempts`",
        "retries": "write `attempts`, which includes the first execution",
        "max_retries": "write `attempts`, which includes the first execution",
        "target": "write `to`",
        "goto": "write `do: jump, to: ...`",
        "wait": "write `delay`",
        "delay_seconds": "write `delay`",
    },
}

# Names that templates do not have, and their equivalents.
NAMES = {
    "null": "write `none`",
    "nil": "write `none`",
    "undefined": "write `x is defined`, or `x | default(...)`",
    "secrets": "declare it under `keychain` and read `keychain.<name>`",
    "secret": "declare it under `keychain` and read `keychain.<name>`",
    "credentials": "declare it under `keychain` and read `keychain.<name>`",
    "vars": "values passed between steps are `ctx.<name>`, request parameters are `workload.<name>`",
    "variables": "values passed between steps are `ctx.<name>`, request parameters are `workload.<name>`",
    "params": "request parameters are `workload.<name>`",
    "parameters": "request parameters are `workload.<name>`",
    "inputs": "write `input.<name>`",
    "outputs": "write `output.data`, or read a finished step by its name",
    "response": "write `output.data` (and `output.http.status`)",
    "this": "write `output.data`",
    "error": "write `output.error`",
    "status": "write `output.status`",
    "item": "write `iter.<name>` with the loop's `iterator`",
    "loop": "write `iter.index`, `iter.first`, `iter.last`, `iter.count`",
    "index": "write `iter.index`",
    "execution": "write `execution_id`",
}

# Kinds of other runtimes, and what to write instead.
KINDS = {
    "rhai": "write the script as a task of `kind: python` (or `kind: shell`)",
    "result_fetch": 'write `kind: resolve` with `ref: "{{ <step>._ref }}"`',
    "sink": "write `kind: transfer` with `data: ...` and `targets: [{kind, table}]`",
    "auth": "declare the credential under `keychain`, and name it in the task's `auth`",
    "save": "write `kind: transfer` with `data: ...` and `targets: [{kind, table}]`",
}

# Functions that templates do not have, and their equivalents.
_TOKEN = (
    "tokens come from the keychain: declare an entry of `kind: oauth2`, `bearer` or `secret_manager` "
    "and write `auth: <entry>`, or read `keychain.<entry>`"
)
FUNCTIONS = {
    "token": _TOKEN,
    "get_token": _TOKEN,
    "access_token": _TOKEN,
    "google_id_token": f"{_TOKEN} (oauth2: `audience`)",
    "google_access_token": _TOKEN,
    "secret": _TOKEN,
    "get_secret": _TOKEN,
    "env": "declare a keychain entry of `kind: env` and read `keychain.<name>`",
    "getenv": "declare a keychain entry of `kind: env` and read `keychain.<name>`",
    "now_utc": "write `now()`",
    "uuid4": "write `uuid()`",
}

# Patterns as text: they are compiled only when a hint is needed.
_SUGGESTIONS = (
    (r"&&", "write `and` for `&&`"),
    (r"\|\|", "write `or` for `||`"),
    (r"===|!==", "write `==` or `!=`"),
    (r"(?<![=!<>(,\w])\s*!\s*[\w(]", "write `not` for `!`"),
    (r"[^=!<>]=(?!=)", "write `==` to compare"),
    (r"\?[^:]*:", "write `a if condition else b`"),
    (r"=>|->", "templates have no lambda functions: use a filter (`map`, `select`, `selectattr`)"),
    (r"\$\{|\$\w", "templates have no `$`: write only the name"),
)
_OPEN_BLOCK = r"(?s)unexpected end of template\. .*? needs to be closed is '(\w+)'"
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""


def clarify_message(message: str) -> str:
    """The message of the template engine in plainer terms."""
    opened = re.match(_OPEN_BLOCK, message)
    if opened:
        return f"`{{% {opened.group(1)} %}}` is never closed by `{{% end{opened.group(1)} %}}`"
    message = message.replace("expected token 'end of print statement', got", "expected `}}`, got")
    return message.replace("'end of print statement'", "`}}`").replace("'end of statement block'", "`%}`")


def suggest_fix(text: str) -> str:
    """A hint for a template with a syntax error."""
    if text.count("{{") > text.count("}}"):
        return "an expression ends with `}}`"
    if text.count("{{") < text.count("}}"):
        return "an expression starts with `{{`"
    if re.search(r"\{\{-?\s*-?\}\}", text):
        return "write an expression between `{{` and `}}`"
    if text.count("{%") != text.count("%}"):
        return "a statement is written between `{%` and `%}`"
    for expression in re.findall(r"\{\{(.*?)\}\}", text, re.S):
        bare = re.sub(_STRING, "''", expression)
        if re.sub(r"''", "", bare).count("'") % 2 or bare.count('"') % 2:
            return "a quote is not closed"
        for pattern, suggestion in _SUGGESTIONS:
            if re.search(pattern, bare) and not (suggestion.startswith("write `==` to") and "(" in bare):
                return suggestion
        if bare.count("(") != bare.count(")") or bare.count("[") != bare.count("]"):
            return "a bracket is not closed"
    return ""
