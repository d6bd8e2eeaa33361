"""The reference pages of tool kinds: the first part is generated from each kind's SPEC, the rest is written by hand.

Text below the line `<!-- by hand -->` is preserved.
"""

from __future__ import annotations

from pathlib import Path

from noetl.core.model.outcome import ERROR_KINDS
from noetl.core.model.tool import Field, ToolSpec
from noetl.tools import registry as tools

BY_HAND = "<!-- by hand -->"


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


def fields_table(fields: dict[str, Field]) -> list[str]:
    """The lines of the table of parameters."""
    return ["| parameter | type | |", "|---|---|---|", *(_row(name, field) for name, field in fields.items())]


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
    for name, text in tool_pages().items():
        path = folder / name
        _, mark, rest = path.read_text(encoding="utf-8").partition(BY_HAND) if path.exists() else ("", "", "")
        path.write_text(text + (f"\n{mark}{rest}" if mark else ""), encoding="utf-8")
