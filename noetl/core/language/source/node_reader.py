"""Read nodes against the grammar: expect a mapping, a list, a name, a known key.

The reader reports what does not match the grammar and omits it; it never stops and never raises. A dialect provides
the keys that it deprecates and the keys that it rejects.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.diagnostics import Findings, did_you_mean
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.foreign_idioms import KEYS
from noetl.core.language.syntax.grammar import DIRECTIVES, SHAPES, TYPE_NAMES, Key, Shape
from noetl.core.language.syntax.key_places import place_of_key
from noetl.core.model.tool import ToolSpec
from noetl.core.templates.template import is_template as is_templated

Fields = dict[str, tuple[Scalar, Node]]


class ReplacedKey(NamedTuple):
    """A deprecated or rejected key of the grammar: its diagnostic, and the replacement."""

    code: str
    message: str
    hint: str
    canonical_key: str = ""  # the key that it replaces, which is then not reported as missing


ReplacedKeys = Table[tuple[str, str], ReplacedKey]  # (shape, key) -> replacement


class Reader:
    """Reads nodes against the grammar and reports what does not match."""

    def __init__(
        self,
        findings: Findings,
        specs: Table[str, ToolSpec],
        *,
        deprecated: ReplacedKeys | None = None,
        rejected: ReplacedKeys | None = None,
    ) -> None:
        self.findings = findings
        self.specs = specs
        self.deprecated = deprecated or {}
        self.rejected = rejected or {}
        self.deprecated_count = 0
        self.rejected_count = 0

    def add(self, code: str, node: Node, message: str, hint: str = "") -> None:
        """Record a diagnostic."""
        self.findings.add(code, node, message, hint)

    # --- whole shapes ---

    def shape(
        self, node: Node | None, name: str, *, what: str = "", defer: bool = False, reported: tuple[str, ...] = ()
    ) -> Fields:
        """The known keys of a mapping of this shape; values of a wrong type are reported and omitted.

        With `defer` the caller handles unknown keys; missing keys in `reported` are not reported again.
        """
        shape = SHAPES[name]
        mapping = self.mapping(node, what or shape.noun)
        if mapping is None:
            return {}
        fields: Fields = {}
        for key, (key_node, value) in mapping.entries.items():
            known = shape.keys.get(key)
            if known is None:
                replaced = self.rejected.get((name, key))
                if defer:
                    fields[key] = (key_node, value)
                elif replaced is not None:
                    self.report_rejected(name, key, key_node)
                    if replaced.canonical_key and replaced.canonical_key not in mapping.entries:
                        fields[replaced.canonical_key] = (key_node, value)
                elif key == "do" and shape.name not in _FREE:
                    self.report_control(key_node)
                elif shape.open:
                    fields[key] = (key_node, value)
                elif shape.lenient:
                    self._report_unknown_option(key_node, key, value, shape)
                else:
                    self._report_unknown(key_node, key, shape)
                continue
            if known.state != "canonical" and not (name == "task" and key == "args" and isinstance(value, Sequence)):
                # A list of arguments is a parameter of the kind.
                self._report_state(name, key, known, key_node)
                if known.state == "reserved":
                    self.report_directives(value)
            if self.check_type(value, known, key):
                fields[key] = (key_node, value)
        for key, known in shape.keys.items():
            if known.required and key not in mapping.entries and key not in fields and key not in reported:
                self.report_missing(mapping, key, known, shape)
        return fields

    def report_rejected(self, shape: str, key: str, key_node: Node) -> bool:
        """Report a key that is rejected; returns whether it is."""
        replaced = self.rejected.get((shape, key))
        if replaced is None:
            return False
        self.rejected_count += 1
        self.add(replaced.code, key_node, replaced.message, replaced.hint)
        return True

    def report_deprecated(self, shape: str, key: str, node: Node) -> None:
        """Report a deprecated key."""
        replaced = self.deprecated.get((shape, key))
        if replaced is not None:
            self.deprecated_count += 1
            self.add(replaced.code, node, replaced.message, replaced.hint)

    def _report_state(self, shape: str, key: str, known: Key, node: Node) -> None:
        if known.state == "v10":
            self.report_deprecated(shape, key, node)
        elif known.state == "reserved":
            self.add("reserved-word", node, f"`{key}` is reserved: it is accepted and ignored", "remove it")

    def report_control(self, key_node: Node) -> None:
        """Report a `do` that is not in a task's rules."""
        message = "`do` is valid only under a task's `spec.policy.rules`"
        hint = "write a rule of the task: `spec: {policy: {rules: [{when: ..., then: {do: ...}}]}}`"
        self.add("control-outside-task", key_node, message, hint)

    def report_directives(self, node: Node) -> None:
        """Report every `do` inside a part that has no rules."""
        if isinstance(node, Mapping):
            for key, (key_node, value) in node.entries.items():
                if key == "do" and text_of(value) in DIRECTIVES:
                    self.report_control(key_node)
                self.report_directives(value)
        elif isinstance(node, Sequence):
            for item in node.items:
                self.report_directives(item)

    def _report_unknown_option(self, node: Scalar, key: str, value: Node, shape: Shape) -> None:
        """Report an unknown key of a spec or policy, which has no effect."""
        valid = [name for name, known in shape.keys.items() if known.state in ("canonical", "accepted")]
        hint = KEYS.get(shape.name, {}).get(key) or did_you_mean(key, valid, " ").strip()
        hint = hint or place_of_key(key, shape.name) or "valid here: " + ", ".join(valid)
        self.add("unknown-spec-key", node, f'{with_article(shape.noun)} has no key "{key}": it has no effect', hint)
        self.report_directives(value)

    def _report_unknown(self, node: Scalar, key: str, shape: Shape) -> None:
        valid = [name for name, known in shape.keys.items() if known.state in ("canonical", "accepted")]
        hint = KEYS.get(shape.name, {}).get(key) or did_you_mean(key, valid, " ").strip()
        if not hint and "\u00a0" in key:
            hint = "the key contains a non-breaking space: replace it with a space"
        if not hint and shape.name == "step" and any(key in spec.fields for spec in self.specs.values()):
            hint = f"`{key}` is a parameter of a tool: write it under `tool`"
        hint = hint or place_of_key(key, shape.name) or "valid here: " + ", ".join(valid)
        self.add("unknown-key", node, f'{with_article(shape.noun)} has no key "{key}"', hint)

    def report_missing(self, node: Node, key: str, known: Key, shape: Shape) -> None:
        """Report a missing required key."""
        doc = known.doc[:1].lower() + known.doc[1:].removesuffix(".")
        hint = f"add `{key}: {known.choices[0]}`" if len(known.choices) == 1 else doc and f"add `{key}: ...`: {doc}"
        self.add("missing-key", node, f'this {shape.noun} is missing the required key "{key}"', hint)

    # --- single values ---

    def check_type(self, node: Node, known: Key, key: str) -> bool:
        """Whether a value has the type of its key; if not, it is reported."""
        kind = known.type
        if kind == "mapping" and known.state == "canonical" and not isinstance(node, Mapping):
            if not isinstance(node, Scalar) or node.value is not None:
                self.mapping(node, f"`{key}` block")
            return False
        if kind in _READ_INSIDE:
            return True  # checked by the reader of the contents
        if not isinstance(node, Scalar):
            self.add("wrong-type", node, f"`{key}` must be {TYPE_NAMES[kind]}, not {describe_node(node)}", known.doc)
            return False
        if kind == "template":
            if node.value is None:
                self.add("wrong-type", node, f"`{key}` is empty", known.doc)
                return False
            if isinstance(node.value, str | bool):
                return True
            self.add("wrong-type", node, f"`{key}` must be {TYPE_NAMES[kind]}, not {describe_node(node)}", known.doc)
            return False
        if node.value is None:
            self.add("wrong-type", node, f"`{key}` is empty", known.doc)
            return False
        if kind == "boolean":
            return self._boolean(node, key)
        if kind in ("count", "number"):
            return self._number(node, known, key)
        if known.choices and not is_template(node):
            return self.check_choice(node, key, known.choices)
        if known.required and not node.text.strip():
            self.add("wrong-value", node, f"`{key}` is empty", known.doc)
            return False
        return True

    def check_choice(self, node: Scalar, key: str, choices: tuple[str, ...]) -> bool:
        """Whether a value is one of those allowed; if not, it is reported."""
        if node.text in choices:
            return True
        allowed = ", ".join(choices)
        hint = did_you_mean(node.text, choices, f"write one of: {allowed}" if len(choices) > 1 else f"write {allowed}")
        self.add("wrong-value", node, f'`{key}` cannot be "{shorten(node.text)}"', hint)
        return False

    def _boolean(self, node: Scalar, key: str) -> bool:
        if isinstance(node.value, bool):
            return True
        self.add(
            "wrong-type",
            node,
            f'`{key}` must be true or false, not "{shorten(node.text)}"',
            "only true and false are booleans",
        )
        return False

    def _number(self, node: Scalar, known: Key, key: str) -> bool:
        if is_template(node) and known.templated:
            return True
        value = node.value
        whole = known.type == "count"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            what = "a whole number" if whole else "a number"
            also = "" if known.templated else " (not a template)"
            self.add("wrong-type", node, f'`{key}` must be {what}{also}, not "{shorten(node.text)}"', known.doc)
            return False
        if known.least is not None and value < known.least:
            self.add("wrong-value", node, f"`{key}` must be at least {known.least:g}, not {node.text}", known.doc)
            return False
        if known.most is not None and value > known.most:
            self.add("wrong-value", node, f"`{key}` must be at most {known.most:g}, not {node.text}", known.doc)
            return False
        return True

    def mapping(self, node: Node | None, what: str) -> Mapping | None:
        """The node as a mapping; another type is reported."""
        if isinstance(node, Mapping):
            return node
        if node is not None:
            whole = "write its keys: a template cannot replace the whole mapping"
            hint = whole if is_template(node) else "write `key: value` lines"
            self.add("wrong-type", node, f"{with_article(what)} must be a mapping, not {describe_node(node)}", hint)
        return None

    def sequence(self, node: Node | None, what: str, first: str = "") -> list[Node]:
        """The node's items; another type is reported."""
        if isinstance(node, Sequence):
            return node.items
        if node is not None:
            hint = f"write `- {first}` lines" if first else "write `- item` lines"
            self.add("wrong-type", node, f"{what} must be a list, not {describe_node(node)}", hint)
        return []

    def texts(self, node: Node | None, what: str) -> list[Scalar]:
        """A list of texts, or one text."""
        if isinstance(node, Scalar) and node.value is not None:
            return [node]
        found = []
        for item in self.sequence(node, what):
            if isinstance(item, Scalar) and item.value is not None:
                found.append(item)
            else:
                self.add("wrong-type", item, f"the items of {what} must be text, not {describe_node(item)}")
        return found

    def name(self, node: Node | None, what: str) -> str | None:
        """A name; an invalid one is reported."""
        if not isinstance(node, Scalar) or node.value is None or not node.text.strip():
            if node is not None:
                self.add(
                    "bad-name",
                    node,
                    f"the name of {with_article(what)} must be text, not {describe_node(node)}",
                    "use letters, digits and _",
                )
            return None
        text = node.text
        if text.isidentifier():  # letters of any alphabet
            return text
        if text[0] != "-" and text.replace("-", "_").isidentifier():
            read = "iter" if what == "iterator" else "steps"
            hint = f'templates can read it only as {read}["{text}"]; write "{text.replace("-", "_")}"'
            self.add("dashed-name", node, f'the {what} name "{text}" has a dash', hint)
            return text
        if is_template(node):
            self.add(
                "bad-name", node, f"the name of {with_article(what)} cannot be a template", "write the name itself"
            )
            return None
        hint = "use letters, digits and _, starting with a letter"
        self.add("bad-name", node, f'"{shorten(text)}" is not a valid name for {with_article(what)}', hint)
        return text


_FREE = frozenset(["metadata", "keychain"])  # shapes whose other keys are data
_READ_INSIDE = frozenset(["any", "list", "shapes", "texts", "mapping", "shape", "tasks", "set", "blocks", "else"])


def is_template(node: Node | None) -> bool:
    """Whether a scalar has a template in it."""
    return isinstance(node, Scalar) and isinstance(node.value, str) and has_template(node.value)


def has_template(text: str) -> bool:
    """Whether a text contains a template."""
    return "{" in text and is_templated(text)


def text_of(node: Node | None) -> str | None:
    """A scalar's text, None for anything else."""
    return node.text if isinstance(node, Scalar) and node.value is not None else None


def describe_node(node: Node) -> str:
    """The type of a node and its value, for messages."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Scalar):
        if node.value is None:
            return "null"
        if isinstance(node.value, bool):
            return f"the boolean {node.text}"
        if isinstance(node.value, int | float):
            return f"the number {shorten(node.text)}"
        return f'the text "{shorten(node.text)}"'
    return "nothing"


def with_article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"an {noun}" if noun.lstrip("`")[:1] in "aeiou" else f"a {noun}"


def shorten(text: str, length: int = 40) -> str:
    """Text that fits into a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
