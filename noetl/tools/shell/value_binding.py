"""Binds template values into a shell command without shell injection.

Each value becomes an environment variable, and the command refers to it by name, quoted for its context. The shell
expands the reference after it has parsed the command, so no character of the value can end a quote, start a command
or redirect anything:

    echo {{ x }}        echo "${NOETL_1}"
    echo "a {{ x }}"    echo "a ${NOETL_1}"
    echo 'a {{ x }}'    echo 'a '"${NOETL_1}"''

The context is found by scanning the command through quotes, substitutions, comments and here-documents. If the
scanner is wrong, the reference is still only a reference: the worst case is an extra quote. Where the shell would
evaluate even an expanded value (arithmetic, names of variables, code of a nested shell: `code_contexts`), only values
that cannot be code are accepted. A here-document with a quoted delimiter allows no reference and accepts one line of
text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from noetl.core.model.excerpt import excerpt
from noetl.core.templates.binding import Bound
from noetl.tools.shell.code_contexts import MARK, place_of

PREFIX = "NOETL_"
_HEREDOC = re.compile(r"<<(-?)[ \t]*(\\?)(?:'([^'\n]*)'|\"([^\"\n]*)\"|([A-Za-z0-9_.+-]+))")


class CannotBind(ValueError):
    """A value is used in a context where it cannot be bound safely."""


def bind(parts: Sequence[str | Bound]) -> tuple[str, dict[str, str]]:
    """The command for a POSIX shell, and the variables it refers to."""
    scanner = _Scanner()
    pieces: list[str] = []
    variables: dict[str, str] = {}
    skeleton = "".join(part if isinstance(part, str) else _inline(part) for part in parts)
    at = 0
    for part in parts:
        if isinstance(part, str):
            scanner.scan(part)
            pieces.append(part)
            at += len(part)
            continue
        text = part.text
        here, at = at, at + len(_inline(part))
        if "\x00" in text:
            raise CannotBind("a value of the command contains a NUL character")
        if _is_number(part.value):
            scanner.scan(text)
            pieces.append(text)  # a number is safe in every context
            continue
        place = place_of(skeleton, here)
        if place is not None and place.refuses(text):
            raise CannotBind(f"{_where(skeleton, here)} a value would be evaluated as {place.what}; {FIX}")
        if place is not None and place.is_number:
            scanner.scan(text)
            pieces.append(text)
            continue
        name = f"{PREFIX}{len(variables) + 1}"
        reference, is_used = scanner.reference(name, text)
        if is_used:
            variables[name] = text
        pieces.append(reference)
    return "".join(pieces), variables


FIX = "pass it in `env:` and quote the variable, or as an argument, as in bash -c 'echo \"$1\"' _ {{ value }}"


def _inline(part: Bound) -> str:
    return part.text if _is_number(part.value) else MARK


def _where(command: str, at: int) -> str:
    """The line of a place and its text, for messages."""
    line = command.count("\n", 0, at) + 1
    start = command.rfind("\n", 0, at) + 1
    end = command.find("\n", at)
    text = command[start : end if end >= 0 else len(command)].replace(MARK, "{{ ... }}").strip()
    return f"line {line} of the command (`{text[:80]}`):"


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or value - value == 0  # not infinite, not NaN


class _Scanner:
    """Scans shell text; `contexts` is the stack of open constructs, innermost last."""

    def __init__(self) -> None:
        self.contexts: list[str] = []  # ' " $' ` ( (( { #; empty: unquoted
        self.escaped = False
        self.before = "\n"  # the previous character, to detect comments
        self.pending: list[tuple[str, bool, bool]] = []  # here-documents that start after this line
        self.heredoc: tuple[str, bool, bool] | None = None  # delimiter, quoted, tabs stripped
        self.line = ""  # current line of the here-document

    def scan(self, text: str) -> None:
        """Advance through a part of the author's text."""
        at = 0
        while at < len(text):
            at = self._in_heredoc(text, at) if self.heredoc else self._step(text, at)

    def _step(self, text: str, at: int) -> int:
        """Consume one character or opening token outside here-documents; returns the next position."""
        character = text[at]
        context = self.contexts[-1] if self.contexts else ""
        before, self.before = self.before, character
        if self.escaped:
            self.escaped = False
        elif context in ("#", "'"):
            if character == ("\n" if context == "#" else "'"):
                self.contexts.pop()
                if context == "#":
                    self._end_line()
        elif character == "\\":
            self.escaped = True
        elif context == "$'":
            if character == "'":
                self.contexts.pop()
        else:
            return self._expandable(text, at, context, before)
        return at + 1

    def _expandable(self, text: str, at: int, context: str, before: str) -> int:
        """Consume text in which the shell expands `$` and backquotes."""
        character = text[at]
        if text.startswith("$((", at):
            self.contexts.append("((")
            return at + 3
        if text.startswith("$(", at) or text.startswith("${", at):
            self.contexts.append(text[at + 1])
            return at + 2
        if character == "`":
            if "`" in self.contexts:
                while self.contexts.pop() != "`":
                    continue
            else:
                self.contexts.append("`")
        elif character == '"':
            if context == '"':
                self.contexts.pop()
            else:
                self.contexts.append('"')
        elif context == "((":
            if text.startswith("))", at):
                self.contexts.pop()
                return at + 2
        elif context != '"':
            return self._unquoted(text, at, context, before)
        return at + 1

    def _unquoted(self, text: str, at: int, context: str, before: str) -> int:
        """Consume text outside quotes."""
        character = text[at]
        if text.startswith("$'", at):
            self.contexts.append("$'")
            return at + 2
        if character == "'":
            self.contexts.append("'")
        elif context == "{":
            if character == "}":
                self.contexts.pop()
        elif character == "(":
            self.contexts.append("(")
        elif character == ")":
            if context == "(":
                self.contexts.pop()
        elif character == "#" and before in " \t\n;&|(":
            self.contexts.append("#")
        elif character == "\n":
            self._end_line()
        elif text.startswith("<<<", at):
            return at + 3
        elif text.startswith("<<", at):
            found = _HEREDOC.match(text, at)
            if found is None:
                return at + 2
            tabs, backslash, single, double, bare = found.groups()
            word = next(word for word in (single, double, bare) if word is not None)
            quoted = bool(backslash) or single is not None or double is not None
            self.pending.append((word, quoted, bool(tabs)))
            return found.end()
        return at + 1

    def _end_line(self) -> None:
        if self.pending:
            self.heredoc = self.pending.pop(0)
            self.line = ""

    def _in_heredoc(self, text: str, at: int) -> int:
        assert self.heredoc is not None
        delimiter, _, strips = self.heredoc
        end = text.find("\n", at)
        if end < 0:
            self.line += text[at:]
            return len(text)
        self.line += text[at:end]
        if (self.line.lstrip("\t") if strips else self.line) == delimiter:
            self.heredoc = None
            self.before = "\n"
            self._end_line()
        self.line = ""
        return end + 1

    def reference(self, name: str, value: str) -> tuple[str, bool]:
        """The text that represents a value at this position, and whether it refers to the variable."""
        if self.heredoc is not None:
            return self._heredoc_reference(name, value)
        if self.escaped:
            raise CannotBind(
                "a template directly after a backslash cannot be bound; put it in `env:` and use the variable"
            )
        context = self.contexts[-1] if self.contexts else ""
        self.before = "x"
        if context == "#":
            return "", False
        if context == "((":
            raise CannotBind(f"$(( ... )) requires a number, not {excerpt(value)}")
        if context == "'":
            return f"'\"${{{name}}}\"'", True
        if context == "$'":
            return f"'\"${{{name}}}\"$'", True
        quoted = context == '"' or (context in ("`", "{") and '"' in self.contexts)
        return (f"${{{name}}}" if quoted else f'"${{{name}}}"'), True

    def _heredoc_reference(self, name: str, value: str) -> tuple[str, bool]:
        assert self.heredoc is not None
        delimiter, is_quoted, _ = self.heredoc
        self.line += "\x00"  # this line is not the delimiter, independent of the value
        if not is_quoted:
            return f"${{{name}}}", True
        if "\n" in value or delimiter in value:
            raise CannotBind(
                f"a value in the here-document '{delimiter}' has several lines or contains the delimiter; "
                "remove the quotes from the delimiter, so that the value can be bound"
            )
        return value, False
