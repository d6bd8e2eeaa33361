"""The form for starting a playbook: one field for each `workload` key.

The type of a field is that of its default; for lists and mappings the form also has their text. The comment after or
above a key is its help. Keys of `workload` that templates read without a default are required fields. Keys with names
of secrets are marked, and their defaults are not part of the form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Table
from textwrap import dedent
from typing import Any

from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.model.playbook import Playbook
from noetl.core.model.secret_names import is_secret_name


def form_document(text: str, playbook: Playbook) -> dict[str, Any]:
    """The fields of a playbook's form, in the author's order, and the secrets that it uses."""
    root = read_source(text).root
    workload = root.get("workload") if isinstance(root, Mapping) else None
    entries = workload.entries if isinstance(workload, Mapping) else {}
    lines = text.splitlines()
    fields = [_field(key, value, text, _help(lines, name.line)) for key, (name, value) in entries.items()]
    required = dict.fromkeys(key for key in _required_keys(root) if key not in playbook.workload)
    fields += [
        {"name": key, "type": "any", "required": True, "secret": is_secret_name(key), "help": ""} for key in required
    ]
    return {
        "path": playbook.path,
        "name": playbook.name,
        "description": playbook.description,
        "fields": fields,
        "keychain": [{"name": entry.name, "kind": entry.kind} for entry in playbook.keychain],
    }


def values_document(texts: Table[str, str]) -> dict[str, Any]:
    """The values of a form's texts, each read as YAML; `problems` lists those that cannot be read."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, text in texts.items():
        source = read_source(text)
        if source.problems and not (source.problems[0].code == "yaml-empty" and len(source.problems) == 1):
            first = source.problems[0]
            problems[name] = f"line {first.node.line}, column {first.node.column}: {first.message}"
        else:
            values[name] = data_of(source.root)
    return {"values": values, "problems": problems}


def _field(name: str, node: Node, text: str, help_text: str) -> dict[str, Any]:
    value = data_of(node)
    secret = is_secret_name(name) and isinstance(value, str) and "{{" not in value
    field: dict[str, Any] = {"name": name, "type": _type(value), "required": False, "secret": secret, "help": help_text}
    if isinstance(value, list | dict):
        field["text"] = _source_lines(text, node)
    return field if secret else {**field, "default": value}


def _source_lines(text: str, node: Node) -> str:
    """The lines of a node, dedented."""
    first = text.rfind("\n", 0, node.start) + 1
    lines = " " * (node.start - first) + text[node.start : node.end]
    return dedent(lines).rstrip()


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "template" if "{{" in value or "{%" in value else "lines" if "\n" in value else "text"
    names = {int: "integer", float: "number", list: "list", dict: "mapping"}
    return names.get(type(value), "any")


def _help(lines: list[str], line: int) -> str:
    """The comment after a key, else the comments directly above it."""
    trailing = re.search(r"(?:^|\s)#\s?(.*)$", _without_quotes(lines[line - 1])) if line <= len(lines) else None
    if trailing:
        return trailing[1].strip()
    above: list[str] = []
    for text in reversed(lines[: line - 1]):
        if not text.lstrip().startswith("#"):
            break
        above.insert(0, text.strip().lstrip("#").strip())
    return " ".join(above)


def _without_quotes(line: str) -> str:
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", line)


def _required_keys(root: Node | None) -> Iterator[str]:
    """The keys of `workload` that templates read without a default of their own."""
    for text in _texts(root):
        for read in analyze_template(text).reads:
            if read.path[0] == "workload" and len(read.path) > 1 and not read.guarded:
                yield read.path[1]


def _texts(node: Node | None) -> Iterator[str]:
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, Mapping):
        for key, (_, value) in node.entries.items():
            if key != "code":  # never rendered
                yield from _texts(value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _texts(item)
