"""Keys under `spec` that have no effect, and invalid time limits."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import Findings, did_you_mean
from noetl.core.language.resource_limits import RESOURCES, megabytes
from noetl.core.language.source.node_reader import Reader, describe_node, is_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar
from noetl.core.language.syntax.grammar import SHAPES
from noetl.core.language.syntax.key_places import place_of_key
from noetl.core.language.syntax.parameter_values import check_value, field_names
from noetl.core.language.syntax.tasks import read_retry
from noetl.core.language.syntax.tree import TaskSyntax
from noetl.core.model.tool import Field, Members, ToolSpec

_RESULT = ("store", "inline_max_bytes")
# Keys of every task that may be given above it, besides those of the kinds.
_INHERITED = ("timeout", "effect", "retry", "max_task_runs", "result")
_TIMEOUTS = ("connect", "read", "total")


def check(context: AnalysisContext) -> None:
    """Check every spec of every level."""
    specs = {spec.kind: spec for spec in context.reader.specs.values()}
    general = set(_INHERITED)
    for spec in specs.values():
        general |= {*spec.spec_keys, *spec.defaults}
    document = context.document
    if document.executor is not None:
        _check_level(context, document.executor.spec, "executor.spec", general, specs)
        _check_level(
            context, document.executor.defaults, "", general | {"timeouts", "resources", "on_unmatched"}, specs
        )
        _check_defaults(context, document.executor.defaults)
    for body in document.bodies():
        _check_level(context, body.spec, "step.spec", general, specs)
        for level in body.loops():
            _check_level(context, level.spec, "loop.spec", general, specs)
        for task in body.tasks():
            _check_task(context, task)


def _check_level(
    context: AnalysisContext, node: Mapping | None, shape: str, general: set[str], specs: dict[str, ToolSpec]
) -> None:
    own = set(SHAPES[shape].keys) if shape else set()
    fields = _shared_fields(specs.values())
    for key, (key_node, value) in node.entries.items() if node else ():
        if key in ("timeout", "timeouts"):
            _check_timeout(context, value)
        elif key == "result":
            _check_result(context, value)
        elif key in _INHERITED and key not in own:
            _check_inherited(context, key, value)
        elif key in specs or key in context.reader.specs:
            _check_kind_map(context, context.reader.specs[key], value)
        elif key in fields and key not in own:
            _check_shared(context, key, value, fields[key])
        elif key not in own | general and key not in ("set", "do") and (shape, key) not in context.reader.rejected:
            _report(context, key_node, key, own | general | set(specs), "here", shape or "executor")
            context.reader.report_directives(value)


def _check_result(context: AnalysisContext, node: Node) -> None:
    """`spec.result`: where results are stored."""
    for key, (key_node, value) in node.entries.items() if isinstance(node, Mapping) else ():
        if key not in _RESULT:
            _report(context, key_node, key, set(_RESULT), "result")
        elif key == "inline_max_bytes":
            context.reader.check_type(value, SHAPES["output"].keys[key], key)
        else:
            context.reader.mapping(value, "result store")


def _check_inherited(context: AnalysisContext, key: str, node: Node) -> None:
    """A key of every task, as a default for the tasks below."""
    if key == "retry":
        read_retry(context.reader, node)
    else:
        context.reader.check_type(node, SHAPES["task.spec"].keys[key], key)


def _check_defaults(context: AnalysisContext, node: Mapping | None) -> None:
    for key, (key_node, value) in node.entries.items() if node else ():
        if key == "on_unmatched":
            context.reader.check_type(value, SHAPES["task.policy"].keys[key], key)
        elif key == "resources":
            _check_resources(context, value)
        elif key == "do":
            context.reader.report_control(key_node)


def _check_resources(context: AnalysisContext, node: Node) -> None:
    if not isinstance(node, Mapping):
        hint = 'write `resources: {memory: "512MB", cpu_s: 60, files: 256}`'
        context.reader.add("wrong-type", node, f"`resources` must be a mapping, not {describe_node(node)}", hint)
        return
    for key, (key_node, value) in node.entries.items():
        if key not in RESOURCES:
            _report(context, key_node, key, set(RESOURCES), "resources")
        elif not isinstance(value, Scalar) or not _is_resource(key, value.value):
            kinds = {"memory": 'a size such as "512MB"', "files": "a positive whole number"}
            hint = f"write {kinds.get(key, 'a positive number')}"
            context.reader.add("wrong-value", value, f"`{key}` cannot be {describe_node(value)}", hint)


def _is_resource(key: str, value: object) -> bool:
    if key == "files":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return megabytes(value if key == "memory" else _number(value)) is not None


def _number(value: object) -> object:
    return None if isinstance(value, str) else value


def _check_kind_map(context: AnalysisContext, spec: ToolSpec, node: Node) -> None:
    mapping = context.reader.mapping(node, f"`{spec.kind}` block")
    known = _known(spec)
    for key, (key_node, value) in mapping.entries.items() if mapping is not None else ():
        if key == "timeout":
            _check_timeout(context, value)
        elif key in _INHERITED:
            _check_inherited(context, key, value)
        elif key not in known:
            _report(context, key_node, key, known, spec.kind)
        elif key in spec.spec_fields:
            check_value(context.reader, key, value, _spec_field(spec, key), spec.kind)


def _shared_fields(specs: Iterable[ToolSpec]) -> dict[str, list[Field]]:
    """The declarations of each spec key, which several kinds may have."""
    found: dict[str, list[Field]] = {}
    for spec in specs:
        for key in spec.spec_keys:
            found.setdefault(key, []).append(_spec_field(spec, key) if key in spec.spec_fields else Field())
    return {key: fields for key, fields in found.items() if all(each != Field() for each in fields)}


def _check_shared(context: AnalysisContext, key: str, value: Node, fields: list[Field]) -> None:
    """A default for several kinds: reported if none of them accepts it."""
    by_type: dict[object, list[Field]] = {}
    for each in fields:
        by_type.setdefault((each.type, each.accepts), []).append(each)
    shared = [_joined(group) for group in by_type.values()]
    for field in shared[1:]:
        trial = Reader(Findings("", context.reader.findings.text), context.reader.specs)
        check_value(trial, key, value, field, "spec")
        if not trial.findings.found:
            return
    check_value(context.reader, key, value, shared[0], "spec")


def _joined(fields: list[Field]) -> Field:
    """What one of several fields of one type accepts."""
    first = fields[0]
    least = [each.least for each in fields if each.least is not None]
    most = [each.most for each in fields if each.most is not None]
    return Field(
        first.type,
        first.doc,
        accepts=first.accepts,
        choices=tuple(dict.fromkeys(word for each in fields for word in each.choices))
        if all(each.choices for each in fields)
        else (),
        also=tuple(word for each in fields for word in each.also),
        least=min(least) if len(least) == len(fields) else None,
        most=max(most) if len(most) == len(fields) else None,
        members=_all_members(fields),
    )


def _all_members(fields: list[Field]) -> Members | None:
    """The members that one of the kinds has; None if another one accepts any."""
    every = [each.members for each in fields if each.members is not None]
    if len(every) < len(fields):
        return None
    return Members({name: field for members in every for name, field in members.fields.items()})


def _check_task(context: AnalysisContext, task: TaskSyntax) -> None:
    if task.timeout is not None:
        _check_timeout(context, task.timeout)
    if task.spec is None:
        return
    for key, (key_node, value) in task.spec.entries.items():
        if key == "timeout":
            _check_timeout(context, value)
        elif key == "result":
            _check_result(context, value)
        elif task.tool is not None and key not in _known(task.tool) and key not in ("set", "policy", task.kind):
            if ("task.spec", key) in context.reader.rejected:
                continue  # already reported while reading
            if key in field_names(task.tool) and context.reader.report_rejected("task.spec", "<field>", key_node):
                continue
            _report(context, key_node, key, _known(task.tool), task.tool.kind, "task")
        elif task.tool is not None and key in task.tool.spec_fields:
            check_value(context.reader, key, value, _spec_field(task.tool, key), task.tool.kind)


def _spec_field(spec: ToolSpec, key: str) -> Field:
    field = spec.spec_fields[key]
    return field if field.doc else replace(field, doc=spec.spec_keys.get(key, ""))


def _known(spec: ToolSpec) -> set[str]:
    return {*SHAPES["task.spec"].keys, *spec.spec_keys, *spec.defaults} - {"policy"}


def _report(
    context: AnalysisContext, node: Scalar, key: str, known: Iterable[str], owner: str, shape: str = ""
) -> None:
    where = "no task below uses it" if owner == "here" else f"{owner} does not use it"
    hint = did_you_mean(key, known, (shape and place_of_key(key, shape)) or "remove it")
    context.reader.add("unknown-spec-key", node, f'unknown spec key "{key}": {where}', hint)


def _check_timeout(context: AnalysisContext, node: Node) -> None:
    """A number of seconds, or `{connect, read, total}`."""
    if isinstance(node, Mapping):
        for key, (key_node, value) in node.entries.items():
            if key not in _TIMEOUTS:
                context.reader.add(
                    "wrong-value", key_node, f'unknown timeout key "{key}"', "valid keys: connect, read, total"
                )
            else:
                _check_seconds(context, value, key)
    else:
        _check_seconds(context, node, "timeout")


def _check_seconds(context: AnalysisContext, node: Node, key: str) -> None:
    if is_template(node) or (isinstance(node, Scalar) and node.value is None):
        return
    if not isinstance(node, Scalar) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        context.reader.add(
            "wrong-type", node, f"`{key}` must be a number of seconds, not {describe_node(node)}", "write `timeout: 30`"
        )
    elif node.value <= 0:
        context.reader.add(
            "wrong-value", node, f"`{key}` must be greater than 0, not {node.text}", "write a number of seconds"
        )
