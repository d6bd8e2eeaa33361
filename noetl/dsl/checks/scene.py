"""What every check looks at."""

from __future__ import annotations

from msgspec import Struct

from noetl.dsl.reading import Reader
from noetl.dsl.sites import Site, Sites
from noetl.dsl.syntax import BlockSyntax, BodySyntax, DocumentSyntax, SetSyntax
from noetl.dsl.templates import Read


class Body(Struct, eq=False):
    """What can be read inside one step or block."""

    tasks: frozenset[str]
    iterators: tuple[str, ...]  # outermost loop first
    iter_keys: frozenset[str]
    step_keys: frozenset[str]
    input_keys: frozenset[str]


class Scene:
    """A document with all its templates, and what its parts define."""

    def __init__(self, document: DocumentSyntax, reader: Reader) -> None:
        self.document = document
        self.reader = reader
        self._bodies: dict[int, Body] = {}
        running = document.around
        self.sites = Sites(document)
        self.steps: frozenset[str] = frozenset(document.step_names())
        sets = [assigned for body in document.bodies() for assigned in all_sets(body)]
        self.ctx_keys = frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "ctx")
        self.args_keys = frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "args")
        self.workload_keys = frozenset(document.workload.entries) if document.workload else frozenset()
        self.keychain = frozenset(entry.name for entry in document.keychain)
        # Steps made at run time may set what they like.
        self.open_ctx = running is not None or any(step.synthesis for step in document.steps)
        if running is not None:
            self.workload_keys |= running.workload.keys()
            self.keychain |= {entry.name for entry in running.keychain}
        self.iterators = frozenset(
            level.iterator
            for body in document.bodies()
            if body.loop is not None
            for level in body.loop.levels()
            if level.iterator
        )

    def body(self, body: BodySyntax) -> Body:
        """What the templates of one step or block can read."""
        known = self._bodies.get(id(body))
        if known is None:
            known = self._bodies[id(body)] = _body(body)
        return known

    def inside(self, code: str, site: Site, offset: int, length: int, message: str, hint: str = "") -> None:
        """Note a finding at some characters of a template."""
        self.reader.findings.inside(code, site.node, offset, length, message, hint)

    def at(self, code: str, site: Site, read: Read, message: str, hint: str = "") -> None:
        """Note a finding at a name that a template reads."""
        text = site.node.text
        stop = read.offset + len(read.path[0])
        written = ".".join(read.path)
        if text.startswith(written, read.offset):
            stop = read.offset + len(written)
        self.inside(code, site, read.offset, stop - read.offset, message, hint)


def all_sets(body: BodySyntax) -> list[SetSyntax]:
    """Every assignment of a step or block, its arcs' included."""
    found = list(body.sets)
    for task in body.tasks():
        found += task.sets
        for rule in task.policy.rules if task.policy else ():
            found += rule.sets
    router = getattr(body, "router", None)
    for arc in router.arcs if router else ():
        found += arc.sets
    return found


def _body(body: BodySyntax) -> Body:
    sets = all_sets(body)
    levels = list(body.loop.levels()) if body.loop else []
    return Body(
        tasks=frozenset(task.name for task in body.tasks()) | {construct.name for construct in body.constructs()},
        iterators=tuple(level.iterator or "" for level in levels),
        iter_keys=frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "iter"),
        step_keys=frozenset(assigned.keys[0] for assigned in sets if assigned.scope == "step"),
        input_keys=frozenset(body.input.entries) if body.input else frozenset(),
    )


def is_block(body: BodySyntax | None) -> bool:
    """Whether this is a workbook block, whose caller is not known."""
    return isinstance(body, BlockSyntax)
