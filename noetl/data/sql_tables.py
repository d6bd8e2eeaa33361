"""The tables that a statement reads and writes, found by its keywords.

This is no parser of SQL: it knows the places of table names in the statements of common databases. Names of common
table expressions, table functions and temporary tables are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from noetl.data.sql import Dialect, tokens
from noetl.data.sql_statements import split

_FROM_FUNCTIONS = {"extract", "substring", "trim", "overlay", "position", "leading", "trailing", "both"}
_NO_ALIAS = {
    "on", "using", "where", "join", "left", "right", "inner", "outer", "full", "cross", "natural", "group", "order",
    "having", "limit", "union", "except", "intersect", "set", "values", "select", "returning", "window", "as", "when",
    "offset", "fetch", "for", "lateral", "tablesample", "final", "prewhere", "qualify",
}  # fmt: skip


class Tables(NamedTuple):
    """Names of tables, as written, without quotes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class _Word(NamedTuple):
    text: str  # lower case, unless it is quoted
    quoted: bool = False
    symbol: bool = False


@lru_cache(1024)
def tables_of(text: str, dialect: Dialect = "postgres") -> Tables:
    """The tables of all statements of a text."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    hidden: set[str] = set()
    for statement in split(text, dialect):
        _Statement(list(_words(statement, dialect)), reads, writes, hidden).scan()
    return Tables(
        tuple(name for name in reads if name.lower() not in hidden),
        tuple(name for name in writes if name.lower() not in hidden),
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
            yield _Word(token.text)
        else:
            yield from (_Word(character, symbol=True) for character in token.text if not character.isspace())


class _Statement:
    """One statement."""

    def __init__(self, words: list[_Word], reads: dict[str, None], writes: dict[str, None], hidden: set[str]) -> None:
        self._words = words
        self._reads = reads
        self._writes = writes
        self._hidden = hidden  # names that are no tables of the database

    def scan(self) -> None:
        """Find the tables."""
        self._common_table_expressions()
        functions: list[str] = []  # in front of the open brackets
        number = 0
        while number < len(self._words):
            word = self._words[number]
            if word.symbol:
                if word.text == "(":
                    before = self._words[number - 1] if number else None
                    functions.append(before.text.lower() if before is not None and not before.symbol else "")
                elif word.text == ")" and functions:
                    functions.pop()
            elif not word.quoted:
                inside = functions[-1] if functions else ""
                number = self._keyword(word.text.lower(), number, inside)
            number += 1

    def _keyword(self, word: str, at: int, function: str) -> int:
        """Handle a keyword; returns the position of the last word that belongs to it."""
        before = self._text(at - 1)
        if word == "from" and function not in _FROM_FUNCTIONS and before != "distinct":
            return self._list(at, self._writes if before == "delete" else self._reads)
        if word == "join" or (word == "using" and self._starts("delete", "merge")):
            return self._list(at, self._reads)
        if word == "into" and before in ("insert", "merge", "replace", "ignore", "overwrite"):
            return self._one(at, self._writes)
        if word == "update" and before not in ("do", "for", "key", "no"):
            return self._one(at, self._writes)
        if word == "truncate":
            return self._list(at + (self._text(at + 1) == "table"), self._writes)
        if word == "copy" and at == 0:
            return self._copy(at)
        if word == "table" and self._starts("create"):
            return self._create(at)
        return at

    def _copy(self, at: int) -> int:
        name, end = self._name(at + 1)
        if name:
            while end < len(self._words) and self._text(end) not in ("from", "to"):
                end += 1
            (self._reads if self._text(end) == "to" else self._writes)[name] = None
        return end

    def _create(self, at: int) -> int:
        start = at + 1
        while self._text(start) in ("if", "not", "exists"):
            start += 1
        name, end = self._name(start)
        if name and any(self._text(number) in ("temp", "temporary") for number in range(at)):
            self._hidden.add(name.lower())
        elif name:
            self._writes[name] = None
        return end - 1

    def _one(self, at: int, into: dict[str, None]) -> int:
        start = at + 1
        while self._text(start) in ("only", "table", "low_priority", "ignore"):
            start += 1
        name, end = self._name(start)
        if name:
            into[name] = None
        return end - 1

    def _list(self, at: int, into: dict[str, None]) -> int:
        """A list of tables with aliases; a subquery or a function in it is no table."""
        number = at + 1
        while True:
            while self._text(number) in ("only", "lateral"):
                number += 1
            name, end = self._name(number)
            if not name or self._symbol(end) == "(":
                return number - 1
            into[name] = None
            number = end
            if self._text(number) == "as":
                number += 1
            if self._is_alias(number):
                number += 1
            if self._symbol(number) != ",":
                return number - 1
            number += 1

    def _is_alias(self, at: int) -> bool:
        if at >= len(self._words) or self._words[at].symbol:
            return False
        return self._words[at].quoted or self._words[at].text.lower() not in _NO_ALIAS

    def _name(self, at: int) -> tuple[str, int]:
        """A dotted name and the position after it."""
        parts: list[str] = []
        while at < len(self._words) and not self._words[at].symbol:
            if not parts and not self._words[at].quoted and self._words[at].text.lower() in _NO_ALIAS:
                break
            parts.append(self._words[at].text)
            at += 1
            if self._symbol(at) != ".":
                break
            at += 1
        return ".".join(parts), at

    def _common_table_expressions(self) -> None:
        if not any(word.text.lower() == "with" for word in self._words if not word.quoted):
            return
        for at, word in enumerate(self._words):
            following = at + 1
            while self._text(following) in ("not", "materialized"):
                following += 1
            if word.symbol or word.quoted or word.text.lower() != "as" or self._symbol(following) != "(" or not at:
                continue
            before = at - 1
            if self._symbol(before) == ")":
                while before > 0 and self._symbol(before) != "(":
                    before -= 1
                before -= 1
            if before >= 0 and not self._words[before].symbol:
                self._hidden.add(self._words[before].text.lower())

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
