"""`set` where the server evaluates it: arcs, and the end of steps that no worker ends.

Each assignment sees the values written by the ones before it. The reference rules are those of a
pipeline: a target that ends in `_ref` receives a reference object (or null), any other target never
receives an unresolved one. Values of `ctx` are stored in the log and in memory, so their size is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from noetl.core.engine.evaluation.compiled_net import CompiledAssignment
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import ServerNames
from noetl.core.model.merge import add_write, deep_merge, put_path
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.playbook import target_name
from noetl.core.model.reference import is_stored
from noetl.core.templates.reference_rules import broken_rule
from noetl.core.templates.views import StoredView

MAX_CTX_VALUE = 1024 * 1024

_json = msgspec.json.Encoder().encode


def evaluate_sets(
    env: EvaluationContext,
    assignments: Iterable[CompiledAssignment],
    names: ServerNames,
    path: str,
    unset: dict[str, ErrorInfo] | None = None,
) -> dict[str, Any]:
    """The ctx writes of a `set` (dotted path -> value), visible in `names` to later evaluations.

    With `unset` (after a failure) a target whose value cannot be evaluated is left unset and listed there."""
    writes: dict[str, Any] = {}
    for assignment in assignments:
        if assignment.scope != "ctx":
            continue
        target = assignment.target
        try:
            value = evaluate_set(env, assignment, names, assignment.path or path)
            head = names.ctx.get(target[0])
            if len(target) > 1 and isinstance(head, StoredView):
                names.ctx = {**names.ctx, target[0]: env.fetched(head)}
        except Failure as failure:
            if unset is None:
                raise
            unset[target_name(".".join(target))] = failure.error
            continue
        names.ctx = put_path(names.ctx, target, value)
        add_write(writes, target, value)
    return writes


def evaluate_set(env: EvaluationContext, assignment: CompiledAssignment, names: ServerNames, path: str) -> Any:
    """Evaluate one assignment and check its value."""
    value = env.evaluate(assignment.value, names, path)
    broken = broken_rule(assignment.target[-1], value)
    if broken is not None:
        raise env.fail("schema", broken, path)
    if assignment.scope == "ctx" and not assignment.value.static:
        size = len(_json(value))
        if size > MAX_CTX_VALUE:
            raise env.fail(
                "limit",
                f"the value of {target_name('.'.join(assignment.target))} has {size:,} bytes, the limit is "
                f"{MAX_CTX_VALUE:,}; assign a large payload by reference (`..._ref: {{{{ output.ref }}}}`)",
                path,
            )
    return value


def ctx_patch(env: EvaluationContext, ctx: Mapping[str, Any], writes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert writes by dotted path to a patch of whole top-level values, the large ones stored.

    A write below a stored value is applied to that value, so it may request data: call it before anything is recorded.
    """
    patch: dict[str, Any] = {}
    for dotted, value in writes.items():
        if "." not in dotted:
            patch[dotted] = value
            continue
        target = tuple(dotted.split("."))
        head = target[0]
        whole = patch[head] if head in patch else ctx.get(head)
        patch[head] = put_path({head: env.restored(whole)}, target, env.restored(value))[head]
    return {key: env.for_log(value) for key, value in patch.items()}


def merge_args(env: EvaluationContext, outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Merge arguments of tokens, the large ones stored; a stored mapping is merged like any other one."""
    merged = deep_merge(outer, inner)
    for key in inner:
        if key in outer and (is_stored(outer[key]) or is_stored(inner[key])):
            merged[key] = deep_merge({key: env.restored(outer[key])}, {key: env.restored(inner[key])})[key]
        merged[key] = env.for_log(merged[key])
    return merged
