"""Quick fixes of diagnostics: what the hint says, as an edit of the text.

A hint that names one replacement (`did you mean "x"?`, `write x`) is applied to the word that it is about. A warning
can be ignored with a comment. Diagnostics of older dialects are fixed by migrating the whole text (`is_migrated`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from noetl.core.language.diagnostic_codes import CODES
from noetl.core.language.diagnostics import Diagnostic, closest
from noetl.core.language.editor.symbols import Edit


class QuickFix(NamedTuple):
    """An edit with its title; a preferred one is what the hint says."""

    title: str
    edit: Edit
    preferred: bool


_DID_YOU_MEAN = re.compile(r'did you mean "([^"]+)"\?')
_WRITE = re.compile(r"write `([\w.]+):?`")
_QUOTED = re.compile(r'"([^"]+)"|`([^`]+)`')
_WORD = re.compile(r"[\w-]+")
_MIGRATED = ("v10-", "legacy-")


def quick_fixes(diagnostic: Diagnostic, lines: list[str]) -> Iterator[QuickFix]:
    """The fixes of a diagnostic of a text with these lines."""
    if not 1 <= diagnostic.line <= len(lines):
        return
    line = lines[diagnostic.line - 1]
    replaced = _replacement(diagnostic, line)
    if replaced is not None:
        old = line[replaced.column - 1 : replaced.end_column - 1]
        yield QuickFix(f"Replace `{old}` with `{replaced.text}`", replaced, True)
    ignored = _ignore_comment(diagnostic, lines)
    if ignored is not None:
        yield QuickFix(f"Ignore {diagnostic.code} on this line", ignored, False)


def is_migrated(diagnostic: Diagnostic) -> bool:
    """Whether `migrate` rewrites what the diagnostic is about."""
    return diagnostic.code.startswith(_MIGRATED)


def _replacement(diagnostic: Diagnostic, line: str) -> Edit | None:
    begin, end = diagnostic.column - 1, diagnostic.end_column - 1
    if diagnostic.end_line != diagnostic.line:
        end = len(line)
    written = line[begin:end]
    meant = _DID_YOU_MEAN.search(diagnostic.hint)
    if meant is not None:
        return _misspelled(diagnostic, line, meant[1])
    replacement = _WRITE.fullmatch(diagnostic.hint)
    if replacement is None or (is_migrated(diagnostic) and "." in replacement[1]):
        return None
    if diagnostic.code == "bare-name":
        name = _WORD.match(written)
        scope = replacement[1].partition(f".{name[0]}")[0] if name else ""
        return Edit(diagnostic.line, begin + 1, begin + 1, f"{scope}.") if scope else None
    if not re.fullmatch(r"[\w.-]+", written):
        return None
    return Edit(diagnostic.line, begin + 1, end + 1, replacement[1])


def _misspelled(diagnostic: Diagnostic, line: str, meant: str) -> Edit | None:
    """What the message quotes: the range of the diagnostic, or a word in it or after it on the line."""
    written = line[diagnostic.column - 1 : diagnostic.end_column - 1]
    whole = written.strip("\"'")
    is_word = _WORD.fullmatch(whole) or not _WORD.fullmatch(meant)  # else it is a part of a dotted name
    if whole and is_word and whole in (found[0] or found[1] for found in _QUOTED.findall(diagnostic.message)):
        start = diagnostic.column + written.index(whole)
        return Edit(diagnostic.line, start, start + len(whole), meant)
    quoted = [word for found in _QUOTED.findall(diagnostic.message) for word in _WORD.findall(found[0] or found[1])]
    candidates = {word for word in quoted if word != meant and closest(word, [meant]) == meant} or set(quoted)
    begin = diagnostic.column - 1
    for found in _WORD.finditer(line, begin):
        if found[0] in candidates and found[0] != meant:
            return Edit(diagnostic.line, found.start() + 1, found.end() + 1, meant)
    return None


_IGNORE = re.compile(r"#\s*noetl:\s*ignore\[([^\]]*)\]")
_BLOCK_HEADER = re.compile(r"(?:^|[:\s-])[|>][-+0-9]*\s*(?:#.*)?$")


def _ignore_comment(diagnostic: Diagnostic, lines: list[str]) -> Edit | None:
    line = lines[diagnostic.line - 1]
    code = diagnostic.code
    if CODES[code].severity != "warning" or code in ("unused-ignore", "too-many-problems"):
        return None
    present = _IGNORE.search(line)
    if present is not None:
        codes = f"{present[1].strip()}, {code}" if present[1].strip() else code
        return Edit(diagnostic.line, present.start(1) + 1, present.end(1) + 1, codes)
    if _in_block_scalar(lines, diagnostic.line - 1) or _has_open_quote(line) or _BLOCK_HEADER.search(line):
        return None
    end = len(line.rstrip()) + 1
    return Edit(diagnostic.line, end, len(line) + 1, f"  # noetl: ignore[{code}]")


def _in_block_scalar(lines: list[str], row: int) -> bool:
    """Whether the line belongs to a block scalar, where a comment would be text."""
    indent = _indent(lines[row])
    for above in range(row - 1, -1, -1):
        if not lines[above].strip() or _indent(lines[above]) >= indent:
            continue
        if _BLOCK_HEADER.search(lines[above]):
            return True
        indent = _indent(lines[above])
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _has_open_quote(line: str) -> bool:
    """Whether a quoted scalar may continue on another line."""
    plain = re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", line)
    return '"' in plain or "'" in plain
