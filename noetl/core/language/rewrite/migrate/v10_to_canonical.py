"""Migrate v10 text to canonical text: comments, blank lines and order stay.

`args` becomes `input`, `outcome` becomes `output`, `set_ctx` and `set_iter` become `set`, a labelled task gets a
`name`. The `args` of an arc, which travel with the token, become a `set` on `ctx`, and the steps that read them get an
`input`. What cannot be translated exactly is marked with a comment and listed with its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Table
from typing import Any

from noetl.core.language.compile import compile_playbook
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.rewrite.concrete_edits import (
    NeedsExpansion,
    joined,
    new_entry,
    new_scalar,
    remove,
    rename,
)
from noetl.core.language.rewrite.concrete_syntax import ConcreteCollection, Element
from noetl.core.language.rewrite.migrate.rewriting import (
    COMMENT_PREFIX as COMMENT_PREFIX,
)
from noetl.core.language.rewrite.migrate.rewriting import (
    Migration,
    Rewriting,
    remaining_errors,
    rewritten,
)
from noetl.core.language.rewrite.migrate.token_args import TokenArgs
from noetl.core.language.rewrite.spellings import add_scope, name_labelled_tasks
from noetl.core.language.source.nodes import Mapping, Node, Sequence
from noetl.core.language.syntax.tree import StepSyntax
from noetl.core.model.tool import ToolSpec
from noetl.core.templates.views import HELPERS

# Where `args` has only the values of the token, because the step's `input` is not evaluated yet.
BEFORE_INPUT = (at.ADMIT, at.STEP_INPUT, at.LOOP_INPUT, at.LOOP_IN, at.INNER_LOOP_IN, at.LIMIT)


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a v10 playbook that compiles; canonical text is returned unchanged."""
    return rewritten(text, specs, migrate_text)


def migrate_text(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """One attempt; raises if the result would not mean the same."""
    compiled = compile_playbook(text, file="", specs=specs)
    if compiled.document is None or compiled.playbook is None or compiled.document.surface != "v10":
        return Migration(text, ())
    migration = _V10Migration(Rewriting(text, specs, compiled, compiled.document))
    migration.run()
    made = migration.rewriting.finish(migration.with_token_args)
    notes = [*made.notes, *remaining_errors(made.text, specs, strict=True)]
    return Migration(made.text, tuple(sorted(notes)))


class _V10Migration:
    """The rewrites of one document."""

    def __init__(self, rewriting: Rewriting) -> None:
        self.rewriting = rewriting
        self.document = rewriting.document
        self.syntax = rewriting.syntax
        self.token_args = TokenArgs(rewriting.syntax, rewriting.context)
        self.new_inputs: dict[str, dict[str, str]] = {}
        self.joined: set[int] = set()

    def run(self) -> None:
        """Apply all rewrites to the document."""
        for site in self.rewriting.context.sites.templates:
            self.rewriting.replace(site, self._replacements(site))
        for step in self.syntax.steps:
            self._arcs(step)
            self._inputs(step)
        for body in self.syntax.bodies():
            self._rename_args(body.node)
            if isinstance(body.node, Mapping):
                self._sets(body.node)
            for task in body.tasks():
                self._rename_args(task.node)
                for rule in task.rules:
                    if rule.then is not None:
                        self._sets(rule.then)
        name_labelled_tasks(self.document, self.syntax.node)

    # ── keys ─────────────────────────────────────────────────────────────────────────────

    def _rename_args(self, node: Node) -> None:
        if isinstance(node, Mapping) and "args" in node.entries:
            key, value = node.entries["args"]
            if isinstance(value, Sequence):
                return  # a parameter of the kind
            if "input" in node.entries:
                self.rewriting.note(key, "both `args` and `input` are given; `input` is used, remove `args`")
            else:
                rename(self.document.scalars.get(key.start), "input")

    def _sets(self, then: Mapping) -> None:
        """Rewrite `set_ctx` and `set_iter` to one `set`."""
        words = [word for word in ("set_ctx", "set_iter", "set") if word in then.entries]
        found = self.document.collection(then.start)
        if not any(word in _SCOPE_OF for word in words) or id(then) in self.joined:
            return
        self.joined.add(id(then))
        blocks = [found.get(word) for word in words] if found is not None else []
        if found is None or any(each is None for each in blocks):
            raise NeedsExpansion
        _join(found, [each for each in blocks if each is not None])

    # ── templates ────────────────────────────────────────────────────────────────────────

    def _replacements(self, site: TemplateSite) -> dict[int, tuple[str, str]]:
        found: dict[int, tuple[str, str]] = {}
        value = site.node.value
        for read in site.template.reads:
            if read.path[0] in _ROOTS and value.startswith(read.path[0], read.offset):
                old, new = self._replacement(site, read, value)
                if old != new:
                    found[read.offset] = (old, new)
        return found

    def _replacement(self, site: TemplateSite, read: Read, value: str) -> tuple[str, str]:
        """The characters of a read that change, and their replacement."""
        root = read.path[0]
        if root == "args":
            name = read.path[1] if len(read.path) > 1 else ""
            base = self.token_args.base(site.body, name) if isinstance(site.body, StepSyntax) else None
            written = _ATTRIBUTE.match(value, read.offset)
            if base is not None and written and any(site.visibility is visibility for visibility in BEFORE_INPUT):
                return written.group(), f"ctx.{base}"
            return "args", "input"
        found = _RESULT_REF.match(value, read.offset)
        if found is not None:
            return found.group(), "output.ref"
        found = _RESULT.match(value, read.offset)
        if found is None:
            return root, "output"
        kind = _kind_of_payload(site)
        below = _BELOW.match(value, found.end())
        if kind in _CLOSED_PAYLOADS:
            return found.group(), "output.data"
        if found.group("data"):
            return self._nested_data(found.group(), below)
        if below is None:
            whole = value[found.end() :].lstrip()[:1] not in (".", "[")
            return found.group(), "output" if whole and kind in _WITH_HELPERS else "output.data"
        field = below.group().replace(" ", "")
        if (below.group("name") or below.group("text")) in _ENVELOPE:
            return found.group() + below.group(), f"(output.data{field} | default(output{field}))"
        return found.group(), "output.data"

    def _nested_data(self, old: str, below: re.Match[str] | None) -> tuple[str, str]:
        """v10 reads the payload's own `data` key, and the payload itself if there is none."""
        if below is None:
            return old, "(output.data.data | default(output.data))"
        key = below.group("name") or below.group("text")
        field = below.group().replace(" ", "")
        other = f"output.data{field}" + (f" | default(output{field})" if key in _HTTP_FIELDS else "")
        return old + below.group(), f"(output.data.data{field} | default({other}))"

    # ── arguments of the token ───────────────────────────────────────────────────────────

    def _arcs(self, step: StepSyntax) -> None:
        for arc in step.arcs:
            node = arc.node
            if not isinstance(node, Mapping) or "args" not in node.entries:
                continue
            found = self.document.collection(node.start)
            holder = found.get("args") if found is not None else None
            if found is None or holder is None or not isinstance(holder.value, ConcreteCollection):
                raise NeedsExpansion
            if not holder.value.elements:
                remove(found, holder)
                continue
            for element in holder.value.elements:
                name, _, rest = element.name.removeprefix("args.").partition(".")
                base = self.token_args.bases[arc.target or "", name]
                rename(element.key, f"ctx.{base}" + (f".{rest}" if rest else ""))
            rename(holder.key, "set_ctx")
            own = found.get("set")
            _join(found, [holder, *([own] if own is not None else [])])

    def _inputs(self, step: StepSyntax) -> None:
        """Add the values that arcs pass to a step to its `input`."""
        made: dict[str, str] = {}
        for name in self.token_args.wanted(step):
            bases = self.token_args.reaching(step, name)
            known = sorted(base for base in bases if base)
            if len(known) > 1:
                words = " or ".join(f"`ctx.{base}`" for base in known)
                self.rewriting.note(step.name_node, f"different arcs set `input.{name}`; read it from {words}")
            elif None in bases:
                self.rewriting.note(step.name_node, f"only some arcs set `input.{name}`; it is null on the others")
                made[name] = f"{{{{ ctx.{known[0]} | default(none) }}}}"
            else:
                made[name] = f"{{{{ ctx.{known[0]} }}}}"
        if made:
            self.new_inputs[step.name] = made
            self._add_input(step, [new_entry(name, new_scalar(value)) for name, value in made.items()])

    def _add_input(self, step: StepSyntax, entries: list[Element]) -> None:
        found = self.document.collection(step.node.start)
        if found is None:
            raise NeedsExpansion
        holder = found.get("input") or found.get("args")
        if holder is None:
            node = step.node
            if isinstance(node, Mapping) and ("input" in node.entries or "args" in node.entries):
                raise NeedsExpansion  # it comes from a merge key
            block = ConcreteCollection(elements=entries, flow=found.flow, changed=True)
            after = next((number for number, each in enumerate(found.elements) if each.name == "step"), -1)
            found.elements.insert(after + 1, new_entry("input", block))
            found.changed = True
        elif isinstance(holder.value, ConcreteCollection):
            holder.value.elements = [*entries, *holder.value.elements]
            holder.value.changed = True
        else:
            raise NeedsExpansion

    def with_token_args(self, model: Any) -> Any:
        """The model of the source with the arguments of tokens as keys of `ctx`."""
        for step in model["steps"]:
            for arc in step["router"]["arcs"]:
                for assigned in arc["assignments"]:
                    if assigned["scope"] == "args":
                        name, *rest = assigned["keys"]
                        assigned["scope"] = "ctx"
                        assigned["keys"] = [*self.token_args.bases[arc["target"], name].split("."), *rest]
            step["input"] = {**self.new_inputs.get(step["name"], {}), **step["input"]}
        return model


def _join(then: ConcreteCollection, holders: list[Element]) -> None:
    """Join `set_ctx`, `set_iter` and `set` into one `set` at the place of the first that is written."""
    place = min(holders, key=then.elements.index)
    blocks: list[tuple[Element, ConcreteCollection]] = []
    for holder in holders:
        block = holder.value
        if not isinstance(block, ConcreteCollection) or (block.prefix and len(holders) > 1):
            raise NeedsExpansion
        if holder.name in _SCOPE_OF:
            add_scope(block, _SCOPE_OF[holder.name])
        blocks.append((Element(block) if holder is place else holder, block))
    if len(blocks) > 1:
        elements, tail = joined(blocks)
        flow = all(block.flow for _, block in blocks if block.elements)
        place.value = ConcreteCollection(elements=elements, flow=flow, tail=tail, changed=True)
        then.elements = [each for each in then.elements if each is place or each not in holders]
        then.changed = True
    rename(place.key, "set")


def _kind_of_payload(site: TemplateSite) -> str | None:
    """The kind of the task whose payload a template reads; None if it is not known."""
    task = site.task if site.visibility in (at.RULE, at.TASK_SET) else None
    if task is None and site.visibility in (at.STEP_SET, at.ARC) and site.body is not None and site.body.loop is None:
        tasks = list(site.body.tasks())
        task = tasks[0] if len(tasks) == 1 else None
    return None if task is None else task.kind


# Kinds whose payload has fixed keys without `data`.
_CLOSED_PAYLOADS = frozenset({"postgres", "duckdb", "sqlite", "shell"})
# Kinds whose result as a whole may have more than the payload (None: a loop, or one of several tasks).
_WITH_HELPERS = frozenset({"http", "workbook", "playbook", None})
# Fields of the envelope, which v10 reads if the payload has no such key.
_ENVELOPE = frozenset({"status", "error", "meta", "ref", "_ref", "results", "stats", "context"}) | HELPERS
_SCOPE_OF = {"set_ctx": "ctx", "set_iter": "iter"}
_ROOTS = frozenset({"outcome", "output", "args"})
_ATTRIBUTE = re.compile(r"args\s*(?:\.\s*\w+|\[\s*(['\"])\w+\1\s*\])")
_BELOW = re.compile(r"""\s*\.\s*(?P<name>[^\W\d]\w*)\b(?!\s*\()|\s*\[\s*(['"])(?P<text>[^'"]*)\2\s*\]""")
_HTTP_FIELDS = frozenset({"body", "status_code", "headers", "url"})
_PART = r"""(?:\s*\.\s*{0}\b|\s*\[\s*(?:'{0}'|"{0}")\s*\])"""
_RESULT = re.compile(r"(?:outcome|output)" + _PART.format("result") + "(?P<data>" + _PART.format("data") + ")?")
_RESULT_REF = re.compile(r"(?:outcome|output)" + _PART.format("result_ref"))
