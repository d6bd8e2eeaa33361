"""The input of every check: a document, its templates, and the names that its parts define."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite, TemplateSites
from noetl.core.language.source.node_reader import Reader, is_template
from noetl.core.language.source.nodes import Scalar
from noetl.core.language.syntax.tree import (
    BlockSyntax,
    BodySyntax,
    CompensationSyntax,
    DocumentSyntax,
    SetSyntax,
    TaskSyntax,
)


class Body(Struct, eq=False):
    """What can be read inside one step or block."""

    tasks: frozenset[str]
    iterators: tuple[str, ...]  # outermost loop first
    iter_keys: frozenset[str]
    step_keys: frozenset[str]
    input_keys: frozenset[str]


class AnalysisContext:
    """A document with all its templates, and what its parts define."""

    def __init__(self, document: DocumentSyntax, reader: Reader) -> None:
        self.document = document
        self.reader = reader
        self._bodies: dict[int, Body] = {}
        running = document.running
        self.sites = TemplateSites(document)
        self.steps: frozenset[str] = frozenset(document.step_names())
        self._sets = {id(body): _all_sets(body) for body in document.bodies()}
        sets = [assigned for found in self._sets.values() for assigned in found]
        self.ctx_keys = frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "ctx")
        # A task that remembers something between executions (`incremental`) writes `state.<step>`.
        self.state_keys = frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "state") | {*self.steps}
        self.args_keys = frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "args")
        self.workload_keys = frozenset(document.workload.entries) if document.workload else frozenset()
        self.keychain = frozenset(entry.name for entry in document.keychain)
        # Steps created at run time may set any key.
        self.has_dynamic_steps = running is not None or any(step.synthesis for step in document.steps)
        if running is not None:
            self.workload_keys |= running.workload.keys()
            self.keychain |= {entry.name for entry in running.keychain}
        self.entry = document.entry()
        self.iterators = frozenset(
            level.iterator for body in document.bodies() for level in body.loops() if level.iterator
        )

    def body(self, body: BodySyntax) -> Body:
        """What the templates of one step or block can read."""
        known = self._bodies.get(id(body))
        if known is None:
            known = self._bodies[id(body)] = _body(body, self.sets_of(body))
        return known

    def sets_of(self, body: BodySyntax) -> list[SetSyntax]:
        """Every assignment of a step or block, its arcs' included."""
        return self._sets[id(body)]

    def called_keys(self, body: BodySyntax) -> frozenset[str]:
        """Keys of `ctx` that the blocks called by a step or block may set."""
        if not self.document.blocks:
            return frozenset()
        return frozenset(key for name in self._called(body) for key in self._block_keys[name])

    def blocks_called_by(self, task: TaskSyntax) -> list[BlockSyntax]:
        """The blocks that a call certainly runs: the one that it names, and those called from there."""
        called = blocks_called(_body_of(task))
        if not called:
            return []
        found = self._called(_body_of(task))
        return [block for block in self.document.blocks if block.name in found]

    def keys_set_by_call(self, task: TaskSyntax) -> frozenset[str]:
        """Keys of `ctx` that the blocks of one call may set."""
        return self.called_keys(_body_of(task))

    def _called(self, body: BodySyntax) -> set[str]:
        """Every block that may run when this step or block runs."""
        blocks = {block.name: block for block in self.document.blocks}
        called: set[str] = set()
        pending: list[BodySyntax] = [body]
        while pending:
            names = blocks_called(pending.pop())
            for name in blocks if names is None else names:
                if name in blocks and name not in called:
                    called.add(name)
                    pending.append(blocks[name])
        return called

    @cached_property
    def _block_keys(self) -> dict[str, set[str]]:
        return {
            block.name: {each.keys[0] for each in self.sets_of(block) if each.scope == "ctx"}
            for block in self.document.blocks
        }

    def report_inside(
        self, code: str, site: TemplateSite, offset: int, length: int, message: str, hint: str = ""
    ) -> None:
        """Record a diagnostic at some characters of a template."""
        self.reader.findings.add_inside(code, site.node, offset, length, message, hint)

    def report_read(self, code: str, site: TemplateSite, read: Read, message: str, hint: str = "") -> None:
        """Record a diagnostic at a name that a template reads."""
        text = site.node.text
        stop = read.offset + len(read.path[0])
        written = ".".join(read.path)
        if text.startswith(written, read.offset):
            stop = read.offset + len(written)
        self.report_inside(code, site, read.offset, stop - read.offset, message, hint)


def _all_sets(body: BodySyntax) -> list[SetSyntax]:
    found = list(body.sets)
    for task in body.tasks():
        found += task.all_sets()
    for arc in body.arcs:
        found += arc.sets
    return found


def blocks_called(body: BodySyntax) -> set[str] | None:
    """The blocks that the tasks of a step or block name; None when one of them is a template."""
    called: set[str] = set()
    for task in body.tasks():
        if task.kind == "workbook":
            block = task.parameters.get("block")
            if block is None or not isinstance(block.value, Scalar) or is_template(block.value):
                return None
            called.add(block.value.text)
    return called


def _body_of(task: TaskSyntax) -> BodySyntax:
    """A body that consists of one task."""
    return BodySyntax(task.node, task.path, task.name, task.name_node, items=[task])


def _body(body: BodySyntax, sets: list[SetSyntax]) -> Body:
    levels = list(body.loops())
    return Body(
        tasks=frozenset(task.name for task in body.tasks()) | {construct.name for construct in body.constructs()},
        iterators=tuple(level.iterator or "" for level in levels),
        iter_keys=frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "iter"),
        step_keys=frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "step"),
        input_keys=frozenset(body.input.entries) if body.input else frozenset(),
    )


def is_block(body: BodySyntax | None) -> bool:
    """Whether this is a workbook block, whose callers are unknown, or a compensation, which reads names of its step."""
    return isinstance(body, BlockSyntax | CompensationSyntax)
