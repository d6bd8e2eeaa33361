"""Migrate 2025-11 text to canonical text, step by step.

The migration writes the translation that also runs 2025-11 text (`dialects.v2025_11`), so both behave the same. Steps
without 2025-11 syntax do not change; in other steps, comments move with the lines that they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.compile import compile_playbook
from noetl.core.language.dialects.v2025_11.node_building import TranslationNote
from noetl.core.language.dialects.v2025_11.translate_steps import translate
from noetl.core.language.rewrite.migrate.v10_to_canonical import COMMENT_PREFIX, Migration, Note
from noetl.core.language.rewrite.migrate.yaml_writer import Writer
from noetl.core.language.source.nodes import Mapping, Node, Sequence, data_of
from noetl.core.language.source.yaml_source import read_source
from noetl.core.model.tool import ToolSpec


class _Splice(NamedTuple):
    first: int  # lines from 0; `last` is not included
    last: int
    lines: list[str]


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a 2025-11 playbook that compiles with the legacy extension; other text is returned unchanged."""
    ends = "\r\n" if "\r\n" in text else "\n"
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    root = read_source(plain).root
    if not isinstance(root, Mapping) or compile_playbook(plain, file="", specs=specs, legacy=True).playbook is None:
        return Migration(text, ())
    translation = translate(root, specs)
    if not translation.is_v2025_11 or not isinstance(translation.root, Mapping):
        return Migration(text, ())
    writer = Writer(plain, root)
    lines = plain.split("\n")
    splices: list[_Splice] = []
    for key, (key_node, old) in root.entries.items():
        new = translation.root.entries[key][1]
        if key == "executor":
            splices += _without_extension(old, lines)
        elif isinstance(old, Sequence) and isinstance(new, Sequence) and not old.flow:
            for before, after in zip(old.items, new.items, strict=True):
                if data_of(before) != data_of(after):
                    splices.append(_rewrite_item(writer, lines, before, after, translation.notes))
        elif data_of(old) != data_of(new):
            last = _last_line(lines, key_node.line, _end_of(root, key, lines))
            written = writer.entry(key, key_node, new, 0)
            lost = writer.take_unplaced(key_node.line, last)
            above = [line for line in written if line.startswith("#")]
            splices.append(_Splice(key_node.line - 1, last, [*lost, *written[len(above) :]]))
    for splice in sorted(splices, reverse=True):
        lines[splice.first : splice.last] = splice.lines
    made_text = "\n".join(lines)
    notes = [Note(each.node.line, each.message) for each in translation.notes]
    found = compile_playbook(made_text, file="", specs=specs).diagnostics
    notes += [Note(one.line, f"{one.message} ({one.hint})") for one in found if one.severity == "error"]
    return Migration(made_text.replace("\n", ends), tuple(sorted(notes)))


def _rewrite_item(
    writer: Writer, lines: list[str], old: Node, new: Node, translation_notes: list[TranslationNote]
) -> _Splice:
    """A rewritten step; comments above its dash stay."""
    first = old.line
    last = _last_line(lines, first, _next_item(lines, first))
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    writer.above.pop(first, None)
    written = writer.item(new, indent)
    pad = " " * indent
    marks = [f"{pad}# {COMMENT_PREFIX} {each.message}" for each in translation_notes if first <= each.node.line <= last]
    lost = [pad + comment for comment in writer.take_unplaced(first, last)]
    return _Splice(first - 1, last, [*lost, *marks, *written])


def _next_item(lines: list[str], first: int) -> int:
    """The line (from 1) after the item that starts on this line."""
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    for number in range(first, len(lines)):
        line = lines[number]
        if line.strip() and not line.strip().startswith("#") and len(line) - len(line.lstrip()) <= indent:
            return number + 1
    return len(lines) + 1


def _last_line(lines: list[str], first: int, next_line: int) -> int:
    """The item's last line with content: blank lines and comments after it belong to the next item."""
    last = next_line - 1
    while last > first and (not lines[last - 1].strip() or lines[last - 1].strip().startswith("#")):
        last -= 1
    return last


def _end_of(root: Mapping, key: str, lines: list[str]) -> int:
    starts = sorted(node.line for node, _ in root.entries.values())
    here = root.entries[key][0].line
    return next((line for line in starts if line > here), len(lines) + 1)


def _without_extension(executor: Node, lines: list[str]) -> list[_Splice]:
    """Empty the list of `extensions`, which is no longer needed."""
    spec = executor.get("spec") if isinstance(executor, Mapping) else None
    found = spec.get("extensions") if isinstance(spec, Mapping) else None
    if not isinstance(found, Sequence) or found.line != found.end_line or not found.flow:
        return []
    line = lines[found.line - 1]
    return [_Splice(found.line - 1, found.line, [line[: found.column - 1] + "[]" + line[found.end_column - 1 :]])]
