"""Every playbook here has exactly one fault, and `noetl validate` reports it on its line.

The playbooks are generated: a table of faults times the tasks that can have them, in canonical and in v10 text, in block
and in flow style. Required parameters, types and closed sets are derived from the declarations of the tool kinds, so a
new kind or parameter is covered at once. The same playbooks without the fault have no finding.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any, NamedTuple

import pytest

from noetl.core.model.tool import Field
from noetl.tools.registry import specs

Path = tuple[str | int, ...]
Change = Callable[[dict[str, Any]], None]

SPECS = specs()

# One valid task of each kind.
TASKS: dict[str, dict[str, Any]] = {
    "python": {"kind": "python", "input": {"day": "{{ workload.day }}"}, "code": "total = 1\nresult = day\n"},
    "shell": {"kind": "shell", "command": 'echo "{{ workload.day }}"'},
    "noop": {"kind": "noop", "input": {"day": "{{ workload.day }}"}},
    "http": {"kind": "http", "url": "https://example.org/{{ workload.day }}"},
    "postgres": {"kind": "postgres", "auth": "shop_db", "command": "SELECT 1\n"},
    "duckdb": {"kind": "duckdb", "command": "SELECT 1"},
    "sqlite": {"kind": "sqlite", "file": "shop.db", "command": "SELECT 1"},
    "resolve": {"kind": "resolve", "ref": "{{ workload.day }}"},
    "object": {"kind": "object", "action": "get", "uri": "s3://archive/orders.json"},
    "nats": {"kind": "nats", "action": "publish", "auth": "bus", "subject": "orders"},
    "secrets": {"kind": "secrets", "names": ["a", "b"]},
    "wait": {"kind": "wait", "signal": "approve"},
    "mail": {"kind": "mail", "auth": "smtp", "to": "ops@example.com", "subject": "orders", "text": "done"},
    "playbook": {"kind": "playbook", "path": "other/one"},
    "workbook": {"kind": "workbook", "block": "clean"},
    "transfer": {
        "kind": "transfer",
        "source": {"kind": "postgres", "auth": "shop_db", "query": "SELECT 1 AS id"},
        "targets": [
            {"kind": "duckdb", "file": "shop.duckdb", "table": "orders", "mode": "upsert", "key": "id"},
            {"kind": "object", "path": "s3://archive/orders.parquet", "format": "parquet"},
        ],
        "chunk": {"size": 100},
    },
}
RULES = [{"when": "{{ output.status == 'error' }}", "then": {"do": "fail"}}]


class Fault(NamedTuple):
    """A change of a playbook that makes it faulty, and what must be reported where."""

    name: str
    change: Change
    code: str
    path: Path  # the key (or item) whose line is reported
    lines: int = 0  # lines below it, inside a block scalar


def playbook(task: dict[str, Any]) -> dict[str, Any]:
    """A playbook with a loop, a gate, a router, a block, and the task."""
    return {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "generated"},
        "executor": {"version": "noetl/1", "spec": {"policy": {"limits": {"max_iterations": 10}}}},
        "keychain": [
            {
                "name": "api",
                "kind": "oauth2",
                "token_url": "https://a.example.org",
                "client_id": "x",
                "client_secret": "y",
            },
            {"name": "key", "kind": "env", "var": "KEY"},
        ],
        "workload": {"day": "2026-01-31", "rows": [1, 2]},
        "workbook": {"clean": {"tool": {"kind": "noop"}}},
        "workflow": [
            {
                "step": "start",
                "spec": {"policy": {"failure": {"mode": "best_effort"}}},
                "input": {"auth": "{{ [keychain.api, keychain.key] | length }}"},
                "loop": {
                    "in": "{{ workload.rows }}",
                    "iterator": "row",
                    "spec": {"mode": "parallel", "max_in_flight": 2},
                },
                "tool": [{"name": "first", "kind": "workbook", "block": "clean"}],
                "next": {"spec": {"mode": "exclusive"}, "arcs": [{"step": "work"}]},
            },
            {
                "step": "work",
                "spec": {"policy": {"lifecycle": {"timeout_s": 60}}},
                "tool": [
                    {"name": "before", "kind": "noop", "returns": 1},
                    {"name": "act", **task, "spec": {"policy": {"rules": RULES}}},
                    {"name": "later", "kind": "noop", "returns": 2},
                ],
                "set": {"ctx.result": "{{ output.data }}"},
                "next": {"arcs": [{"step": "end", "when": "{{ output.status == 'ok' }}"}]},
            },
            {"step": "end", "tool": {"kind": "noop", "returns": "{{ ctx.result }}"}},
        ],
    }


TASK: Path = ("workflow", 1, "tool", 1)
RULE: Path = (*TASK, "spec", "policy", "rules", 0)


def put(path: Path, value: Any) -> Change:
    """A change that writes a value (a key that does not exist is added)."""

    def change(document: dict[str, Any]) -> None:
        node: Any = document
        for key in path[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        if isinstance(node, list) and path[-1] == len(node):
            node.append(value)
        else:
            node[path[-1]] = value

    return change


def without(path: Path) -> Change:
    """A change that removes a key."""

    def change(document: dict[str, Any]) -> None:
        node: Any = document
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def at(name: str, path: Path, value: Any, code: str, below: Path = ()) -> Fault:
    return Fault(name, put(path, value), code, (*path, *below))


# --- faults of a task, from the declaration of its kind -------------------------------------------


def required(kind: str) -> Iterator[Fault]:
    """Each required parameter missing, empty and null."""
    task, spec = TASKS[kind], SPECS[kind]
    groups = [(name,) for name, field in spec.fields.items() if field.required] + list(spec.requires)
    groups += [tuple(group.split("|")) for group in spec.required_by.get("action", {}).get(task.get("action", ""), ())]
    for group in groups:
        given = next(name for name in group if name in task)
        if kind != "workbook":  # whose block may be named by the task
            yield Fault(f"{given} missing", without((*TASK, given)), "missing-parameter", (*TASK, "kind"))
        yield at(f"{given} empty", (*TASK, given), [] if isinstance(task[given], list) else "", "missing-parameter")
        yield at(f"{given} null", (*TASK, given), None, "missing-parameter")


_WRONG = {
    "number": "many",
    "integer": "many",
    "boolean": "perhaps",
    "mapping": [1],
    "list": {"a": 1},
    "string": {"a": 1},
}


def wrong_types(fields: dict[str, Field], base: Path, skip: frozenset[str]) -> Iterator[Fault]:
    """Each parameter with a value of another type, and with an unknown member of its closed set."""
    for name, field in fields.items():
        if name in skip:
            continue
        if field.members is not None and field.members.open:
            for inner, member in field.members.fields.items():
                if member.choices:
                    wrong_member = f"{member.choices[0]}x"
                    yield at(f"{name}.{inner} of no choice", (*base, name, inner), wrong_member, "parameter-type")
        if field.type in _WRONG or field.accepts:
            wrong = _WRONG[field.type] if not field.accepts else _not_accepted(field)
            below: Path = ("a",) if isinstance(wrong, dict) else (0,) if isinstance(wrong, list) else ()
            yield at(f"{name} of another type", (*base, name), wrong, "parameter-type", below)
        if field.choices:
            yield at(f"{name} of no choice", (*base, name), f"{field.choices[0]}x", "parameter-type")
        if field.least is not None:
            yield at(f"{name} too small", (*base, name), int(field.least) - 1, "parameter-type")
        if field.most is not None:
            yield at(f"{name} too large", (*base, name), int(field.most) + 1, "parameter-type")
        if field.members is not None and not field.members.open:
            for inner, member in field.members.fields.items():
                if member.least is not None:
                    wrong_member = {inner: int(member.least) - 1}
                    yield at(f"{name}.{inner} too small", (*base, name), wrong_member, "parameter-type", (inner,))


def _not_accepted(field: Field) -> Any:
    """A value of none of the types that the field accepts."""
    others = {"list": [1], "boolean": True, "mapping": {"a": 1}}
    return next(value for type, value in others.items() if type not in field.accepts)


def of_kind(kind: str) -> Iterator[Fault]:
    task, spec = TASKS[kind], SPECS[kind]
    yield from required(kind)
    # A value of another type for the parameter that the task needs would hide the parameter that it replaces.
    skip = frozenset({"name", "args", "payload", "module", "callable", "action", *task}) - {"names", "command"}
    yield from wrong_types(spec.fields, TASK, skip | ({"commands", "script"} if kind == "shell" else frozenset()))
    yield from wrong_types(spec.spec_fields, (*TASK, "spec"), frozenset())
    yield at("a misspelled parameter", (*TASK, "retires"), 3, "unknown-parameter")
    for word, value in MISPLACED.items():
        yield at(f"{word} beside kind", (*TASK, word), value, "misplaced-key")
    for name, value in (("x", "{{ nowhere.x }}"),):
        if spec.open_fields:
            yield at("an undefined name", (*TASK, "input", name), value, "unknown-name")


MISPLACED = {
    "when": False,
    "loop": {"in": [1], "iterator": "x"},
    "next": {"arcs": []},
    "set_ctx": {"a": 1},
    "policy": {"rules": []},
    "rules": [],
    "do": "break",
}

# --- faults of every task, of steps and of the playbook -------------------------------------------

SPEC: Path = (*TASK, "spec")
ANY_TASK = [
    at("a timeout that is text", (*SPEC, "timeout"), "abc", "wrong-type"),
    at("a negative timeout", (*SPEC, "timeout"), -1, "wrong-value"),
    at("an unknown part of a timeout", (*SPEC, "timeout"), {"conect": 1}, "wrong-value", ("conect",)),
    at("an unknown spec key", (*SPEC, "timeuot"), 5, "unknown-spec-key"),
    at("an unknown effect", (*SPEC, "effect"), "once", "wrong-value"),
    at("an unknown policy key", (*SPEC, "policy", "ruels"), [], "unknown-spec-key"),
    at("an unknown on_unmatched", (*SPEC, "policy", "on_unmatched"), "stop", "wrong-value"),
    at("no attempts", (*TASK, "retry"), 0, "wrong-value"),
    at("a guard that is a number", (*SPEC, "policy", "rules", 0, "when"), 5, "wrong-type"),
    at("a result store that is a list", (*SPEC, "result"), {"store": ["disk"]}, "wrong-type", ("store", 0)),
    at("a negative inline limit", (*SPEC, "result"), {"inline_max_bytes": -1}, "wrong-value", ("inline_max_bytes",)),
    at("attempts that are text", (*TASK, "retry"), {"attempts": "some"}, "wrong-type", ("attempts",)),
    at("a negative delay", (*TASK, "retry"), {"attempts": 2, "delay": -1}, "wrong-value", ("delay",)),
    at("an unknown backoff", (*TASK, "retry"), {"attempts": 2, "backoff": "exponental"}, "wrong-value", ("backoff",)),
    at("an unknown error kind", (*TASK, "retry"), {"attempts": 2, "on": ["timeuot"]}, "wrong-value", ("on", 0)),
    at("an unknown directive", (*RULE, "then", "do"), "retyr", "wrong-value"),
    at("an unknown kind of fail", (*RULE, "then", "kind"), "rate_limited", "wrong-value"),
    at("a jump to nowhere", (*RULE, "then"), {"do": "jump", "to": "nowhere"}, "unknown-jump-target", ("to",)),
    at("attempts: -1", (*RULE, "then"), {"do": "retry", "attempts": -1}, "wrong-value", ("attempts",)),
    at("an unknown rule key", (*RULE, "than"), {"do": "fail"}, "unknown-key"),
    at("an unknown filter", (*RULE, "when"), "{{ output.status | uper == 'error' }}", "unknown-filter"),
    at("an open expression", (*RULE, "when"), "{{ output.status == 'error' ", "template-syntax"),
    at("a later task", (*TASK, "set"), {"ctx.x": "{{ later.x }}"}, "not-run-yet", ("ctx.x",)),
    at("a read-only scope", (*TASK, "set"), {"workload.x": 1}, "set-read-only", ("workload.x",)),
    at("an unknown task key", (*TASK, "output"), {"selct": ["a"]}, "unknown-key", ("selct",)),
    at(
        "an unknown status",
        (*SPEC, "policy", "rules", 1),
        {"when": "{{ output.status == 'success' }}", "then": {"do": "continue"}},
        "unknown-status",
        ("when",),
    ),
    at(
        "an unknown error kind in a list",
        (*SPEC, "policy", "rules", 1),
        {"when": "{{ output.error.kind in ['timeout', 'rate_limited'] }}", "then": {"do": "continue"}},
        "unknown-status",
        ("when",),
    ),
    Fault(
        "unreachable tasks",
        put((*SPEC, "policy", "rules", 1), {"else": {"then": {"do": "break"}}}),
        "unreachable-task",
        ("workflow", 1, "tool", 2, "name"),
    ),
]
CODE: Path = (*TASK, "code")
OF_PYTHON = [
    at("a library that is a number", (*TASK, "libs"), {"pd": 5}, "parameter-type", ("pd",)),
    at("a negative output limit", (*TASK, "spec", "max_output_bytes"), -1, "parameter-type"),
    at("code and a script", (*TASK, "script"), {"uri": "score.py"}, "parameter-twice"),
    Fault("no colon", put(CODE, "total = 1\nif total\n    pass\n"), "code-syntax", CODE, 2),
    Fault("an open bracket", put(CODE, "total = (1\n\nresult = 2\n"), "code-syntax", CODE, 1),
    Fault("a bad indent", put(CODE, "for n in [1]:\nresult = n\n"), "code-syntax", CODE, 2),
    Fault("a template", put(CODE, "total = 1\nresult = {% if total %}\n"), "code-syntax", CODE, 2),
    Fault(
        "a parameter without an input",
        put(CODE, "x = 1\n\ndef main(nosuch):\n    return x\n"),
        "main-parameter",
        CODE,
        3,
    ),
    Fault("a misspelt name", put(CODE, "total = 1\n\nresult = totl\n"), "undefined-name", CODE, 3),
    Fault("a scope in code", put(CODE, "total = 1\nresult = workload['x']\n"), "undefined-name", CODE, 2),
    Fault("break outside a loop", put(CODE, "total = 1\n\nbreak\n"), "code-syntax", CODE, 3),
]
COMMAND: Path = (*TASK, "command")
PARAMS: Path = (*TASK, "params")


def bound(name: str, command: str, params: Any, lines: int) -> Fault:
    """A statement with a parameter that has no value, on a line of the text."""

    def change(document: dict[str, Any]) -> None:
        put(COMMAND, command)(document)
        if params is not None:
            put(PARAMS, params)(document)

    return Fault(name, change, "missing-parameter", COMMAND, lines)


OF_POSTGRES = [
    at("a statement that is a number", (*TASK, "command"), ["SELECT 1", 5], "parameter-type", (1,)),
    at("a statement that is null", (*TASK, "command"), ["SELECT 1", None], "parameter-type", (1,)),
    at("a statement without SQL", (*TASK, "command"), [{"params": {}}], "missing-parameter", (0,)),
    at(
        "a misspelled key of a statement",
        COMMAND,
        [{"sql": "SELECT 1", "parms": {}}],
        "unknown-parameter",
        (0, "parms"),
    ),
    at("a command and a script", (*TASK, "script"), {"uri": "orders.sql"}, "parameter-twice"),
    bound("a parameter that params lacks", "SELECT 1\nWHERE 2 = :day\n", {"dya": 1}, 2),
    bound("a percent parameter that params lacks", "SELECT\n\n%(day)s\n", {"days": 1}, 3),
    bound("a parameter without params", "SELECT 1 WHERE\n(:day > 1)\n", None, 2),
    bound("a positional parameter without a value", "SELECT %s,\n%s\n", [1], 2),
    bound("a numbered parameter without a value", "SELECT $1,\n$3, $2\n", [1, 2], 2),
    bound("a named parameter of a list", "SELECT\n:day\n", [1], 2),
    bound("a positional parameter of a mapping", "SELECT\n%s\n", {"day": 1}, 2),
    Fault("a name inside SQL", put(COMMAND, "SELECT 1;\nSELECT {{ nowhere.x }}\n"), "unknown-name", COMMAND, 2),
    Fault("a filter inside SQL", put(COMMAND, "SELECT 1\n\nWHERE {{ 1 | sqroot }}\n"), "unknown-filter", COMMAND, 3),
]


def ruled(name: str, when: str, code: str) -> Fault:
    """A second rule of the task."""
    rule = {"when": when, "then": {"do": "continue"}}
    return at(name, (*SPEC, "policy", "rules", 1), rule, code, ("when",))


OF_MAIL = [
    at("an address without a host", (*TASK, "to"), "ops-example.com", "parameter-type"),
    at("an address without a host in a list", (*TASK, "cc"), ["a@b.c", "ops"], "parameter-type", (1,)),
    at("an attachment without content", (*TASK, "attachments"), [{"name": "x.csv"}], "missing-parameter", (0,)),
]
URL: Path = (*TASK, "url")
OF_HTTP = [
    at("a port that is too large", URL, "https://example.org:99999/", "parameter-type"),
    at("a host with a blank", URL, "https://exam ple.org/", "parameter-type"),
    Fault(
        "two bodies",
        lambda each: (put((*TASK, "json"), {"a": 1})(each), put((*TASK, "body"), "x")(each))[0],
        "parameter-type",
        (*TASK, "body"),
    ),
    at("an HTTP status that does not exist", (*TASK, "spec", "ok_status"), [4], "parameter-type", (0,)),
    at("a URL without a host", URL, "https:///orders", "parameter-type"),
    ruled("a misspelled field of an error", "{{ output.error.knd == 'timeout' }}", "unknown-name"),
    ruled("a misspelled field of the answer", "{{ output.http.satus == 404 }}", "unknown-name"),
    ruled("an HTTP status that is text", "{{ output.http.status == '404' }}", "unknown-status"),
    ruled("a number as status", "{{ output.status == 404 }}", "unknown-status"),
    ruled("an argument too many", "{{ random(1) > output.http.status }}", "template-syntax"),
    at(
        "a lifetime that is no duration", (*TASK, "output"), {"store": {"ttl": "soon"}}, "wrong-value", ("store", "ttl")
    ),
    at("a URL without a scheme", URL, "example.org/orders", "parameter-type"),
    at("a misspelled scheme", URL, "htps://example.org/orders", "parameter-type"),
    at("a file", URL, "file:///etc/hosts", "parameter-type"),
]
TARGET: Path = (*TASK, "targets", 0)
SOURCE: Path = (*TASK, "source")
OF_TRANSFER = [
    Fault("data and a source", put((*TASK, "data"), [{"id": 1}]), "parameter-twice", (*TASK, "source")),
    at(
        "a lag that is no duration",
        (*TASK, "source", "incremental"),
        {"cursor": "id", "lag": "soon"},
        "parameter-type",
        ("lag",),
    ),
    at("more than all rows", (*TASK, "max_bad_rows"), "150%", "parameter-type"),
    at("a query and a table", (*SOURCE, "table"), "orders", "parameter-twice"),
    at("a negative number of bad rows", (*TASK, "max_bad_rows"), -1, "parameter-type"),
    at("an unknown mode", (*TARGET, "mode"), "upser", "parameter-type"),
    Fault("upsert without a key", without((*TARGET, "key")), "missing-parameter", (*TARGET, "kind")),
    at("an unknown on_error", (*TARGET, "on_error"), "contineu", "parameter-type"),
    at("an unknown kind of target", (*TARGET, "kind"), "duckbd", "parameter-type"),
    Fault("a target without a table", without((*TARGET, "table")), "missing-parameter", (*TARGET, "kind")),
    at("an empty table", (*TARGET, "table"), "", "missing-parameter"),
    at("a misspelled key of a target", (*TARGET, "tabel"), "orders", "unknown-parameter"),
    at("a mapping that is a list", (*TARGET, "mapping"), ["id"], "parameter-type", (0,)),
    at("an unknown format", (*TASK, "targets", 1, "format"), "parqet", "parameter-type"),
    Fault(
        "a file that is appended to",
        put((*TASK, "targets", 1, "mode"), "append"),
        "missing-parameter",
        (*TASK, "targets", 1, "kind"),
    ),
    at("a target that is text", (*TASK, "targets", 1), "orders", "parameter-type"),
    at("an unknown kind of source", (*SOURCE, "kind"), "postgress", "parameter-type"),
    Fault("a source without a query", without((*SOURCE, "query")), "missing-parameter", (*SOURCE, "kind")),
    at("a misspelled key of a source", (*SOURCE, "quary"), "SELECT 1", "unknown-parameter"),
    at("chunks of no rows", (*TASK, "chunk", "size"), 0, "parameter-type"),
    at("chunks of text", (*TASK, "chunk", "size"), "all", "parameter-type"),
    at("an unknown key of chunk", (*TASK, "chunk", "szie"), 5, "unknown-parameter"),
    at("a sink", (*TASK, "sink"), {"kind": "duckdb", "table": "x"}, "legacy-sink"),
]
LOOP: Path = ("workflow", 0, "loop")
WORK: Path = ("workflow", 1)
POLICY: Path = (*WORK, "spec", "policy")
FAILURE: Path = ("workflow", 0, "spec", "policy", "failure")
START_ARC: Path = ("workflow", 0, "next", "arcs", 0)
RETURNS: Path = ("workflow", 2, "tool", "returns")
DEFAULTS: Path = ("executor", "spec", "policy", "defaults")
SHELL: dict[str, Any] = {"name": "act", "kind": "shell"}
WAIT: dict[str, Any] = {"name": "act", "kind": "wait"}


def templated(name: str, text: str, code: str = "template-syntax") -> Fault:
    return at(name, RETURNS, text, code)


OF_PLAYBOOK = [
    # settings that are given above the tasks
    at("inherited attempts of zero", (*WORK, "spec", "retry"), 0, "wrong-value"),
    at("inherited retry of another type", DEFAULTS, {"retry": {"attempts": "x"}}, "wrong-type", ("retry", "attempts")),
    at("an inherited effect that does not exist", (*WORK, "spec", "effect"), "once", "wrong-value"),
    at("an inherited limit that is negative", (*WORK, "spec", "max_log_bytes"), -1, "parameter-type"),
    at("inherited on_unmatched of another type", DEFAULTS, {"on_unmatched": [1]}, "wrong-type", ("on_unmatched", 0)),
    at("settings of a kind that are a number", ("executor", "spec", "http"), 5, "wrong-type"),
    at(
        "a limit of the kind that is negative",
        (*WORK, "spec", "http"),
        {"redirects": -1},
        "parameter-type",
        ("redirects",),
    ),
    at(
        "limits of processes that do not exist",
        (*WORK, "spec", "limits"),
        {"memory": 5},
        "unknown-parameter",
        ("memory",),
    ),
    at("a schema above the tasks of a loop", (*LOOP, "spec", "validation"), {"output": {}}, "unknown-spec-key"),
    at("a reducer without policy", (*LOOP, "spec", "reduce"), {"ctx.x": "sum"}, "unknown-spec-key"),
    at(
        "a reducer for a key that is never written",
        (*LOOP, "spec", "policy"),
        {"reduce": {"ctx.x": "sum"}},
        "unused-field",
        ("reduce", "ctx.x"),
    ),
    at("failures of a step without a loop", (*POLICY, "failure"), {"mode": "best_effort"}, "unused-field"),
    at("a loop over text with an expression", (*LOOP, "in"), "all {{ workload.rows }}", "loop-collection"),
    at("labels that are a list", ("metadata", "labels"), ["a"], "wrong-type", (0,)),
    at("a misspelled key of metadata", ("metadata", "pth"), "a/b", "unknown-spec-key"),
    at("var and vars", ("keychain", 1, "vars"), {"a": "A"}, "wrong-value"),
    at("variables that are a list", ("keychain", 0, "headers"), ["a"], "wrong-type", (0,)),
    at("a variable with a blank", ("keychain", 1, "var"), "A B", "wrong-value"),
    at("a method that does not exist", ("keychain", 0, "method"), "PSOT", "wrong-value"),
    # waits and commands
    at("a wait that ends at once", TASK, {**WAIT, "timeout": 0}, "wrong-value", ("timeout",)),
    at("a wait for nothing", TASK, {**WAIT, "for": "0s"}, "wrong-value", ("for",)),
    at("a signal without a name", TASK, {**WAIT, "signal": ""}, "wrong-value", ("signal",)),
    at("a command that is a number", TASK, {**SHELL, "cmds": ["echo", 5]}, "parameter-type", ("cmds", 1)),
    at("a command that is null", TASK, {**SHELL, "cmds": ["echo", None]}, "parameter-type", ("cmds", 1)),
    at(
        "a secret without a name",
        TASK,
        {"name": "act", "kind": "secrets", "names": [""]},
        "parameter-type",
        ("names", 0),
    ),
    at(
        "nothing to put",
        TASK,
        {"name": "act", "kind": "object", "action": "put", "uri": "a.json"},
        "missing-parameter",
        ("kind",),
    ),
    # templates
    templated("a range without an end", "{{ range() | list + [ctx.result] }}"),
    templated("a filter by name without its argument", "{{ ctx.result | map('replace', 'x') | list }}"),
    templated("a filter by name with an argument too many", "{{ ctx.result | map('upper', 1) | list }}"),
    templated("an unknown filter by name", "{{ ctx.result | map('uper') | list }}", "unknown-filter"),
    templated("no filter to map", "{{ ctx.result | map | list }}"),
    templated("a test by name without its argument", "{{ ctx.result | selectattr('n', 'divisibleby') | list }}"),
    templated("an unknown test by name", "{{ ctx.result | reject('ood') | list }}", "unknown-test"),
    templated("an unknown method", "{{ ctx.result.uper() }}"),
    templated("an invalid regular expression", "{{ ctx.result | regex_replace('(', 'x') }}"),
    templated("a constant that fails", "{{ 'a' + 1 }}", "failing-template"),
    templated("an unknown field of the job", "{{ job.uid }}", "unknown-name"),
    templated("the step's own result", "{{ end.data }}", "not-run-yet"),
    at("an unknown field of the event", (*START_ARC, "when"), "{{ event.nam == 'step.done' }}", "unknown-name"),
    at("a helper without a step", (*START_ARC, "when"), "{{ done() }}", "template-syntax"),
    at("a guard of an arc that is a number", (*START_ARC, "when"), 5, "wrong-type"),
    at("an empty name", ("metadata", "name"), "", "wrong-value"),
    at("a null name", ("metadata", "name"), None, "wrong-type"),
    at("an empty path", ("metadata", "path"), "", "wrong-value"),
    at("more than all iterations", (*FAILURE, "max_failed"), "150%", "wrong-type"),
    at(
        "failure of a loop",
        (*LOOP, "spec", "policy"),
        {"failure": {"mode": "best_effort"}},
        "unknown-spec-key",
        ("failure",),
    ),
    at("a misspelled count of a loop", (*START_ARC, "when"), "{{ output.loop.faild == 0 }}", "unknown-name"),
    at("a token URL that is none", ("keychain", 0, "token_url"), "auth.example.org", "wrong-value"),
    at("a variable without a name", ("keychain", 1, "var"), "", "wrong-value"),
    at("an unknown root key", ("worklow",), [], "unknown-key"),
    at("another runtime", ("executor", "version"), "noetl/9", "executor-version"),
    at("a newer version", ("executor", "version"), ">=99", "executor-version"),
    at("no version", ("executor", "version"), "the newest", "executor-version"),
    at("an unknown profile", ("executor", "profile"), "distribute", "wrong-value"),
    at("an unknown executor spec key", ("executor", "spec", "timeuot"), 5, "unknown-spec-key"),
    at(
        "a misspelled key of placement",
        ("executor", "spec", "placement"),
        {"label": {"gpu": "x"}},
        "unknown-spec-key",
        ("label",),
    ),
    at(
        "a misspelled key of results",
        ("executor", "spec", "policy", "results"),
        {"reference_frist": True},
        "unknown-spec-key",
        ("reference_frist",),
    ),
    at(
        "a misspelled key of result",
        ("executor", "spec", "result"),
        {"stroe": {"kind": "disk"}},
        "unknown-spec-key",
        ("stroe",),
    ),
    at("a name that is a number", ("metadata", "name"), 5, "wrong-type"),
    at("a name that is a boolean", ("metadata", "name"), True, "wrong-type"),
    at("a path that is a number", ("metadata", "path"), 5, "wrong-type"),
    at(
        "an inner loop with the outer name",
        (*LOOP, "loop"),
        {"in": "{{ workload.rows }}", "iterator": "row"},
        "shadowed-name",
        ("iterator",),
    ),
    at("an unknown executor policy key", ("executor", "spec", "policy", "limit"), {}, "unknown-spec-key"),
    at("do of the executor", ("executor", "spec", "policy", "do"), "retry", "control-outside-task"),
    at("a limit of zero", ("executor", "spec", "policy", "limits", "max_iterations"), 0, "wrong-value"),
    at("no entry step", ("executor", "spec", "entry_step"), "strat", "unknown-step"),
    at("no iterations in flight", (*LOOP, "spec", "max_in_flight"), 0, "wrong-value"),
    at("iterations in flight that are text", (*LOOP, "spec", "max_in_flight"), "few", "wrong-type"),
    at("an unknown loop mode", (*LOOP, "spec", "mode"), "paralel", "wrong-value"),
    at("an unknown loop spec key", (*LOOP, "spec", "max_inflight"), 2, "unknown-spec-key"),
    at("an unknown loop policy key", (*LOOP, "spec", "policy"), {"reduc": {}}, "unknown-spec-key", ("reduc",)),
    at("do of a loop", (*LOOP, "spec", "policy"), {"do": "retry"}, "control-outside-task", ("do",)),
    at("a cursor", (*LOOP, "cursor"), "x", "unknown-key"),
    at("until of a parallel loop", (*LOOP, "spec", "until"), "{{ true }}", "until-in-parallel"),
    at("a loop over a number", (*LOOP, "in"), 5, "loop-collection"),
    at("an unknown router mode", ("workflow", 0, "next", "spec", "mode"), "inclusiv", "wrong-value"),
    at("an unknown router spec key", ("workflow", 0, "next", "spec", "mod"), 1, "unknown-spec-key"),
    at("an arc to nowhere", ("workflow", 0, "next", "arcs", 0, "step"), "wrok", "unknown-step"),
    at("an unknown step key", (*WORK, "tol"), 1, "unknown-key"),
    at("an unknown step spec key", (*WORK, "spec", "polcy"), 1, "unknown-spec-key"),
    at("an unknown step policy key", (*POLICY, "lifecycl"), {}, "unknown-spec-key"),
    at("do of a step", (*POLICY, "do"), "retry", "control-outside-task"),
    at("rules of a step", (*POLICY, "rules"), [], "control-outside-task"),
    at("a lifetime that is text", (*POLICY, "lifecycle", "timeout_s"), "long", "wrong-type"),
    at("a lifetime of zero", (*POLICY, "lifecycle", "timeout_s"), 0, "wrong-value"),
    at("a negative deadline", (*POLICY, "lifecycle", "deadline_s"), -1, "wrong-value"),
    at("an unknown on_deny", (*POLICY, "admit"), {"on_deny": "drop"}, "wrong-value", ("on_deny",)),
    at("an unknown join", (*POLICY, "admit"), {"join": "any"}, "wrong-value", ("join",)),
    at(
        "a gate for a signal",
        (*POLICY, "admit"),
        {"rules": [{"when": "{{ ctx.approved | default(false) }}", "then": {"allow": True}}]},
        "closed-gate",
        ("rules", 0, "when"),
    ),
    at("an unknown failure mode", (*POLICY, "failure"), {"mode": "besteffort"}, "wrong-value", ("mode",)),
    at(
        "an unknown status in an arc",
        (*WORK, "next", "arcs", 0, "when"),
        "{{ output.status == 'okay' }}",
        "unknown-status",
    ),
    at(
        "a status that is a mapping",
        (*WORK, "next", "arcs", 0, "when"),
        "{{ steps.work.status == 'failed' }}",
        "unknown-status",
    ),
    at("a filter without its argument", RETURNS, "{{ ctx.result | replace('a') }}", "template-syntax"),
    at("a filter with an argument too many", RETURNS, "{{ ctx.result | upper(1) }}", "template-syntax"),
    at("a filter with an unknown argument", RETURNS, "{{ ctx.result | round(presision=1) }}", "template-syntax"),
    at("a test without its argument", RETURNS, "{{ ctx.result is divisibleby }}", "template-syntax"),
    at("a test with an argument too many", RETURNS, "{{ ctx.result is defined(1) }}", "template-syntax"),
    at("half of a character", RETURNS, "{{ ctx.result ~ '\\ud800' }}", "template-syntax"),
    at("a number that is too large", RETURNS, "{{ ctx.result * 1e999 }}", "template-syntax"),
    at("an unset value", ("workflow", 2, "tool", "returns"), "{{ ctx.reslt }}", "never-set"),
    at("a block that does not exist", ("workflow", 0, "tool", 0, "block"), "claen", "unknown-block"),
    at("an unknown tool kind", ("workflow", 2, "tool", "kind"), "nop", "unknown-kind"),
    at(
        "a playbook that calls itself",
        TASK,
        {"name": "act", "kind": "playbook", "path": "generated"},
        "endless-cycle",
        ("path",),
    ),
]


def cases() -> Iterator[tuple[str, dict[str, Any], Fault | None]]:
    """Every playbook: its name, its data, its fault (None: it has none)."""
    for kind, task in TASKS.items():
        # The timeout of a wait is a parameter, not a spec key.
        general = [fault for fault in ANY_TASK if kind != "wait" or "timeout" not in fault.path]
        faults = [*of_kind(kind), *general]
        faults += {
            "python": OF_PYTHON,
            "postgres": OF_POSTGRES,
            "http": OF_HTTP,
            "mail": OF_MAIL,
            "transfer": OF_TRANSFER,
        }.get(kind, [])
        for fault in (None, *faults):
            yield f"{kind}: {fault.name if fault else 'no fault'}", playbook(task), fault
    for fault in OF_PLAYBOOK:
        yield f"playbook: {fault.name}", playbook(TASKS["http"]), fault


# --- writing YAML ---------------------------------------------------------------------------------


class Writer:
    """Writes data as YAML and records the line of every key and item; steps may be in flow style."""

    def __init__(self, flow: bool) -> None:
        self.flow = flow
        self.lines: list[str] = []
        self.line_of: dict[Path, int] = {}

    def write(self, value: Any, path: Path = (), indent: str = "") -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self._entry(f"{indent}{key}:", inner, (*path, key), indent + "  ")
        else:
            for number, item in enumerate(value):
                self._item(item, (*path, number), indent)

    def _item(self, item: Any, path: Path, indent: str) -> None:
        if not isinstance(item, dict) or self._in_flow(path):
            self._entry(f"{indent}-", item, path, indent + "  ")
            return
        first = len(self.lines)
        self.line_of[path] = first + 1
        self.write(item, path, indent + "  ")
        self.lines[first] = f"{indent}- {self.lines[first].lstrip()}"

    def _entry(self, head: str, value: Any, path: Path, indent: str) -> None:
        self.line_of[path] = len(self.lines) + 1
        if isinstance(value, str) and "\n" in value and not self.flow:
            self.lines.append(f"{head} |")
            self.lines += [f"{indent}{line}" if line else "" for line in value.splitlines()]
        elif isinstance(value, dict | list) and value and not self._in_flow(path):
            self.lines.append(head)
            self.write(value, path, indent)
        else:
            self.lines.append(f"{head} {json.dumps(value)}")
            self._record(value, path)

    def _in_flow(self, path: Path) -> bool:
        """In flow style a task is one line."""
        return self.flow and (path[-2:-1] == ("tool",) or (path[-1:] == ("tool",)))

    def _record(self, value: Any, path: Path) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in entries:
            self.line_of[(*path, key)] = self.line_of[path]
            self._record(inner, (*path, key))


def as_v10(document: dict[str, Any]) -> dict[str, Any]:
    """The same playbook in v10 text: `args`, `outcome`."""
    text = json.dumps(document).replace("output.status", "outcome.status").replace("output.error", "outcome.error")
    older: dict[str, Any] = json.loads(text)
    for task in (task for step in older["workflow"] for task in step["tool"] if isinstance(step["tool"], list)):
        if isinstance(task.get("input"), dict):
            task["args"] = task.pop("input")
    return older


class Written(NamedTuple):
    """A written playbook and the finding that it must have."""

    text: str
    code: str | None
    line: int


def written(document: dict[str, Any], fault: Fault | None, surface: str, style: str) -> Written:
    faulty = copy.deepcopy(document)
    if fault is not None:
        fault.change(faulty)
    path = fault.path if fault is not None else ()
    if surface == "v10":
        faulty = as_v10(faulty)
        path = tuple("args" if key == "input" else key for key in path)
    writer = Writer(style == "flow")
    writer.write(faulty)
    line = writer.line_of[path] if fault is not None else 0
    if fault is not None and style == "block":
        line += fault.lines
    text = "\n".join(writer.lines) + "\n"
    return Written(text, fault.code if fault is not None else None, line)


VARIANTS = [("canonical", "block"), ("canonical", "flow"), ("v10", "block")]
NAMES = [f"{surface} {style} {name}" for surface, style in VARIANTS for name, _, _ in cases()]


@pytest.fixture(scope="module")
def playbooks() -> dict[str, Written]:
    """All playbooks; they are not written while tests are collected, which every process does."""
    return {
        f"{surface} {style} {name}": written(document, fault, surface, style)
        for surface, style in VARIANTS
        for name, document, fault in cases()
    }


@pytest.fixture(scope="module")
def findings(
    playbooks: dict[str, Written], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """The findings of all playbooks: one run of `noetl validate` each for as many files as fit a command line."""
    folder = tmp_path_factory.mktemp("faults")
    found: dict[str, list[dict[str, Any]]] = {}
    files: dict[str, str] = {}
    for number, (name, each) in enumerate(playbooks.items()):
        file = folder / f"{number}.yaml"
        file.write_text(each.text, encoding="utf-8")
        files[str(file)] = name
        found[name] = []
    names = list(files)
    for start in range(0, len(names), 400):
        command = [sys.executable, "-m", "noetl", "validate", "--format", "json", *names[start : start + 400]]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for one in json.loads(output):
            if not one["code"].startswith("v10-"):
                found[files[one["file"]]].append(one)
    return found


def test_there_are_more_than_a_hundred_faults() -> None:
    assert len({fault.name for _, _, fault in cases() if fault is not None}) > 100
    assert len(NAMES) > 1000 and len({*NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_validate_reports_the_fault_on_its_line(
    name: str, playbooks: dict[str, Written], findings: dict[str, list[dict[str, Any]]]
) -> None:
    each = playbooks[name]
    found = [(one["code"], one["line"]) for one in findings[name]]
    assert found == ([(each.code, each.line)] if each.code else []), f"{findings[name]}\n{each.text}"


def test_the_tasks_cover_every_kind() -> None:
    folder = File(sys.modules["noetl.tools"].__path__[0])
    packaged = {each.parent.name for each in folder.glob("*/spec.py")}
    assert packaged == set(TASKS)
