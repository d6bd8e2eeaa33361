"""The tables that a statement reads and writes, found by its keywords.

This is no parser of SQL: it knows the places of table names in the statements of common databases. Names of common
table expressions, table functions and temporary tables are left out. PostgreSQL stores unquoted names in lower case, so
they are in lower case here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from noetl.data.sql import Dialect, tokens
from noetl.data.sql_statements import split

_FROM_FUNCTIONS = {"extract", "substring", "trim", "overlay", "position", "leading", "trailing", "both"}
_ENDS_OF_LIST = {
    "where", "group", "order", "having", "limit", "union", "except", "intersect", "set", "values", "select",
    "returning", "window", "when", "offset", "fetch", "for", "final", "prewhere", "qualify", "settings", "array",
}  # fmt: skip
_NO_TABLE = _ENDS_OF_LIST | {
    "on", "using", "join", "left", "right", "inner", "outer", "full", "cross", "natural", "as", "with", "tablesample",
    "function", "outfile", "dumpfile",
}  # fmt: skip
_BEFORE_NAME = {
    "only", "lateral", "table", "low_priority", "high_priority", "delayed", "ignore", "into", "overwrite", "or",
    "replace", "rollback", "abort", "fail", "all",
}  # fmt: skip
_WITHOUT_TABLES = {"grant", "revoke", "show", "fetch", "move", "drop", "comment"}


class Tables(NamedTuple):
    """Names of tables, as written, without quotes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class _Word(NamedTuple):
    text: str  # as written, without quotes
    quoted: bool = False
    symbol: bool = False


@lru_cache(1024)
def tables_of(text: str, dialect: Dialect = "postgres") -> Tables:
    """The tables of all statements of a text."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    temporary: set[str] = set()
    for statement in split(text, dialect):
        _Statement(list(_words(statement, dialect)), reads, writes, temporary).scan()
    return Tables(
        tuple(name for name in reads if name.lower() not in temporary),
        tuple(name for name in writes if name.lower() not in temporary),
    )


def _words(statement: str, dialect: Dialect) -> Iterator[_Word]:
    for token in tokens(statement, dialect):
        if token.kind == "comment":
            continue
        if token.kind == "string":
            if token.text[0] in '"`':
                yield _Word(token.text[1:-1].replace(token.text[0] * 2, token.text[0]), quoted=True)
            else:
                yield _Word("'", symbol=True)
        elif token.kind == "word":
            yield _Word(token.text.lower() if dialect == "postgres" else token.text)
        else:
            yield from (_Word(character, symbol=True) for character in token.text if not character.isspace())


@dataclass
class _Bracket:
    """What is known inside a pair of brackets."""

    function: str = ""
    into: dict[str, None] | None = None  # of the list of tables
    expected: bool = False  # a table is next


class _Statement:
    """One statement."""

    def __init__(
        self, words: list[_Word], reads: dict[str, None], writes: dict[str, None], temporary: set[str]
    ) -> None:
        self._words = words
        self._reads = reads
        self._writes = writes
        self._temporary = temporary
        self._expressions: dict[str, int] = {}  # common table expressions, and where each is known

    def scan(self) -> None:
        """Find the tables."""
        first = self._text(0)
        if first in _WITHOUT_TABLES:
            return
        number = 0
        if first == "create":
            number = self._create()
        elif first in ("insert", "replace", "merge"):
            number = self._one(0, self._writes) + 1
        elif first == "copy" and self._text(1) != "into":
            number = self._copy()
        self._common_table_expressions()
        brackets = [_Bracket()]
        while number < len(self._words):
            number = self._next(number, brackets) + 1

    def _next(self, at: int, brackets: list[_Bracket]) -> int:
        """Handle a word; returns the position of the last one that belongs to it."""
        word, current = self._words[at], brackets[-1]
        if word.symbol:
            if word.text == "(":
                before = self._words[at - 1] if at else None
                function = before.text.lower() if before is not None and not before.symbol else ""
                brackets.append(_Bracket(function, current.into if current.expected else None, current.expected))
                current.expected = False
            elif word.text == ")" and len(brackets) > 1:
                brackets.pop()
            elif word.text == ",":
                current.expected = current.into is not None
            else:
                current.expected = False
            return at
        return self._keyword(self._text(at), at, current)

    def _keyword(self, word: str, at: int, current: _Bracket) -> int:
        before = self._text(at - 1)
        if word == "from" and current.function not in _FROM_FUNCTIONS and before != "distinct":
            deleted = before == "delete" or (self._text(0) == "delete" and self._is_first("from", at))
            current.into, current.expected = (self._writes if deleted else self._reads), True
        elif (word in ("join", "straight_join") and before != "array") or (
            word == "using" and self._starts("delete", "merge") and not self._is_column_list(at + 1)
        ):
            current.into, current.expected = self._reads, True
        elif word == "truncate" and at == 0:
            current.into, current.expected = self._writes, True
        elif word == "into":
            return self._into(at)
        elif word == "update" and (
            at == 0 or self._symbol(at - 1) in ("(", ")") or before in ("explain", "analyze", "verbose")
        ):
            return self._one(at, self._writes)
        elif word == "table" and (
            at == 0 or self._symbol(at - 1) == "(" or before in ("as", "union", "all", "except", "intersect")
        ):
            return self._one(at, self._reads)
        elif word in _ENDS_OF_LIST:
            current.into, current.expected = None, False
        elif current.expected:
            return self._listed(at, current)
        return at

    def _listed(self, at: int, current: _Bracket) -> int:
        """A name in a list of tables; a function or subquery in it is no table."""
        if self._text(at) in ("only", "lateral", "table") and self._symbol(at + 1) != ".":
            return at
        if self._text(at) == "rows" and self._text(at + 1) == "from":  # ROWS FROM (functions)
            return at
        current.expected = False
        name, end = self._name(at)
        if name and self._symbol(end) != "(" and current.into is not None:
            self._add(name, end, current.into)
        return max(at, end - 1)

    def _copy(self) -> int:
        name, end = self._name(1)
        if name:
            while end < len(self._words) and self._text(end) not in ("from", "to"):
                end += 1
            self._add(name, end, self._reads if self._text(end) == "to" else self._writes)
            return end + 1
        return 1

    def _create(self) -> int:
        """The position after the name of a new table or view; the rest of other statements has no tables."""
        at = 1
        while at < len(self._words) and self._text(at) not in ("table", "view"):
            if self._symbol(at) == "(" or self._text(at) == "as":
                return len(self._words)
            at += 1
        start = at + 1
        while self._text(start) in ("if", "not", "exists"):
            start += 1
        name, end = self._name(start)
        if name and any(self._text(number) in ("temp", "temporary") for number in range(at)):
            self._temporary.add(name.lower())
        elif name:
            self._writes[name] = None
        return max(end, at + 1)

    def _into(self, at: int) -> int:
        if self._text(at + 1) in ("temp", "temporary"):
            name, end = self._name(at + 2 + (self._text(at + 2) == "table"))
            self._temporary.add(name.lower())
            return end - 1
        return self._one(at, self._writes)

    def _one(self, at: int, into: dict[str, None]) -> int:
        start = at + 1
        while self._text(start) in _BEFORE_NAME and self._symbol(start + 1) != ".":
            start += 1
        name, end = self._name(start)
        if name:
            self._add(name, end, into)
        return max(start, end) - 1

    def _add(self, name: str, end: int, into: dict[str, None]) -> None:
        known_from = self._expressions.get(name.lower())
        if into is self._writes or known_from is None or end <= known_from:
            into[name] = None

    def _name(self, at: int) -> tuple[str, int]:
        """A dotted name and the position after it."""
        parts: list[str] = []
        while at < len(self._words) and not self._words[at].symbol:
            if not parts and self._text(at) in _NO_TABLE:
                break
            parts.append(self._words[at].text)
            at += 1
            if self._symbol(at) != ".":
                break
            at += 1
        return ".".join(parts), at

    def _common_table_expressions(self) -> None:
        """A recursive expression is known in its own text, another one after it."""
        texts = [self._text(number) for number in range(len(self._words))]
        if "with" not in texts:
            return
        recursive = "recursive" in texts
        for at in (number for number, text in enumerate(texts) if text == "as" and number):
            start = at + 1
            while self._text(start) in ("not", "materialized"):
                start += 1
            if self._symbol(start) != "(":
                continue
            before = at - 1
            if self._symbol(before) == ")":
                while before > 0 and self._symbol(before) != "(":
                    before -= 1
                before -= 1
            if before >= 0 and not self._words[before].symbol:
                self._expressions.setdefault(self._words[before].text.lower(), start if recursive else self._end(start))

    def _end(self, at: int) -> int:
        """The position of the bracket that closes one."""
        depth = 0
        for number in range(at, len(self._words)):
            depth += (self._symbol(number) == "(") - (self._symbol(number) == ")")
            if not depth:
                return number
        return len(self._words)

    def _is_column_list(self, at: int) -> bool:
        """Whether a bracket has the columns of a join, and no subquery."""
        inside = self._symbol(at + 1) or self._text(at + 1)
        return self._symbol(at) == "(" and inside not in ("(", "select", "with", "values", "table", "from")

    def _is_first(self, word: str, at: int) -> bool:
        return all(self._text(number) != word for number in range(at))

    def _starts(self, *words: str) -> bool:
        return any(self._text(number) in words for number in range(min(len(self._words), 3))) or (
            self._text(0) == "with" and any(word.text.lower() in words for word in self._words if not word.symbol)
        )

    def _text(self, at: int) -> str:
        if not 0 <= at < len(self._words):
            return ""
        word = self._words[at]
        return "" if word.symbol or word.quoted else word.text.lower()

    def _symbol(self, at: int) -> str:
        return self._words[at].text if 0 <= at < len(self._words) and self._words[at].symbol else ""
