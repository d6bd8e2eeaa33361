"""Result stores that a playbook selects: `output: {store: {kind}}` and `spec: {result: {store: {kind}}}`.

A kind that does not exist is reported by the validator. Kinds that exist and that an installation does not have are
reported by `unavailable_stores`, where the installation is known: the default store takes these results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import Diagnostic, did_you_mean
from noetl.core.language.source.node_reader import is_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar
from noetl.core.model.durations import seconds
from noetl.core.model.playbook import Block, OutputPolicy, Playbook, Step
from noetl.core.model.reference import INLINE_STORES, STORE_KINDS

_HINT = "the default store takes the results"


def check(context: AnalysisContext) -> None:
    """Report stores of a kind that does not exist, and lifetimes that are no durations."""
    for store in _stores(context):
        ttl = _entry(store, "ttl")
        if isinstance(ttl, Scalar) and ttl.value is not None and not is_template(ttl) and not _is_duration(ttl.text):
            context.reader.add("wrong-value", ttl, "`ttl` is not a duration", "write 30s, 15m, 24h or 7d")
        kind = _entry(store, "kind") or _entry(store, "type")
        if not isinstance(kind, Scalar) or not isinstance(kind.value, str) or is_template(kind):
            continue
        if kind.value.lower() not in STORE_KINDS.keys() | INLINE_STORES:
            message = f'there is no result store of kind "{kind.value}"'
            context.reader.add("unknown-store", kind, message, did_you_mean(kind.value, STORE_KINDS) or _HINT)


def _is_duration(text: str) -> bool:
    try:
        seconds(text)
    except ValueError:
        return False
    return True


def _stores(context: AnalysisContext) -> Iterator[Node | None]:
    document = context.document
    specs = [document.executor.spec] if document.executor is not None else []
    for body in document.bodies():
        specs += [body.spec, *(level.spec for level in body.loops())]
        for owner in (body, *body.tasks()):
            output = getattr(owner, "output", None)
            yield None if output is None else output.store
        specs += [task.spec for task in body.tasks()]
    for spec in specs:
        yield _entry(_entry(spec, "result"), "store")


def _entry(node: Node | None, key: str) -> Node | None:
    return node.entries[key][1] if isinstance(node, Mapping) and key in node.entries else None


def unavailable_stores(playbook: Playbook, types: Collection[str]) -> tuple[Diagnostic, ...]:
    """Warnings for stores that an installation with stores of these types does not have."""
    found = []
    policies: dict[str, OutputPolicy] = {step.path: step.output for step in playbook.steps}
    bodies: list[Step | Block] = [*playbook.steps, *playbook.blocks.values()]
    for body in bodies:
        policies |= {task.path: task.output for task in body.tasks}
    for path, policy in policies.items():
        kind = str(policy.store.get("kind") or policy.store.get("type") or "").lower()
        if kind in STORE_KINDS and STORE_KINDS[kind] not in types:
            at = playbook.location(path)
            message = f'this installation has no result store of kind "{kind}" (it has {", ".join(types)})'
            place = (1, 1) if at is None else (at.line, at.column)
            found.append(Diagnostic(playbook.file, *place, *place, "unknown-store", "warning", message, _HINT))
    return tuple(found)
