"""The reference page of the grammar, generated from the tables of the reader."""

from __future__ import annotations

from noetl.core.language.syntax.grammar import (
    KEYCHAIN_ALIASES,
    KEYCHAIN_KINDS,
    REDUCERS,
    SHAPES,
    TYPE_NAMES,
    Key,
    Shape,
)


def grammar_page() -> str:
    """The text of docs/reference/grammar.md."""
    parts = [
        "# The grammar",
        "",
        "Every mapping of a playbook and its keys, as used by the validator, `noetl schema` and completion. What",
        "they mean when a playbook runs: [the language](language.md).",
        "",
    ]
    for shape in SHAPES.values():
        parts += _section(shape)
    parts += _keychain()
    return "\n".join(parts).rstrip() + "\n"


def _section(shape: Shape) -> list[str]:
    lines = [f"## {shape.title}", "", shape.doc, "", "| key | value | |", "|---|---|---|"]
    for key, known in shape.keys.items():
        if known.state == "canonical":
            lines.append(f"| `{key}`{' (required)' if known.required else ''} | {takes(known)} | {known.doc} |")
    others = [(key, known) for key, known in shape.keys.items() if known.state in ("v10", "accepted")]
    reserved = [f"`{key}`" for key, known in shape.keys.items() if known.state == "reserved"]
    if shape.open:
        lines += ["", "Other keys are allowed."]
    if others:
        lines += [
            "",
            "Also accepted: " + ", ".join(f"`{key}` (write `{known.instead}`)" for key, known in others) + ".",
        ]
    if reserved:
        lines += ["", f"Reserved, without effect: {', '.join(reserved)}."]
    return [*lines, ""]


def takes(known: Key) -> str:
    """A description of the value of a key."""
    if known.type == "shape":
        return _link(known.shape)
    if known.type == "shapes" or (known.type == "list" and known.shape):
        return f"a list of {_link(known.shape)}"
    if known.choices:
        return ", ".join(f"`{choice}`" for choice in known.choices)
    if known.type == "any" and known.shape:
        return _link(known.shape)
    description = TYPE_NAMES[known.type]
    if known.least is not None and known.least > 0:
        description += f", at least {known.least:g}"
    if known.type in ("count", "number") and known.templated:
        description += ", or a template"
    return description


def _link(shape: str) -> str:
    title = SHAPES[shape].title
    return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"


def _keychain() -> list[str]:
    lines = ["## Kinds of keychain entries", "", "| kind | fields |", "|---|---|"]
    for kind, keys in KEYCHAIN_KINDS.items():
        fields = [
            f"`{key}`{' (required)' if known.required else ''}: {known.doc}"
            for key, known in keys.items()
            if known.state == "canonical"
        ]
        lines.append(f"| `{kind}` | {'<br>'.join(fields)} |")
    aliases = ", ".join(f"`{alias}` is `{kind}`" for alias, kind in KEYCHAIN_ALIASES.items())
    lines += ["", f"Kinds that end in `_credential` are `credential`; {aliases}.", ""]
    lines += ["## Reducers", "", ", ".join(f"`{name}`" for name in REDUCERS) + ".", ""]
    return lines
