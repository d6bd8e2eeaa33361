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
from typing import Any

from noetl.core.model.excerpt import excerpt
from noetl.core.templates.binding import Bound, bound_parts, bound_text
from noetl.tools.shell.code_contexts import MARK, NESTED, place_of, place_of_argument, place_of_arguments
from noetl.tools.shell.nested_shell import code_argument
from noetl.tools.shell.shell_words import HEREDOC, dequoted, is_literal

PREFIX = "NOETL_"


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


_SIMPLE = re.compile(r"[\w@%+=:,./ '\"-]*")


def check_whole(value: Bound) -> Any:
    """The value of a command that is one expression; CannotBind if it has characters that a shell evaluates.

    A list is a program and its arguments, of which none may be code of a shell."""
    if isinstance(value.value, list):
        check_arguments([f"{MARK}{index}" for index in range(len(value.value))], values=value.value)
        return value.value
    if _SIMPLE.fullmatch(value.text) is None:
        raise CannotBind(
            "a command that is one expression as a whole is a program with arguments, and its value has characters "
            "that a shell evaluates. Write the command in the playbook with values in it; to execute code that a value "
            "contains, write `cmd: bash -s` with the value in `stdin:`"
        )
    return value.text


def check_arguments(arguments: Sequence[Any], *, values: Sequence[Any] = (), is_program: bool = True) -> None:
    """Check the values in a list of a program and its arguments; CannotBind where a program would evaluate one.

    The code of a shell (`[bash, -c, code]`) is not checked here: its values are bound."""
    if not is_program:
        return
    texts, marked = [], []
    plain = [str(each) if values else bound_text(each) if isinstance(each, str) else "x" for each in arguments]
    plain = [Bound(each).text for each in values] if values else plain
    code = None if values else code_argument(plain)
    for number, argument in enumerate(arguments):
        parts = [Bound(values[number])] if values else bound_parts(argument) if isinstance(argument, str) else ["x"]
        text = ""
        for part in parts:
            if isinstance(part, Bound) and not (values and _SHELL_WORD.fullmatch(part.text)):
                if number != code and not _is_number(part.value):
                    marked.append((number, len(text), part.text))
                text += MARK
            else:
                text += part if isinstance(part, str) else part.text
        texts.append(text)
    offsets, command = [], ""
    for text in texts:
        offsets.append(len(command) + 1)
        command += "'" + text.replace("'", "_") + "' "
    given = place_of_arguments(plain[code]) if code is not None else None
    for number, index, value in marked:
        at = offsets[number] + index
        place = place_of_argument(command, at)
        pattern = None if place is None else place.pattern
        if pattern is None and given is not None and number > (code or 0):
            pattern = given.pattern
        if pattern is not None and pattern.fullmatch(value) is None:
            raise CannotBind(f"{_where(command, at)} a value would be evaluated as {NESTED}; {FIX}")


_SHELL_WORD = re.compile(r"[\w./+-]{1,40}")


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
            found = HEREDOC.match(text, at)
            if found is None:
                return at + 2
            self.pending.append((dequoted(found[1]), is_literal(found[1]), text.startswith("-", at + 2)))
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
