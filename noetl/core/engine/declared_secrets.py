"""The keychain names that a step declares: the secrets that a worker may fetch while it runs the step.

A name is declared when it stands as text in a parameter of the step (`auth: pg_main`), or as `keychain.NAME` in a
template, also in the blocks that the step calls. A step that computes a name at run time (`auth: "{{ workload.db }}"`,
`kind: secrets`) cannot be restricted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl.core.engine.concurrency_keys import NAMING, block_of, names_in
from noetl.core.model.playbook import Block, Playbook, Step
from noetl.core.templates.template import is_template

ANY = "*"  # a name is computed at run time


def declared_secrets(playbook: Playbook, step: Step) -> frozenset[str]:
    """The names that a run of this step may fetch; it contains `ANY` if the step computes names."""
    found: set[str] = set()
    called: set[str] = set()
    waiting: list[Step | Block] = [step]
    while waiting:
        body = waiting.pop()
        found.update(_texts([body.input, getattr(body, "spec", None)]))
        for task in body.tasks:
            naming = task.kind == "secrets"
            found.update(_texts([task.input, task.spec, task.output.store], naming=naming))
            block = block_of(task)
            if is_template(block):
                found.add(ANY)
            elif block in playbook.blocks and block not in called:
                called.add(block)
                waiting.append(playbook.blocks[block])
    return frozenset(found)


def _texts(value: Any, *, naming: bool = False) -> Iterator[str]:
    """All texts of a value; `ANY` for a template where a name is expected."""
    if isinstance(value, str):
        if is_template(value):
            names = names_in(value)
            yield from (parts[1] for name in names if (parts := name.split("."))[0] == "keychain" and len(parts) > 1)
            if naming or "keychain" in names:
                yield ANY
        else:
            yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, naming=naming or key in NAMING)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, naming=naming)
