"""Concurrency keys: a run takes a slot of its pool, of its step's credentials and of the labels of its execution, an
execution one of its playbook.

A *key* is a kind and a name (`pool gpu`, `credential pg_main`, `playbook etl/daily`, `label tenant=a`).
Limits are set on keys, and the row of an execution counts its slots by key. Credentials are those that the text of
the playbook names: by `auth:`, or by `keychain.NAME` in a template, also in the blocks that a step calls. A name
computed at run time is not included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.model.playbook import Block, Playbook, Step, Task
from noetl.core.templates.sandbox import SyntaxProblem
from noetl.core.templates.template import compile_value

DEFAULT_POOL = "default"
PLAYBOOK = "playbook "  # prefix of the keys of playbooks
SUSPECTS = "suspects"  # the key of `State.isolated`, whose limit is one in the whole installation

NAMING = frozenset({"auth", "credential", "credentials"})  # parameters that name a keychain entry or a credential
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # does not match a DSN


def pool_key(name: str | None) -> str:
    """The key of a pool; steps that name no pool belong to the default pool."""
    return f"pool {name or DEFAULT_POOL}"


def credential_key(name: str) -> str:
    """The key of a credential."""
    return f"credential {name}"


def playbook_key(path: str) -> str:
    """The key of a playbook: one slot for each execution that has started and not ended."""
    return PLAYBOOK + path


def label_keys(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the labels of an execution, of which each of its leased runs takes one slot."""
    return tuple(f"label {name}={value}" for name, value in labels.items())


def concurrency_keys_of(playbook: Playbook, step: Step) -> tuple[str, ...]:
    """The keys of which each leased run of this step takes one slot."""
    names: dict[str, None] = {}
    called: set[str] = set()
    waiting: list[Step | Block] = [step]
    while waiting:
        body = waiting.pop()
        names.update(dict.fromkeys(_named([body.input, getattr(body, "spec", None)])))
        for task in body.tasks:
            names.update(dict.fromkeys(_named([task.input, task.spec, task.output.store])))
            block = block_of(task)
            if block in playbook.blocks and block not in called:
                called.add(block)
                waiting.append(playbook.blocks[block])
    stored = {entry.name: entry.fields.get("credential") for entry in playbook.keychain}
    credentials = {credential_key(_static(stored.get(name)) or name) for name in names}
    return (pool_key(step.pool), *sorted(credentials))


def block_of(task: Task) -> str:
    """The name of the block that a task calls, or an empty text."""
    name = task.input.get("block", task.input.get("name")) if task.kind == "workbook" else None
    return name if isinstance(name, str) else ""


def _static(value: Any) -> str | None:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _named(value: Any, key: str = "") -> Iterator[str]:
    """The entries that a value names: by `keychain.NAME` in a template, or as the value of a naming parameter."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            if "keychain" in value:
                yield from (
                    part[1] for name in names_in(value) if len(part := name.split(".")) > 1 and part[0] == "keychain"
                )
        elif key in NAMING and _NAME.fullmatch(value):
            yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _named(each, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _named(each, key)


def names_in(text: str) -> frozenset[str]:
    """The names that a template reads; none if the text is code of a task, which is not a template."""
    try:
        return frozenset(compile_value(text).names)
    except SyntaxProblem:
        return frozenset()
