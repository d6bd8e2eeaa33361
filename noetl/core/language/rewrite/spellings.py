"""Canonical spellings, for the formatter and for migrations: `name:` tasks, flat `set` targets, `else` with `then`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from noetl.core.language.rewrite.concrete_edits import (
    NeedsExpansion,
    joined,
    new_entry,
    put_above,
    rename,
)
from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteAlias,
    ConcreteCollection,
    ConcreteDocument,
    ConcreteScalar,
    Element,
    owners,
)
from noetl.core.language.source.nodes import Mapping, Node, Sequence
from noetl.core.language.syntax.grammar import SCOPES
from noetl.core.language.syntax.tasks import is_labelled

Spelling = Callable[[ConcreteDocument, Node], None]

# --- tasks under labels -----------------------------------------------------------------------------


def name_labelled_tasks(document: ConcreteDocument, root: Node) -> None:
    """Rewrite `- fetch: {kind: http}` to `- {name: fetch, kind: http}`."""
    items = labelled_items(root)
    owner_of = owners(document.root) if items else {}
    for item in items:
        found = document.collection(item.start)
        owner = owner_of.get(id(found))
        if owner is not None and isinstance(found, ConcreteCollection) and len(found.elements) == 1:
            _name_task(owner, found)


def _name_task(owner: Element, item: ConcreteCollection) -> None:
    """Move the label of a task into the task; `owner` is the item of the list."""
    (label,) = item.elements
    key, inner = label.key, label.value
    if key is None or key.prefix or label.is_merge or (item.prefix and inner.prefix):
        raise NeedsExpansion
    name = new_entry("name", ConcreteScalar(text=key.text, value=key.value, style=key.style))
    if isinstance(inner, ConcreteAlias):
        merge = Element(inner, ConcreteScalar(text="<<", value="<<"), comment=label.comment)
        name.above, name.comment = label.above, label.head
        item.elements = [name, merge]
    elif isinstance(inner, ConcreteCollection) and inner.is_mapping and inner.elements:
        tail = inner.tail
        if inner.flow and not item.flow:
            owner.above += label.above
            owner.comment = label.comment
        else:
            name.above, name.comment = label.above, label.head
            tail = [*tail, *([label.comment.strip()] if label.comment else [])]
        _rename_block_name(inner)
        item.elements = [name, *inner.elements]
        item.tail = [*tail, *item.tail]
        item.prefix = item.prefix or inner.prefix
        if not item.flow:
            item.flow, item.source = inner.flow, inner.source
    item.changed = True


def _rename_block_name(task: ConcreteCollection) -> None:
    """A workbook call in v10 may name its block by `name`."""
    kind, name = task.value("kind"), task.get("name")
    if name is not None and task.get("block") is None and isinstance(kind, ConcreteScalar) and kind.value == "workbook":
        rename(name.key, "block")


def labelled_items(root: Node) -> list[Mapping]:
    """Tasks under their labels, in every task list."""
    found: dict[int, Mapping] = {}  # by identity: an alias leads to a task that is known already
    for body in _bodies(root):
        if isinstance(body, Mapping):
            _collect_labelled(body.get("tool"), found)
    return [*found.values()]


def _bodies(root: Node) -> list[Node]:
    """The steps and blocks of a document."""
    if not isinstance(root, Mapping):
        return []
    workflow, workbook = root.get("workflow"), root.get("workbook")
    bodies = [*workflow.items] if isinstance(workflow, Sequence) else []
    if isinstance(workbook, Mapping):
        return bodies + [value for _, value in workbook.entries.values()]
    return bodies + (workbook.items if isinstance(workbook, Sequence) else [])


def _collect_labelled(tasks: Node | None, found: dict[int, Mapping]) -> None:
    for item in tasks.items if isinstance(tasks, Sequence) else [tasks]:
        if not isinstance(item, Mapping):
            continue
        for inner in [] if "kind" in item.entries else _construct_tasks(item):
            _collect_labelled(inner, found)
        if is_labelled(item):
            found[id(item)] = item


def _construct_tasks(item: Mapping) -> list[Node | None]:
    """The task lists inside a `choose`, `while` or `until`."""
    bodies = [item.get(word) for word in ("while", "until")]
    lists = [body.get("tool") for body in bodies if isinstance(body, Mapping)]
    chosen = item.get("choose")
    for branch in chosen.items if isinstance(chosen, Sequence) else ():
        if isinstance(branch, Mapping):
            other = branch.get("else")
            lists += [branch.get("then"), other.get("then") if isinstance(other, Mapping) else None]
    return lists


# --- `set` ------------------------------------------------------------------------------------------


def flatten_sets(document: ConcreteDocument, root: Node) -> None:
    """Rewrite `set: {ctx: {a: 1}}` to `set: {ctx.a: 1}`."""
    for node in set_blocks(root):
        found = document.collection(node.start)
        if found is None:
            continue
        for element in list(found.elements):
            if element.name in SCOPES and isinstance(element.value, ConcreteAlias):
                raise NeedsExpansion
            if element.name in SCOPES and isinstance(element.value, ConcreteCollection) and element.value.elements:
                _flatten(found, element, element.value)


def _flatten(block: ConcreteCollection, element: Element, inner: ConcreteCollection) -> None:
    add_scope(inner, element.name)
    elements, tail = joined([(element, inner)])
    at = block.elements.index(element)
    block.elements[at : at + 1] = elements
    after = at + len(elements)
    if after < len(block.elements):
        put_above(block.elements[after], tail)
    else:
        block.tail = [*tail, *block.tail]
    block.changed = True
    block.flow = block.flow and inner.flow


def add_scope(block: ConcreteCollection, scope: str) -> None:
    """Write the scope before each name of a block."""
    if block.prefix or any(each.is_merge for each in block.elements):
        raise NeedsExpansion
    for element in block.elements:
        rename(element.key, f"{scope}.{element.name.removeprefix(f'{scope}.')}")


def set_blocks(root: Node) -> list[Mapping]:
    """Every `set` block of steps, blocks, arcs, tasks and rules."""
    return [
        value
        for inside, key, value in _entries_of_steps(root)
        if key == "set" and inside not in _DATA_KEYS and isinstance(value, Mapping)
    ]


def _entries_of_steps(root: Node) -> Iterator[tuple[str, str, Node]]:
    """Every key below `workflow` and `workbook` with the key around it and its value; no keys of the author's data."""
    pending: list[tuple[str, Node]] = []
    if isinstance(root, Mapping):
        pending = [(word, value) for word, (_, value) in root.entries.items() if word in ("workflow", "workbook")]
    while pending:
        inside, node = pending.pop()
        if isinstance(node, Mapping):
            for text, (_, value) in node.entries.items():
                yield inside, text, value
                if text not in _DATA_KEYS:
                    pending.append((text, value))
        elif isinstance(node, Sequence):
            pending += [(inside, each) for each in node.items]


# Blocks with keys that the author defines.
_DATA_KEYS = frozenset(
    {"input", "args", "payload", "params", "headers", "json", "body", "data", "form", "set", "workload"}
)


# --- `else` -----------------------------------------------------------------------------------------


def nest_elses(document: ConcreteDocument, root: Node) -> None:
    """Rewrite `{else:, then: ...}` and `{else: {do: ...}}` to `{else: {then: ...}}`."""
    for _, key, value in _entries_of_steps(root):
        if key in ("rules", "choose") and isinstance(value, Sequence):
            for rule in value.items:
                found = document.collection(rule.start)
                if isinstance(rule, Mapping) and "else" in rule.entries and found is not None:
                    _nest_else(found)


def _nest_else(rule: ConcreteCollection) -> None:
    other, then = rule.get("else"), rule.get("then")
    if other is None:
        raise NeedsExpansion
    inner = other.value
    if then is not None:
        if len(rule.elements) != 2 or not isinstance(inner, ConcreteScalar) or inner.prefix:
            return
        rule.elements.remove(then)
        put_above(then, [other.comment.strip()] if other.comment else [])
        other.comment = ""
        other.value = _mapping([then], flow=rule.flow)
    elif isinstance(inner, ConcreteAlias):
        raise NeedsExpansion
    elif isinstance(inner, ConcreteCollection) and inner.elements and inner.get("then") is None:
        head, other.head = other.head, ""
        other.value = _mapping([new_entry("then", inner)], flow=inner.flow)
        other.value.elements[0].head = head
    else:
        return
    rule.changed = True


def _mapping(elements: list[Element], *, flow: bool) -> ConcreteCollection:
    return ConcreteCollection(elements=elements, flow=flow, changed=True)
