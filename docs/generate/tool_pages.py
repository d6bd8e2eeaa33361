"""The reference pages of tool kinds: the first part is generated from each kind's SPEC, the rest is written by hand.

Text below the line `<!-- by hand -->` is preserved, up to the line `<!-- all fields -->`: what follows are the fields
of parameters that have them by kind, generated too.
"""

from __future__ import annotations

from pathlib import Path

from noetl.core.model.outcome import ERROR_KINDS
from noetl.core.model.tool import Field, Members, ToolSpec
from noetl.tools import registry as tools

BY_HAND = "<!-- by hand -->"
ALL_FIELDS = "<!-- all fields -->"


def tool_pages() -> dict[str, str]:
    """The generated part of every page by file name."""
    pages = {f"{kind}.md": tool_page(spec) for kind, spec in tools.kinds().items()}
    pages["index.md"] = _index()
    return pages


def tool_page(spec: ToolSpec) -> str:
    """The generated part of a kind's page."""
    lines = [f"# `kind: {spec.kind}`", "", spec.doc, ""]
    if spec.aliases:
        lines += [f"Also written {_words(spec.aliases)}.", ""]
    if spec.fields:
        lines += ["## Parameters", "", *fields_table(spec.fields), ""]
    if spec.open_fields:
        lines += ["Other parameters are passed on as inputs.", ""]
    if spec.spec_keys:
        rows = [f"| `{name}` | {_cell(doc)} |" for name, doc in spec.spec_keys.items()]
        lines += ["## `spec`", "", "| key | |", "|---|---|", *rows, ""]
    if spec.helpers:
        rows = [f"| `output.{name}.{field}` |" for name, nulls in spec.helpers.items() for field in nulls]
        lines += ["## Beside `output.data`", "", "Null where it does not apply.", "", "| field |", "|---|", *rows, ""]
    if spec.example:
        lines += ["## Example", "", "```yaml part", spec.example.rstrip(), "```", ""]
    return "\n".join(lines)


def last_parts() -> dict[str, str]:
    """The last part of a page by file name: the fields of parameters that have them by kind."""
    found = {}
    for kind, spec in tools.kinds().items():
        lines = [line for name, declared in spec.fields.items() for line in _variants(name, declared.variants)]
        if lines:
            found[f"{kind}.md"] = "\n".join([ALL_FIELDS, "", *lines])
    return found


def fields_table(fields: dict[str, Field]) -> list[str]:
    """The lines of the table of parameters."""
    return ["| parameter | type | |", "|---|---|---|", *(_row(name, field) for name, field in fields.items())]


def _variants(name: str, variants: dict[str, Members]) -> list[str]:
    """The fields of a parameter by `kind`: those of every kind first. Kinds with the same fields are one group."""
    groups: list[tuple[list[str], dict[str, Field]]] = []
    for kind, members in variants.items():
        for kinds, fields in groups:
            if fields == members.fields:
                kinds.append(kind)
                break
        else:
            groups.append(([kind], members.fields))
    if not groups:
        return []
    first, *others = [fields for _, fields in groups]
    common = {name: field for name, field in first.items() if all(each.get(name) == field for each in others)}
    lines = [f"## All fields of `{name}`", "", "Of every kind:", "", *fields_table(common), *_members(common), ""]
    for kinds, fields in groups:
        of_kind = tools.kinds()[kinds[0]].fields if kinds[0] in tools.kinds() else {}
        others = {name: field for name, field in fields.items() if name not in common}
        shared = tuple(name for name, field in others.items() if of_kind.get(name) == field)
        own = {name: field for name, field in others.items() if name not in shared}
        lines += [f"{_words(tuple(kinds))}:", "", *fields_table(own)]
        lines += ["", f"As in kind [`{kinds[0]}`]({kinds[0]}.md): {_words(shared)}."] if shared else []
        lines += [*_members(own), ""]
    return lines


def _members(fields: dict[str, Field]) -> list[str]:
    """The members of the fields that are mappings."""
    lines = []
    for name, declared in fields.items():
        if declared.members is not None:
            table = fields_table(declared.members.fields)
            lines += ["", table[0].replace("parameter", f"in `{name}`"), *table[1:]]
    return lines


def _row(name: str, field: Field) -> str:
    notes = [_cell(field.doc)]
    if field.required:
        notes.append("Required.")
    if field.choices:
        notes.append(f"One of {_words(field.choices)}.")
    if field.aliases:
        notes.append(f"Also {_words(field.aliases)}.")
    if field.raw:
        notes.append("Not a template.")
    return f"| `{name}` | {field.type} | {' '.join(notes)} |"


def _index() -> str:
    lines = ["# Tool kinds", "", "| kind | |", "|---|---|"]
    for kind, spec in tools.kinds().items():
        lines.append(f"| [`{kind}`]({kind}.md) | {_cell(spec.doc.partition('. ')[0].rstrip('.'))} |")
    lines += [
        "",
        "## Error kinds",
        "",
        "A closed list; `retryable` is what `output.error.retryable` says by default.",
        "",
    ]
    lines += ["| kind | retryable |", "|---|---|"]
    lines += [f"| `{kind}` | {'yes' if again else 'no'} |" for kind, again in ERROR_KINDS.items()]
    return "\n".join([*lines, ""])


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_tool_pages(folder: Path) -> None:
    """Write the generated parts and keep the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    last = last_parts()
    for name, text in tool_pages().items():
        path = folder / name
        _, mark, rest = path.read_text(encoding="utf-8").partition(BY_HAND) if path.exists() else ("", "", "")
        by_hand = rest.partition(ALL_FIELDS)[0]
        path.write_text(text + (f"\n{mark}{by_hand}" if mark else "") + last.get(name, ""), encoding="utf-8")
