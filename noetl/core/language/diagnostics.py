"""Diagnostics of a playbook: collecting, sorting, and formatting for people and programs.

A diagnostic is never raised. It has a position (`file:line:column`), a code that never changes its meaning, a
severity, a message, and optionally a hint. The comment `# noetl: ignore[code]` suppresses a warning on its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from noetl.core.language.diagnostic_codes import CODES, Severity
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.source.scalar_offsets import locate
from noetl.core.language.source.yaml_source import LINE_BREAK

DOCS = "https://noetl.io/docs/reference/diagnostics/"


class Diagnostic(Struct, frozen=True, order=True):
    """One diagnostic; lines and columns start at 1, and the end column is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    severity: Severity
    message: str
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The stable JSON form that `noetl validate --format json` prints."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
        }


MAX_LISTED = 10_000  # errors, and warnings


class Findings:
    """Collects the diagnostics of one text; every stage of the compiler adds to it."""

    def __init__(self, file: str, text: str, *, strict: bool = False) -> None:
        self.file = file
        self.text = text
        self.strict = strict
        self.found: list[Diagnostic] = []
        self.failed = False
        self._counts: dict[str, int] = {"error": 0, "warning": 0}

    def add(self, code: str, node: Node, message: str, hint: str = "") -> None:
        """Record a diagnostic at a node."""
        end_line, end_column = node.end_line, node.end_column
        if end_line != node.line:
            # A range of several lines is reduced to its first line.
            end_line = node.line
            end_column = node.column + len(LINE_BREAK.split(self.text[node.start : node.start + 400], 1)[0].rstrip())
        self._record(code, node.line, node.column, end_line, end_column, message, hint)

    def add_inside(self, code: str, node: Scalar, offset: int, length: int, message: str, hint: str = "") -> None:
        """Record a diagnostic at some characters of a scalar's value."""
        line, column = locate(self.text, node, offset)
        self._record(code, line, column, line, column + max(1, length), message, hint)

    def _record(
        self, code: str, line: int, column: int, end_line: int, end_column: int, message: str, hint: str
    ) -> None:
        severity = CODES[code].severity
        if self.strict and code.startswith("v10-"):
            severity = "error"
        if severity == "error":
            self.failed = True
        self._counts[severity] += 1
        if self._counts[severity] > MAX_LISTED:
            return  # the rest is only counted
        self.found.append(Diagnostic(self.file, line, column, end_line, end_column, code, severity, message, hint))

    def result(self) -> tuple[Diagnostic, ...]:
        """All diagnostics in text order, without those that comments suppress."""
        remaining = set(self.found)
        if "noetl:" in self.text:
            remaining = self._apply_ignores(remaining)
        left_out = sum(max(0, count - MAX_LISTED) for count in self._counts.values())
        if left_out:
            message = f"{left_out:,} more problems are not listed"
            remaining.add(
                Diagnostic(
                    self.file, 1, 1, 1, 2, "too-many-problems", "warning", message, "fix the listed problems first"
                )
            )
        return tuple(sorted(remaining, key=_sort_key))

    def _apply_ignores(self, found: set[Diagnostic]) -> set[Diagnostic]:
        silenced: dict[int, list[_Ignore]] = {}
        ignores = _find_ignores(self.text)
        for ignore in ignores:
            silenced.setdefault(ignore.applies_to, []).append(ignore)
        remaining = set()
        for diagnostic in found:
            ignored = False
            for ignore in silenced.get(diagnostic.line, ()):
                if diagnostic.code in ignore.codes and CODES[diagnostic.code].severity == "warning":
                    ignore.used.add(diagnostic.code)
                    ignored = True
            if not ignored:
                remaining.add(diagnostic)
        for ignore in ignores:
            remaining |= {self._unused_ignore(ignore, code) for code in ignore.codes if code not in ignore.used}
        return remaining

    def _unused_ignore(self, ignore: _Ignore, code: str) -> Diagnostic:
        if code not in CODES:
            message = f'unknown diagnostic code "{code}"'
            hint = _did_you_mean(code, CODES)
        elif CODES[code].severity == "error":
            message, hint = f"{code} is an error; errors cannot be ignored", "fix the error and remove the comment"
        else:
            message, hint = f"{code} is not reported for this line", "remove the comment"
        place = (ignore.line, ignore.column, ignore.line, ignore.column + ignore.length)
        return Diagnostic(self.file, *place, "unused-ignore", "warning", message, hint)


def _sort_key(diagnostic: Diagnostic) -> tuple[Any, ...]:
    return (diagnostic.line, diagnostic.column, diagnostic.severity, diagnostic.code, diagnostic.message)


class _Ignore:
    """One `# noetl: ignore[...]` comment."""

    def __init__(self, line: int, column: int, length: int, applies_to: int, codes: tuple[str, ...]) -> None:
        self.line, self.column, self.length = line, column, length
        self.applies_to = applies_to
        self.codes = codes
        self.used: set[str] = set()


_IGNORE_COMMENT = re.compile(r"#\s*noetl:\s*ignore\[([^\]\n]*)\]")


def _find_ignores(text: str) -> list[_Ignore]:
    """The ignore comments; a comment on its own line applies to the next line that is not a comment."""
    lines = LINE_BREAK.split(text)
    found = []
    for number, line in enumerate(lines, start=1):
        match = _IGNORE_COMMENT.search(line)
        if not match:
            continue
        codes = tuple(code.strip() for code in match.group(1).split(",") if code.strip())
        target = number
        if line.lstrip().startswith("#"):
            target += 1
            while target <= len(lines) and (not lines[target - 1].strip() or lines[target - 1].lstrip()[0] == "#"):
                target += 1
        found.append(_Ignore(number, match.start() + 1, match.end() - match.start(), target, codes))
    return found


# --- did you mean -------------------------------------------------------------------------------


MAX_COMPARED = 2_000_000  # pairs of characters, for all hints of one text
MAX_DISTANCE = 3  # between names that are similar
MAX_NAME = 64  # characters of a name that is compared
_left_to_compare: ContextVar[list[int]] = ContextVar("noetl_left_to_compare")


@contextmanager
def bounded_hints() -> Iterator[None]:
    """Bound the comparisons for hints: thousands of unknown names would be compared with thousands of others.

    Inside of another block, its bound holds: a migration checks a text several times."""
    if _left_to_compare.get(None) is not None:
        yield
        return
    token = _left_to_compare.set([MAX_COMPARED])
    try:
        yield
    finally:
        _left_to_compare.reset(token)


def _may_compare(count: int) -> bool:
    left = _left_to_compare.get(None)
    if left is None:
        return True
    left[0] -= count
    return left[0] >= 0


def closest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if it is similar enough."""
    lowered = name.lower()
    length = len(name)
    if length > MAX_NAME:
        return None
    allowed = 0 if length <= 2 else 1 if length <= 5 else 2 if length <= 8 else MAX_DISTANCE
    best: tuple[int, str] | None = None
    for candidate in sorted(set(known)):
        if abs(len(candidate) - length) > allowed:
            continue
        distance = _distance(lowered, candidate.lower(), allowed)
        if distance <= allowed and (best is None or distance < best[0]):
            best = (distance, candidate)
    return best[1] if best else None


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = closest(name, known)
    return f'did you mean "{near}"?' if near else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint that names the most similar known name, or lists the known names if there are few."""
    names = set(known)
    hint = ""
    if _may_compare(len(names)):
        compared = sum(len(each) for each in names if abs(len(each) - len(name)) <= MAX_DISTANCE)
        hint = _did_you_mean(name, names) if _may_compare(len(name) * compared) else ""
    if hint:
        return hint
    if otherwise:
        return otherwise
    if 0 < len(names) <= 12:
        return "valid here: " + ", ".join(sorted(names))
    return ""


def _distance(a: str, b: str, limit: int) -> int:
    """Damerau-Levenshtein distance; stops when it exceeds the limit."""
    if a == b:
        return 0
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        current = [i]
        for j, right in enumerate(b, start=1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        if min(current) > limit:
            return limit + 1
        before, previous = previous, current
    return previous[-1]


# --- formatting ---------------------------------------------------------------------------------


def as_text(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], *, color: bool = False) -> str:
    """Text for people: position, message, the source line with the range underlined, and the hint."""
    lines_of: dict[str, list[str]] = {}
    blocks = []
    for found in diagnostics:
        if found.file not in lines_of:
            lines_of[found.file] = LINE_BREAK.split(sources.get(found.file, ""))
        blocks.append(_block(found, lines_of[found.file], color))
    return "\n".join(blocks) + ("\n" if blocks else "")


_MAX_WIDTH = 140


def _block(found: Diagnostic, lines: list[str], color: bool) -> str:
    red, cyan, dim, off = ("\x1b[31;1m", "\x1b[36m", "\x1b[2m", "\x1b[0m") if color else ("", "", "", "")
    yellow = "\x1b[33;1m" if color else ""
    tone = red if found.severity == "error" else yellow
    place = f"{found.file}:{found.line}:{found.column}"
    parts = [f"{place}: {tone}{found.severity}{off}: {found.message} {dim}[{found.code}]{off}"]
    if 0 < found.line <= len(lines) and lines[found.line - 1].strip():
        line = lines[found.line - 1].rstrip()
        start = max(0, found.column - 1)
        stop = len(line) if found.end_line != found.line or found.end_column <= found.column else found.end_column - 1
        skipped = max(0, start - 60) if len(line) > _MAX_WIDTH else 0
        shown = line[skipped : skipped + _MAX_WIDTH].replace("\t", " ")
        width = max(1, min(stop, skipped + _MAX_WIDTH) - start)
        gutter = f"{found.line:>5} | "
        parts.append(f"{dim}{gutter}{off}{'…' if skipped else ''}{shown}")
        parts.append(f"{' ' * (len(gutter) + start - skipped + (1 if skipped else 0))}{tone}{'^' * width}{off}")
    if found.hint:
        parts.append(f"  {cyan}help{off}: {found.hint}")
    return "\n".join(parts)


def as_json(diagnostics: Iterable[Diagnostic]) -> str:
    """One JSON list, for programs."""
    return json.dumps([found.as_dict() for found in diagnostics], indent=2, ensure_ascii=False) + "\n"


def as_github(diagnostics: Iterable[Diagnostic]) -> str:
    """Workflow commands for GitHub Actions, one per line."""
    return "".join(_annotation(found) + "\n" for found in diagnostics)


def _annotation(found: Diagnostic) -> str:
    end = f",endColumn={found.end_column}" if found.end_column > found.column else ""
    message = found.message + (f"\nhelp: {found.hint}" if found.hint else "")
    return (
        f"::{found.severity} file={_property(found.file)},line={found.line},endLine={found.end_line},"
        f"col={found.column}{end},title={_property(found.code)}::{_escaped(message)}"
    )


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(diagnostics: Iterable[Diagnostic], *, version: str = "") -> str:
    """A SARIF 2.1.0 log, for code scanning."""
    found = list(diagnostics)
    used = sorted({one.code for one in found})
    index = {code: number for number, code in enumerate(used)}
    driver: dict[str, Any] = {
        "name": "noetl",
        "informationUri": "https://noetl.io",
        "rules": [_sarif_rule(code) for code in used],
    }
    if version:
        driver["version"] = version
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(one, index[one.code]) for one in found],
            }
        ],
    }
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _sarif_rule(code: str) -> dict[str, Any]:
    known = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": known.title},
        "helpUri": f"{DOCS}{code}",
        "defaultConfiguration": {"level": known.severity},
    }


def _sarif_result(found: Diagnostic, rule: int) -> dict[str, Any]:
    region = {"startLine": found.line, "startColumn": found.column, "endLine": found.end_line}
    if found.end_column > found.column:
        region["endColumn"] = found.end_column
    message = found.message + (f" ({found.hint})" if found.hint else "")
    return {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": found.severity,
        "message": {"text": message},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": found.file.replace("\\", "/")}, "region": region}}
        ],
    }


FORMATS = ("text", "json", "github", "sarif")


def render(
    diagnostics: Iterable[Diagnostic],
    format: str,
    sources: Mapping[str, str] | None = None,
    *,
    color: bool = False,
    version: str = "",
) -> str:
    """Diagnostics in one of the four formats; the text format uses `sources` (file -> text)."""
    if format == "json":
        return as_json(diagnostics)
    if format == "github":
        return as_github(diagnostics)
    if format == "sarif":
        return as_sarif(diagnostics, version=version)
    return as_text(diagnostics, sources or {}, color=color)
