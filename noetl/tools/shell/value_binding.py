"""Put data into a shell command without letting it become part of the command.

Each value becomes an environment variable, and the command refers to it by name, quoted as the place
asks for. The shell expands the reference after it has read the command, so no character of the value
can end a quote, start a command or redirect anything:

    echo {{ x }}        echo "${NOETL_1}"
    echo "a {{ x }}"    echo "a ${NOETL_1}"
    echo 'a {{ x }}'    echo 'a '"${NOETL_1}"''

To know the place, the author's text is followed through quotes, substitutions, comments and
here-documents. Should that ever be wrong, the reference is still only a reference: the worst that can
come of it is a quote too many. What an inner shell reads as code again (`sh -c`, `eval`) takes only
harmless values. Two places allow no reference, and there only harmless values pass: an
arithmetic expression (numbers), and a here-document with a quoted delimiter (one line of text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from noetl.core.templates.binding import Bound
from noetl.tools.shell.nested_shell import WAY_OUT, is_harmless, reads_code

PREFIX = "NOETL_"
_HEREDOC = re.compile(r"<<(-?)[ \t]*(\\?)(?:'([^'\n]*)'|\"([^\"\n]*)\"|([A-Za-z0-9_.+-]+))")


class CannotBind(ValueError):
    """A value stands where no value can be put safely, in words."""


def bind(parts: Sequence[str | Bound]) -> tuple[str, dict[str, str]]:
    """The command as text for a POSIX shell, and the variables it refers to."""
    reader = _Reader()
    made: list[str] = []
    variables: dict[str, str] = {}
    for part in parts:
        if isinstance(part, str):
            reader.read(part)
            made.append(part)
            continue
        text = part.text
        if "\x00" in text:
            raise CannotBind("a value of the command contains a NUL character, which no program can be given")
        if _is_number(part.value):
            reader.read(text)
            made.append(text)  # digits are digits everywhere
            continue
        if not is_harmless(text) and reads_code("".join(made)):
            raise CannotBind(f"a value would become code of the shell inside this command; {WAY_OUT}")
        name = f"{PREFIX}{len(variables) + 1}"
        reference, is_used = reader.reference(name, text)
        if is_used:
            variables[name] = text
        made.append(reference)
    return "".join(made), variables


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or value - value == 0  # infinities and NaN are words


class _Reader:
    """Follows a shell text; `places` says inside of what it is, innermost last."""

    def __init__(self) -> None:
        self.places: list[str] = []  # ' " $' ` ( (( { #, or nothing: a plain word
        self.escaped = False
        self.before = "\n"  # the character before, for comments
        self.waiting: list[tuple[str, bool, bool]] = []  # here-documents announced on this line
        self.heredoc: tuple[str, bool, bool] | None = None  # delimiter, quoted, tabs stripped
        self.line = ""  # of the here-document

    def read(self, text: str) -> None:
        """Go on through a piece of the author's text."""
        at = 0
        while at < len(text):
            at = self._in_heredoc(text, at) if self.heredoc else self._step(text, at)

    def _step(self, text: str, at: int) -> int:
        """One character (or one opening of several) outside here-documents; where to go on."""
        character = text[at]
        place = self.places[-1] if self.places else ""
        before, self.before = self.before, character
        if self.escaped:
            self.escaped = False
            return at + 1
        if place == "#":
            if character == "\n":
                self.places.pop()
                self._line_ends()
            return at + 1
        if place == "'":
            if character == "'":
                self.places.pop()
            return at + 1
        if character == "\\":
            self.escaped = True
            return at + 1
        if place == "$'":
            if character == "'":
                self.places.pop()
            return at + 1
        if text.startswith("$((", at):
            self.places.append("((")
            return at + 3
        if text.startswith("$(", at) or text.startswith("${", at):
            self.places.append(text[at + 1])
            return at + 2
        if character == "`":
            if "`" in self.places:
                while self.places.pop() != "`":
                    continue
            else:
                self.places.append("`")
            return at + 1
        if character == '"':
            if place == '"':
                self.places.pop()
            else:
                self.places.append('"')
            return at + 1
        if place == '"':
            return at + 1
        if place == "((":
            if text.startswith("))", at):
                self.places.pop()
                return at + 2
            return at + 1
        return self._plain(text, at, place, before)

    def _plain(self, text: str, at: int, place: str, before: str) -> int:
        """Outside of quotes."""
        character = text[at]
        if text.startswith("$'", at):
            self.places.append("$'")
            return at + 2
        if character == "'":
            self.places.append("'")
        elif place == "{":
            if character == "}":
                self.places.pop()
        elif character == "(":
            self.places.append("(")
        elif character == ")":
            if place == "(":
                self.places.pop()
        elif character == "#" and before in " \t\n;&|(":
            self.places.append("#")
        elif character == "\n":
            self._line_ends()
        elif text.startswith("<<<", at):
            return at + 3
        elif text.startswith("<<", at):
            found = _HEREDOC.match(text, at)
            if found is None:
                return at + 2
            tabs, backslash, single, double, bare = found.groups()
            word = next(word for word in (single, double, bare) if word is not None)
            quoted = bool(backslash) or single is not None or double is not None
            self.waiting.append((word, quoted, bool(tabs)))
            return found.end()
        return at + 1

    def _line_ends(self) -> None:
        if self.waiting:
            self.heredoc = self.waiting.pop(0)
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
            self._line_ends()
        self.line = ""
        return end + 1

    def reference(self, name: str, value: str) -> tuple[str, bool]:
        """What to write for a value here, and whether that refers to the variable."""
        if self.heredoc is not None:
            return self._heredoc_reference(name, value)
        if self.escaped:
            raise CannotBind("an expression stands directly after a backslash; put it into `env:` and use the variable")
        place = self.places[-1] if self.places else ""
        self.before = "x"
        if place == "#":
            return "", False
        if place == "((":
            raise CannotBind(f"in $(( ... )) only a number can stand, and this is {value[:40]!r}")
        if place == "'":
            return f"'\"${{{name}}}\"'", True
        if place == "$'":
            return f"'\"${{{name}}}\"$'", True
        quoted = place == '"' or (place in ("`", "{") and '"' in self.places)
        return (f"${{{name}}}" if quoted else f'"${{{name}}}"'), True

    def _heredoc_reference(self, name: str, value: str) -> tuple[str, bool]:
        assert self.heredoc is not None
        delimiter, is_quoted, _ = self.heredoc
        self.line += "\x00"  # this line is not the delimiter, whatever the value is
        if not is_quoted:
            return f"${{{name}}}", True
        if "\n" in value or delimiter in value:
            raise CannotBind(
                f"a value inside the here-document '{delimiter}' has several lines (or the delimiter itself); "
                "leave the quotes of the delimiter away, so that it can be referred to"
            )
        return value, False
