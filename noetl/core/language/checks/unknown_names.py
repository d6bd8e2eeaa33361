"""Names that templates read: whether they are visible, and whether they are defined.

`visibility` defines which names are visible where. A scope that is not visible is an error; a name that is not
defined is a warning, unless the template handles its absence (`default`, `is defined`).
"""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext, is_block
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.flow.visibility import AVAILABILITY_HINTS, LOCALS, SCOPE_NAMES
from noetl.core.language.source.nodes import Mapping, Node
from noetl.core.language.syntax.foreign_idioms import NAMES
from noetl.core.language.syntax.grammar import ITERATION_NAMES


def check(context: AnalysisContext) -> None:
    """Check every name that a template reads."""
    bare: _BareNames = {}
    for site in context.sites.templates:
        for read in site.template.reads:
            _check_read(context, site, read, bare)
    for (name, qualified), ((site, read), count) in bare.items():
        rest = "".join(f".{key}" for key in read.path[1:] if key.isidentifier())
        times = f" ({count} times)" if count > 1 else ""
        hint = f"write `{qualified}{rest if count == 1 else ''}`"
        context.report_read("bare-name", site, read, f'"{name}" is used without its scope{times}', hint)


# (a name without its scope, the qualified name) -> where it is first read, and how often
_BareNames = dict[tuple[str, str], tuple[tuple[TemplateSite, Read], int]]


def _check_read(context: AnalysisContext, site: TemplateSite, read: Read, bare: _BareNames) -> None:
    name = read.path[0]
    if name == "keychain":
        _check_keychain(context, site, read)
    elif name == "state" and (_names_result(context, site, name) or qualified_name(context, site, name)):
        _check_bare(context, site, read, bare)  # the playbook has given this name to something else
    elif name in site.visibility.scopes or (name in LOCALS and site.visibility.locals):
        if name in _FIELDS:  # the fields of other scopes are known only at run time
            _FIELDS[name](context, site, read)
    elif name in SCOPE_NAMES:
        message = f"`{name}` does not exist in {site.visibility.title}"
        context.report_read("name-not-visible", site, read, message, AVAILABILITY_HINTS.get(name, ""))
    else:
        _check_bare(context, site, read, bare)


# --- secrets ------------------------------------------------------------------------------------


def _check_keychain(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if site.assigns is not None:
        message = f"a secret cannot be assigned to `{site.assigns.target}`: events would contain it"
        context.report_read(
            "keychain-in-set", site, read, message, "read `keychain` in the field of the task that needs it"
        )
    elif "keychain" not in site.visibility.scopes:
        message = f"secrets are not available on the server, and {site.visibility.title} is evaluated there"
        if not site.visibility.server:
            message = f"{site.visibility.title} cannot read secrets: the log has its values"
        context.report_read(
            "keychain-on-server", site, read, message, "read `keychain` in the field of the task that needs it"
        )
    elif len(read.path) > 1 and read.path[1] not in context.keychain:
        message = f'unknown keychain entry "{read.path[1]}"'
        hint = did_you_mean(read.path[1], context.keychain, "declare it under `keychain`")
        context.report_read("unknown-keychain", site, read, message, hint)


# --- fields of scopes ---------------------------------------------------------------------------


def _check_workload(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.guarded or len(read.path) == 1:
        return
    if context.document.running is not None:
        return
    node: Node | None = context.document.workload
    reached = "workload"
    for number, key in enumerate(read.path[1:], start=1):
        if number > 1 and (not isinstance(node, Mapping) or not node.entries):
            return
        keys = node.entries if isinstance(node, Mapping) else {}
        reached += f".{key}"
        if key not in keys:
            message = f"`{reached}` has no default: the request must provide it"
            hint = did_you_mean(key, keys, " ").strip()
            hint = hint or f"add `{key}:` under `workload`, or write `{reached} | default(...)`"
            context.report_read("workload-without-default", site, read, message, hint)
            return
        node = keys[key][1]


def _check_ctx(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if len(read.path) > 1 and not context.has_dynamic_steps:
        _check_key(context, site, read, read.path[1], context.ctx_keys, "ctx")


def _check_state(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if len(read.path) > 1 and not context.has_dynamic_steps:
        _check_key(context, site, read, read.path[1], context.state_keys, "state")


def _check_step(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if len(read.path) > 1 and site.body is not None:
        _check_key(context, site, read, read.path[1], context.body(site.body).step_keys, "step")


def _check_input(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if site.body is None or is_block(site.body) or len(read.path) == 1 or context.document.running is not None:
        return
    if site.visibility.tasks and site.task is None and site.visibility.locals:
        return  # a default of the step's spec: it is rendered with each task
    keys = set(context.args_keys)
    if site.visibility.title != "a step's `input`":
        keys |= context.body(site.body).input_keys
    if site.task is not None:
        keys |= set(site.task.parameters)
    _check_key(context, site, read, read.path[1], frozenset(keys), "input")


def _check_iter(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if site.body is None or is_block(site.body):
        return
    known = context.body(site.body)
    depth = len(known.iterators) if site.visibility.tasks and not site.depth else site.depth
    if not known.iterators:
        message = f'the step "{site.body.name}" has no loop, so there is no iteration'
        context.report_read("iter-outside-loop", site, read, message, "use `step.*` for values of this step")
        return
    level = depth - 1
    path = list(read.path[1:])
    while path and path[0] == "parent" and level > 0:
        path.pop(0)
        level -= 1
    if not path:
        return
    names = {known.iterators[level], *ITERATION_NAMES}
    if level == 0:
        names.discard("parent")
    if level == depth - 1:
        names |= known.iter_keys
    _check_key(context, site, read, path[0], frozenset(names), "iter" + ".parent" * (depth - 1 - level))


def _check_key(
    context: AnalysisContext, site: TemplateSite, read: Read, key: str, known: frozenset[str], scope: str
) -> None:
    if key in known or read.guarded:
        return
    message = f"`{scope}.{key}` is never set"
    if scope == "ctx" and key in context.workload_keys:
        hint = f"`{key}` is a workload value: write `workload.{key}`"
    else:
        hint = did_you_mean(key, known, " ").strip()
        hint = hint or f"set it before it is read, or write `{scope}.{key} | default(...)`"
    context.report_read("never-set", site, read, message, hint)


def _check_steps(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if len(read.path) == 1:
        return
    name = read.path[1]
    tasks = context.body(site.body).tasks if site.body is not None and site.visibility.tasks else frozenset()
    if name not in context.steps and name not in tasks:
        message = f'unknown step "{name}" in `steps`'
        context.report_read("unknown-step", site, read, message, did_you_mean(name, context.steps | tasks))


def _check_output(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    """Report a field that no error, loop or kind has, and one of another kind (`output.http` without http)."""
    if read.guarded or len(read.path) < 3:
        return
    helper, key = read.path[1:3]
    tool = site.task.tool if site.task is not None and site.visibility.title != "a task's fields" else None
    known = _PARTS.get(helper) or (tuple(tool.helpers[helper]) if tool is not None and helper in tool.helpers else ())
    if known:
        hint = did_you_mean(key, known) if key not in known and key != "body" else ""
        if hint:
            context.report_read("unknown-name", site, read, f"`{read.path[0]}.{helper}` has no `{key}`", hint)
        return
    owners = sorted({spec.kind for spec in context.reader.specs.values() if helper in spec.helpers})
    if tool is not None and owners:
        message = f"`output.{helper}` exists only for {', '.join(owners)}; this task's kind is {tool.kind}"
        hint = f"read it in the rules of that task, or store it: `set: {{step.{helper}: ...}}`"
        context.report_read("foreign-helper", site, read, message, hint)


def _check_closed(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    """A field of a scope that always has the same ones."""
    known = _CLOSED[read.path[0]]
    if len(read.path) > 1 and not read.guarded and read.path[1] not in known:
        message = f"`{read.path[0]}` has no `{read.path[1]}`"
        hint = did_you_mean(read.path[1], known, "fields: " + ", ".join(known))
        context.report_read("unknown-name", site, read, message, hint)


# Scopes with fixed fields; `event` is the envelope, with the parts of the step's output beside it.
_CLOSED = {
    "job": ("uuid", "execution_id"),
    "event": (
        "name", "step", "status", "payload", "output", "result", "error", "event_id", "execution_id", "seq",
        "timestamp", "source", "version", "entity_type", "entity_id", "step_run_id", "iteration_id", "iteration_index",
        "task_run_id", "task_label", "attempt", "parent_event_id",
    ),
}  # fmt: skip
# Parts of every output with fixed fields.
_PARTS = {
    "error": ("kind", "message", "retryable", "details", "status", "secondary"),
    "loop": ("total", "succeeded", "failed", "skipped", "failures", "failures_omitted"),
}
_FIELDS = {
    "workload": _check_workload,
    "ctx": _check_ctx,
    "state": _check_state,
    "step": _check_step,
    "input": _check_input,
    "args": _check_input,
    "iter": _check_iter,
    "steps": _check_steps,
    "output": _check_output,
    "outcome": _check_output,
    "job": _check_closed,
    "event": _check_closed,
}


# --- names without a scope ----------------------------------------------------------------------


def _check_bare(context: AnalysisContext, site: TemplateSite, read: Read, bare: _BareNames) -> None:
    name = read.path[0]
    visibility = site.visibility
    known = context.body(site.body) if site.body is not None else None
    qualified = qualified_name(context, site, name)
    if qualified is not None:
        _count_bare(bare, site, read, qualified)
    elif _names_result(context, site, name):
        return
    elif name == "env":
        if read.guarded and len(read.path) > 1:
            return  # `env` is an empty scope, so its default is used
        variable = read.path[1] if len(read.path) > 1 else "NAME"
        entry = f"{{name: {variable.lower()}, kind: env, var: {variable}}}"
        hint = f"declare it: `keychain: [{entry}]`, and read `keychain.{variable.lower()}` in the task that needs it"
        context.report_read("env-read", site, read, "templates cannot read the process environment", hint)
    elif read.guarded or name in _CHECKED_ELSEWHERE or (is_block(site.body) and name in context.iterators):
        return
    elif site.body is None and visibility.tasks:
        return  # a default of the executor's spec: rendered with tasks that are not known here
    else:
        candidates = set(context.steps) | context.ctx_keys | context.workload_keys | visibility.scopes
        candidates |= known.tasks if known is not None and visibility.tasks else set()
        declared = known.input_keys if known is not None else frozenset()
        if site.task is not None:
            fields = site.task.tool.fields if site.task.tool is not None else {}
            declared |= site.task.parameters.keys() - fields.keys()
        hint = f"write `input.{name}`" if name in declared else ""
        hint = hint or NAMES.get(name, "") or _task_of_a_step(context, site, name)
        hint = hint or did_you_mean(name, candidates, " ").strip()
        hint = hint or f"for a request parameter write `workload.{name}`, with a default under `workload`"
        context.report_read("unknown-name", site, read, f'"{name}" is not defined', hint)


def _task_of_a_step(context: AnalysisContext, site: TemplateSite, name: str) -> str:
    """Where the result of a task can be read from a place that does not see the task."""
    for step in context.document.steps:
        if name in context.body(step).tasks:
            kept = f"`set: {{ctx.{name}: ...}}` there"
            if step is site.body and "output" in site.visibility.scopes:
                where, result = "this step: here", "output.data"
            else:
                where, result = f'step "{step.name}":', f"{step.name}.data"
            return f'"{name}" is a task of {where} write `{result}` for the result of the step, or keep it with {kept}'
    return ""


def qualified_name(context: AnalysisContext, site: TemplateSite, name: str) -> str | None:
    """What a name without a scope means here, with its scope; None for a result by name and for unknown names."""
    visibility = site.visibility
    if (name in visibility.scopes and name != "state") or name in SCOPE_NAMES:
        return None
    known = context.body(site.body) if site.body is not None else None
    if known is not None and site.depth and name in known.iterators[: site.depth]:
        return "iter." + "parent." * (site.depth - 1 - known.iterators.index(name)) + name
    if _names_result(context, site, name):
        return None
    if name in context.ctx_keys and "ctx" in visibility.scopes:
        return f"ctx.{name}"
    return f"workload.{name}" if name in context.workload_keys else None


def _names_result(context: AnalysisContext, site: TemplateSite, name: str) -> bool:
    """Whether a name is that of a task or step whose result can be read here."""
    tasks = context.body(site.body).tasks if site.body is not None and site.visibility.tasks else frozenset()
    return name in tasks or (site.visibility.results and name in context.steps)


_CHECKED_ELSEWHERE = frozenset({"context"})


def _count_bare(bare: _BareNames, site: TemplateSite, read: Read, qualified: str) -> None:
    first, count = bare.get((read.path[0], qualified), ((site, read), 0))
    bare[read.path[0], qualified] = first, count + 1
