"""Splits SQL text into statements.

A semicolon ends a statement, except in strings and comments, in brackets (the actions of a rule in PostgreSQL), and in
the body of a procedure, function, trigger or event: there it ends one of the inner statements. A body is followed from
`BEGIN`, `CASE`, and where the language has them `IF`, `LOOP`, `WHILE`, `REPEAT` and `FOR`, to the `END` of each. The
words `begin` and `end` can also be names of columns, so they count only where an inner statement can start.

Scripts for the command line of MySQL set another end of statements with `DELIMITER`; they are understood too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.source.sql_tokens import Dialect, Token, tokens

_DELIMITER = re.compile(r"^[ \t]*DELIMITER[ \t]+(\S+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_BODIES = {
    "mysql": ("procedure", "function", "trigger", "event"),
    "ansi": ("procedure", "function", "trigger"),
    "sqlite": ("trigger",),
    "postgres": ("procedure", "function"),
}
_CREATED = {
    "procedure",
    "function",
    "trigger",
    "event",
    "table",
    "view",
    "index",
    "database",
    "schema",
    "sequence",
    "type",
}
_HAS_LOOPS = ("mysql", "ansi")
_LOOPS = {"if", "loop", "while", "repeat", "for"}
_AFTER = {"begin", "then", "else", "do", "loop", "repeat", "atomic", ";", ":"}  # an inner statement can start
_HEADER_ENDS = {"row", "sql", "data", "deterministic", "definer", "invoker", ")"}  # before a body without BEGIN
_SIGN = re.compile(r"[():]")


def split(text: str, dialect: Dialect = "postgres") -> list[str]:
    """The statements of the text, without the semicolons that end them; what is only comment is none."""
    statements: list[str] = []
    for part, delimiter in _parts(text) if dialect == "mysql" else [(text, ";")]:
        if delimiter == ";":
            statements += _split(part, dialect)
        else:
            statements += [each for piece in _split_at(part, delimiter) for each in _whole(piece, dialect)]
    return statements


def _split(text: str, dialect: Dialect) -> list[str]:
    statements: list[str] = []
    statement = _Statement(dialect)
    for token in tokens(text, dialect):
        if token.kind == "semicolon" and statement.can_end:
            statements += statement.text()
            statement = _Statement(dialect)
        else:
            statement.add(token)
    return statements + statement.text()


class _Statement:
    """A statement that is being read."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._bodies = _BODIES.get(dialect, ())
        self._created = ""  # the kind of object, after CREATE
        self._pieces: list[str] = []
        self._words: list[str] = []
        self._says_something = False
        self._brackets = 0
        self._open: list[str] = []  # the words that an END will close
        self._last = ""  # word or sign
        self._inner = ""  # the first word of the inner statement

    @property
    def can_end(self) -> bool:
        """Whether a semicolon ends it."""
        return not self._open and self._brackets <= 0

    def text(self) -> list[str]:
        """The statement, if it is one."""
        return ["".join(self._pieces).strip()] if self._says_something else []

    def add(self, token: Token) -> None:
        """Read on."""
        self._pieces.append(token.text)
        if token.kind == "comment" or not token.text.strip():
            return
        self._says_something = True
        if token.kind == "word":
            word = token.text.lower()
            self._follow(word)
            self._words.append(word)
            if self._words[0] == "create" and word in _CREATED:
                self._created = self._created or word
            if self._last in _AFTER:
                self._inner = word
            self._last = word
        elif token.kind == "semicolon":
            self._last = ";"
        else:
            signs = _SIGN.findall(token.text) if token.kind == "other" else []
            self._brackets += signs.count("(") - signs.count(")")
            self._last = signs[-1] if signs and token.text.rstrip().endswith(signs[-1]) else token.kind

    def _follow(self, word: str) -> None:
        if not self._has_body:
            return
        starts = self._last in _AFTER
        if word == "end":
            if self._open and (starts or self._open[-1] == "value" or self._inner == "until"):
                self._open.pop()
        elif word == "case" and self._open and self._last != "end":
            self._open.append("case" if starts and self._dialect in _HAS_LOOPS else "value")
        elif self._opens(word, starts):
            self._open.append(word)

    @property
    def _has_body(self) -> bool:
        if self._words[:2] == ["begin", "not"]:
            return self._dialect == "mysql"  # a block of MariaDB
        return self._created in self._bodies

    def _opens(self, word: str, starts: bool) -> bool:
        if self._dialect == "postgres":
            return word == "atomic" and self._last == "begin"
        if word == "atomic" and self._words == ["begin", "not"]:
            return True
        if word == "begin":
            return starts or not self._open or self._inner == "declare"
        if self._dialect not in _HAS_LOOPS or word not in _LOOPS:
            return False
        return starts or (not self._open and self._last in _HEADER_ENDS and word != "for")


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The text between the DELIMITER lines, and what ends its statements."""
    start, delimiter = 0, ";"
    for line in _DELIMITER.finditer(text):
        yield text[start : line.start()], delimiter
        start, delimiter = line.end(), line[1]
    yield text[start:], delimiter


def _split_at(text: str, delimiter: str) -> Iterator[str]:
    """The text between delimiters, of which those in strings and comments are text."""
    hidden = ("string", "comment")
    visible = "".join("\0" * len(token.text) if token.kind in hidden else token.text for token in tokens(text, "mysql"))
    start = 0
    while (end := visible.find(delimiter, start)) >= 0:
        yield text[start:end]
        start = end + len(delimiter)
    yield text[start:]


def _whole(text: str, dialect: Dialect) -> list[str]:
    """A text as one statement."""
    statement = _Statement(dialect)
    for token in tokens(text, dialect):
        statement.add(token)
    return statement.text()
