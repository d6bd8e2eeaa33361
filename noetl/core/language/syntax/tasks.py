"""Read `tool`: tasks in all their forms, their policies, and `choose`/`while`/`until`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import Fields, Reader, describe_node, is_template, shorten, text_of
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.foreign_idioms import KINDS as OTHER_KINDS
from noetl.core.language.syntax.grammar import SHAPES, Key
from noetl.core.language.syntax.parameters import bind_parameters
from noetl.core.language.syntax.placement import read_placement
from noetl.core.language.syntax.set_blocks import read_scoped, read_set
from noetl.core.language.syntax.tree import (
    BranchSyntax,
    ConstructSyntax,
    ItemSyntax,
    OutputSyntax,
    PolicySyntax,
    QuotaSyntax,
    RuleSyntax,
    SetSyntax,
    TaskSyntax,
    ValidationSyntax,
)
from noetl.core.model.quotas.token_bucket import RATE_HINT, burst_of, rate_of
from noetl.core.model.tool import PLUGIN_KINDS, install_hint

CONSTRUCTS = ("choose", "while", "until")


def read_tool(reader: Reader, node: Node, owner: str, path: str) -> list[ItemSyntax]:
    """The tasks of a step or block; `owner` is its name."""
    items: list[ItemSyntax]
    if isinstance(node, Mapping):
        items = _read_item(reader, node, f"{path}/0", f"{owner}_task", single=True)
    elif isinstance(node, Sequence):
        items = _read_items(reader, node, path, "")
        if not node.items:
            reader.add("wrong-type", node, "the list of tasks is empty", "add a task, or remove `tool`")
    elif isinstance(node, Scalar) and node.value is None:
        reader.add("wrong-type", node, "`tool` is empty", "add tasks, or remove it")
        return []
    else:
        kind = node.text if isinstance(node, Scalar) and node.text in reader.specs else "..."
        message = f"`tool` must be a list of tasks or one task, not {describe_node(node)}"
        reader.add("wrong-type", node, message, f"write `tool: {{kind: {kind}}}`")
        return []
    _check_unique(reader, items)
    return items


def _read_items(reader: Reader, node: Node, path: str, prefix: str) -> list[ItemSyntax]:
    items: list[ItemSyntax] = []
    for number, item in enumerate(reader.sequence(node, "a task list")):
        items += _read_item(reader, item, f"{path}/{number}", f"{prefix}task_{number}", number=number, prefix=prefix)
    return items


def _read_item(
    reader: Reader,
    node: Node,
    path: str,
    default: str,
    *,
    single: bool = False,
    number: int = 0,
    prefix: str = "",
) -> list[ItemSyntax]:
    mapping = reader.mapping(node, "task")
    if mapping is None:
        return []
    for word in CONSTRUCTS:
        if word in mapping.entries and "kind" not in mapping.entries:
            return [_read_construct(reader, mapping, word, path, f"{prefix}{word}_{number}")]
    if is_labelled(mapping):
        ((label, inner),) = mapping.entries.values()
        reader.report_deprecated("task", "label", label)
        name = label.text if single else reader.name(label, "task") or default
        return [_read_task(reader, inner, path, name, label)]
    named = mapping.entries.get("name")
    name = (reader.name(named[1], "task") if named else None) or default
    return [_read_task(reader, mapping, path, name, named[1] if named else mapping, named=named is not None)]


def is_labelled(mapping: Mapping) -> bool:
    """Whether this is v10's one-key labelled task `fetch: {kind: http}`."""
    if len(mapping.entries) != 1:
        return False
    ((key, value),) = mapping.entries.values()
    return key.text not in (*SHAPES["task"].keys, *CONSTRUCTS) and isinstance(value, Mapping)


def _read_task(reader: Reader, node: Node, path: str, name: str, name_node: Node, *, named: bool = True) -> TaskSyntax:
    fields = reader.shape(node, "task", defer=True)
    task = TaskSyntax(node, path, name, name_node, named=named)
    _read_kind(reader, task, fields)
    if task.tool is not None and "timeout_seconds" in fields and "timeout_seconds" not in task.tool.fields:
        fields.setdefault("timeout", fields.pop("timeout_seconds"))
    for old, word in (("args", "input"),):
        if old in fields and word in fields and not isinstance(fields[old][1], Sequence):
            reader.add("parameter-twice", fields[old][0], f"both `{old}` and `{word}` are given", f"`{word}` is used")
    _name_block(reader, task, fields)
    bind_parameters(reader, task, fields)
    if "spec" in fields:
        _read_task_spec(reader, task, fields["spec"][1])
    if "retry" in fields and "retry" not in task.parameters:
        task.retry = read_retry(reader, fields["retry"][1])
    if "timeout" in fields and "timeout" not in task.parameters:
        task.timeout = fields["timeout"][1]
    if "set" in fields:
        task.sets = read_set(reader, fields["set"][1], f"{path}/set")
    task.output = read_output(reader, fields, path)
    task.validation = read_validation(reader, task.spec, task.output, path)
    return task


def _read_kind(reader: Reader, task: TaskSyntax, fields: Fields) -> None:
    if "kind" not in fields:
        return
    node = fields["kind"][1]
    assert isinstance(node, Scalar)
    task.kind_node = node
    if is_template(node):
        reader.add("unknown-kind", node, "a tool kind cannot be a template", "write the kind itself")
        return
    written = node.text
    spec = reader.specs.get(written)
    if spec is not None:
        task.kind, task.tool = spec.kind, spec
        return
    task.kind = written
    if written in PLUGIN_KINDS:
        message = f'the kind "{written}" needs a plug-in that is not installed; the task will fail at run time'
        hint = install_hint(written) or f'install a package with the entry point "{written}" in "noetl.tools"'
        reader.add("plugin-kind", node, message, hint)
        return
    if reader.report_rejected("kind", written, node):
        return
    known = sorted({spec.kind for spec in reader.specs.values()})
    if written in OTHER_KINDS:
        reader.add("unknown-kind", node, f'unknown tool kind "{written}"', OTHER_KINDS[written])
        return
    hint = did_you_mean(written, reader.specs, "known kinds: " + ", ".join(known))
    hint += ' (packages with entry points in "noetl.tools" add more)'
    reader.add("unknown-kind", node, f'unknown tool kind "{written}"', hint)


def _name_block(reader: Reader, task: TaskSyntax, fields: Fields) -> None:
    """`kind: workbook` without `block`: the old key `name` names the block."""
    if task.kind != "workbook" or "block" in fields or "name" not in fields:
        return
    inner = fields["input"][1] if "input" in fields else None
    if isinstance(inner, Mapping) and "block" in inner.entries:
        return
    key, value = fields["name"]
    reader.add(
        "workbook-name", key, "`name` is an old spelling of `block`", f"write `block: {text_of(value) or '...'}`"
    )
    fields["block"] = (key, value)


def read_retry(reader: Reader, node: Node) -> Node | None:
    """`retry: N`, or a mapping."""
    if isinstance(node, Scalar):
        whole = Key("count", "Number of executions, the first one included.", least=1)
        return node if reader.check_type(node, whole, "retry") else None
    fields = reader.shape(node, "retry")
    for each in reader.texts(fields["on"][1], "`on`") if "on" in fields else ():
        if not is_template(each):
            reader.check_choice(each, "on", SHAPES["retry"].keys["on"].choices)
    return node if fields else None


def read_output(reader: Reader, fields: Fields, path: str) -> OutputSyntax | None:
    """`output: {store, select}` and the old `output_select`."""
    block = fields.get("output")
    if block is None and "output_select" not in fields:
        return None
    output = OutputSyntax(path=f"{path}/output")
    if block is not None:
        inside = reader.shape(block[1], "output")
        if "store" in inside:
            output.store = reader.mapping(inside["store"][1], "result store")
        if "inline_max_bytes" in inside and isinstance(inside["inline_max_bytes"][1], Scalar):
            output.inline_max_bytes = inside["inline_max_bytes"][1]
        if "schema" in inside:
            output.schema = inside["schema"][1]
        for word in ("select", "output_select"):
            if word in inside:
                output.select += _read_select(reader, *inside[word])
        if "output_select" in inside:
            key = inside["output_select"][0]
            reader.add("old-spelling", key, "`output_select` is an old spelling of `select`", "write `select`")
    if "output_select" in fields:
        key, node = fields["output_select"]
        reader.add(
            "old-spelling",
            key,
            "`output_select` is an old spelling of `output: {select: [...]}`",
            "write the `output` block",
        )
        output.select += _read_select(reader, key, node)
    return output


def read_validation(
    reader: Reader, spec: Mapping | None, output: OutputSyntax | None, path: str
) -> ValidationSyntax | None:
    """`spec.validation` and `output.schema`."""
    found = ValidationSyntax(path=f"{path}/spec/validation")
    if spec is not None and "validation" in spec.entries:
        fields = reader.shape(spec.entries["validation"][1], "validation")
        found.input = fields["input"][1] if "input" in fields else None
        found.output = fields["output"][1] if "output" in fields else None
    if output is not None and output.schema is not None:
        found.output = output.schema
    return found if found.input is not None or found.output is not None else None


def _read_select(reader: Reader, key: Scalar, node: Node) -> list[Scalar]:
    """The fields that travel inline. `{strategy, threshold_kb}` of the original is a hint that the limits replace."""
    if key.text == "output_select" and isinstance(node, Mapping):
        reader.add("old-spelling", key, "`output_select` as a mapping is ignored", "list the fields that stay inline")
        return []
    return reader.texts(node, f"`{key.text}`")


# --- policy -------------------------------------------------------------------------------------


def _read_task_spec(reader: Reader, task: TaskSyntax, node: Node) -> None:
    fields = reader.shape(node, "task.spec")
    if not isinstance(node, Mapping):
        return
    task.spec, task.spec_path = node, f"{task.path}/spec"
    task.placement = read_placement(reader, fields)
    if "set" in node.entries:
        reader.add("set-under-spec", node.entries["set"][0], "`set` is not valid under `spec`", "move it beside `kind`")
    if "retry" in fields:
        task.retry = read_retry(reader, fields["retry"][1])
    if "policy" in fields:
        task.policy = _read_policy(reader, fields["policy"], f"{task.path}/spec/policy")
        _read_hooks(reader, task, fields["policy"][1])


HOOKS = ("before", "after", "finally")


def _read_hooks(reader: Reader, task: TaskSyntax, policy: Node) -> None:
    """The tasks around a task, which have no control flow of their own."""
    if not isinstance(policy, Mapping):
        return
    for word in [each for each in HOOKS if each in policy.entries]:
        path = f"{task.path}/spec/policy/{word}"
        for item in _branch_items(reader, policy.entries[word][1], path, f"{task.name}__{word}_"):
            if isinstance(item, ConstructSyntax):
                message = f"`{item.keyword}` is not valid in `{word}`: the tasks around a task run one after the other"
                reader.add("control-outside-task", item.node, message, "write the tasks themselves")
                continue
            if item.policy is not None or item.hooks:
                message = f"a task in `{word}` has no policy of its own"
                hint = "use `retry` beside `kind`, or write it as a task of the pipeline"
                reader.add("control-outside-task", item.policy.node if item.policy else item.node, message, hint)
            task.hooks.setdefault(word, []).append(item)


def _read_policy(reader: Reader, entry: tuple[Scalar, Node], path: str) -> PolicySyntax | None:
    key, node = entry
    if not isinstance(node, Mapping):
        message = f"a task's policy must be a mapping with `rules`, not {describe_node(node)}"
        reader.add(
            "policy-shape", node if not isinstance(node, Sequence) else key, message, "write `policy: {rules: [...]}`"
        )
        return None
    if not {"rules", "on_unmatched", "quotas", *HOOKS} & set(node.entries):
        reader.add("policy-shape", key, "a task's policy requires `rules`", "write `policy: {rules: [...]}`")
        if "do" in node.entries or "then" in node.entries or "when" in node.entries:
            return None
    fields = reader.shape(node, "task.policy", reported=("rules",))
    policy = PolicySyntax(node, path)
    policy.has_rules = "rules" in fields or "on_unmatched" in fields
    policy.on_unmatched = text_of(fields["on_unmatched"][1]) if "on_unmatched" in fields else None
    if "quotas" in fields:
        policy.quota = read_quota(reader, fields["quotas"][1], f"{path}/quotas")
    if "rules" in fields:
        for number, item in enumerate(reader.sequence(fields["rules"][1], "`rules`", "when: ...")):
            rule = read_rule(reader, item, f"{path}/rules/{number}")
            if rule is not None:
                policy.rules.append(rule)
            else:
                policy.complete = False
    return policy


def read_quota(reader: Reader, node: Node, path: str) -> QuotaSyntax | None:
    """`quotas: {rate, burst, key}`; a rate or a burst that is no template must be valid."""
    fields = reader.shape(node, "quotas")
    if "rate" not in fields:
        return None
    found = QuotaSyntax(node, path, *(fields[name][1] if name in fields else None for name in ("rate", "burst", "key")))
    for name, given, read, hint in (
        ("rate", found.rate, rate_of, RATE_HINT),
        ("burst", found.burst, burst_of, "write a whole number of at least 1"),
    ):
        if isinstance(given, Scalar) and not is_template(given) and _is_wrong(given.value, read):
            reader.add("wrong-value", given, f"`{name}` cannot be {describe_node(given)}", hint)
    return found


def _is_wrong(value: Any, read: Callable[[Any], Any]) -> bool:
    try:
        read(value)
    except ValueError:
        return True
    return False


def split_rule(reader: Reader, node: Node, shape: str, verdict: str) -> tuple[Node | None, bool, Node | None] | None:
    """Guard, whether it is `else`, and `then` of a rule in any of its forms; `verdict` is `do` or `allow`."""
    mapping = reader.mapping(node, SHAPES[shape].noun)
    if mapping is None:
        return None
    entries = dict(mapping.entries)
    if verdict in entries and "then" not in entries:
        reader.add(
            "rule-without-do",
            entries[verdict][0],
            f"`{verdict}` belongs under `then`",
            f"write `then: {{{verdict}: {shorten(text_of(entries[verdict][1]) or '...')}}}`",
        )
        return None
    fields = reader.shape(mapping, shape)
    if "else" in fields:
        key, inner = fields["else"]
        if "when" in fields:
            reader.add("rule-shape", key, "a rule has either `when` or `else`", "write two rules")
            return None
        if "then" in fields:
            reader.add("flat-else", key, "`else` requires its own `then`", "write `- else: {then: {...}}`")
            return None, True, fields["then"][1]
        if isinstance(inner, Mapping) and "then" in inner.entries:
            for word, (word_node, _) in inner.entries.items():
                if word != "then":
                    reader.add("unknown-key", word_node, f'`else` has no key "{word}"', "valid here: then")
            return None, True, inner.entries["then"][1]
        if isinstance(inner, Mapping) and verdict in inner.entries:
            reader.add("flat-else", key, f"`{verdict}` belongs under `then`", "write `- else: {then: {...}}`")
            return None, True, inner
        where = key if isinstance(inner, Scalar) and inner.value is None else inner
        given = shorten(inner.text) if isinstance(inner, Scalar) and inner.value is not None else "..."
        hint = f"write `- else: {{then: {{{verdict}: {given}}}}}`"
        reader.add("rule-without-do", where, f"this `else` has no `then: {{{verdict}: ...}}`", hint)
        return None
    if "when" not in fields:
        if "when" not in entries:
            reader.add(
                "rule-shape",
                mapping,
                "a rule requires `when` or `else`",
                f"write `when: ...` and `then: {{{verdict}: ...}}`",
            )
        return None
    if "then" not in fields:
        reader.add("rule-without-do", mapping, f"this rule has no `then: {{{verdict}: ...}}`", "add it")
        return None
    return fields["when"][1], False, fields["then"][1]


def read_rule(reader: Reader, node: Node, path: str) -> RuleSyntax | None:
    """One rule of a task's policy."""
    parts = split_rule(reader, node, "task.rule", "do")
    if parts is None:
        return None
    when, is_else, then = parts
    rule = RuleSyntax(node, path, when, is_else, then_path=f"{path}/{'else/' if is_else else ''}then")
    mapping = reader.mapping(then, "directive")
    if mapping is None:
        return rule
    rule.then = mapping
    if "do" not in mapping.entries:
        reader.add("rule-without-do", mapping, "this `then` has no `do`", "add `do: continue`, or another directive")
    fields = reader.shape(mapping, "directive", reported=("do",))
    do = fields.get("do")
    rule.do = text_of(do[1]) if do else None
    rule.fields = {
        key: value
        for key, (_, value) in fields.items()
        if key in ("attempts", "backoff", "delay", "max_delay", "to", "message", "kind")
    }
    rule.sets = read_sets(reader, fields, rule.then_path)
    return rule


def read_sets(reader: Reader, fields: Fields, path: str) -> list[SetSyntax]:
    """The assignments of a rule or a step: `set`, and v10's keys that name the scope."""
    sets: list[SetSyntax] = []
    for word, scope in (("set_ctx", "ctx"), ("set_iter", "iter"), ("set_step", "step")):
        if word in fields:
            sets += read_scoped(reader, fields[word][1], scope, path, word)
    if "set" in fields:
        sets += read_set(reader, fields["set"][1], f"{path}/set")
    return sets


# --- choose, while, until -----------------------------------------------------------------------


def _read_construct(reader: Reader, node: Mapping, word: str, path: str, default: str) -> ConstructSyntax:
    named = node.entries.get("name")
    name = (reader.name(named[1], word) if named else None) or default
    fields = reader.shape(node, word)
    construct = ConstructSyntax(node, path, word, name, named[1] if named else node, named is not None)  # type: ignore[arg-type]
    if word not in fields:
        return construct
    body = fields[word][1]
    if word == "choose":
        for number, item in enumerate(reader.sequence(body, "`choose`")):
            read = _read_branch(reader, item, f"{path}/choose/{number}", f"{name}__{number}_")
            if read is not None:
                construct.branches.append(read)
        if not construct.branches:
            reader.add("wrong-type", body, "`choose` has no branches", "add `- when: ...` with `then: [tasks]`")
    else:
        inside = reader.shape(body, "while.body", what=f"`{word}` block")
        branch = BranchSyntax(body, f"{path}/{word}", inside["when"][1] if "when" in inside else None)
        if "tool" in inside:
            branch.items = _branch_items(reader, inside["tool"][1], f"{path}/{word}/tool", f"{name}__")
        construct.branches.append(branch)
    return construct


def _read_branch(reader: Reader, node: Node, path: str, prefix: str) -> BranchSyntax | None:
    mapping = reader.mapping(node, "branch of `choose`")
    if mapping is None:
        return None
    fields = reader.shape(mapping, "choose.branch")
    if "else" in fields:
        key, inner = fields["else"]
        tasks = fields["then"][1] if "then" in fields else None
        if tasks is not None:
            reader.add("flat-else", key, "`else` requires its own `then`", "write `- else: {then: [...]}`")
        elif isinstance(inner, Mapping) and "then" in inner.entries:
            tasks = inner.entries["then"][1]
        elif isinstance(inner, Sequence):
            reader.add("flat-else", key, "`else` requires its own `then`", "write `- else: {then: [...]}`")
            tasks = inner
        else:
            reader.add("rule-shape", key, "this `else` has no `then: [tasks]`", "add it")
        branch = BranchSyntax(mapping, f"{path}/else", None)
    else:
        if "when" not in fields:
            reader.add(
                "rule-shape", mapping, "a branch requires `when` or `else`", "write `- when: ...` with `then: [tasks]`"
            )
        branch = BranchSyntax(mapping, path, fields["when"][1] if "when" in fields else None)
        tasks = fields["then"][1] if "then" in fields else None
        if tasks is None:
            reader.add("rule-shape", mapping, "this branch has no `then: [tasks]`", "add it")
        if "when" not in fields:
            return None
    if tasks is not None:
        branch.items = _branch_items(reader, tasks, f"{branch.path}/then", prefix)
    return branch


def _branch_items(reader: Reader, node: Node, path: str, prefix: str) -> list[ItemSyntax]:
    if isinstance(node, Mapping):
        return _read_item(reader, node, f"{path}/0", f"{prefix}task_0", prefix=prefix)
    return _read_items(reader, node, path, prefix)


def _check_unique(reader: Reader, items: list[ItemSyntax]) -> None:
    seen: dict[str, Node] = {}

    def visit(level: list[ItemSyntax]) -> None:
        for item in level:
            first = seen.get(item.name)
            if first is None:
                seen[item.name] = item.name_node
            else:
                message = f'duplicate task "{item.name}" in this pipeline'
                reader.add("duplicate-task", item.name_node, message, f"the first one is on line {first.line}")
            if isinstance(item, ConstructSyntax):
                for branch in item.branches:
                    visit(branch.items)
            else:
                for hooks in item.hooks.values():
                    visit([*hooks])

    visit(items)
