"""The tables and files that a statement reads and writes, found by its keywords.

This is no parser of SQL: it knows the places of table names in the statements of common databases. Names of common
table expressions, table functions and temporary tables are left out. PostgreSQL stores unquoted names in lower case, so
they are in lower case here. Files are those of DuckDB (`FROM 'x.csv'`, `read_csv('x.csv')`, `COPY ... TO 'x.csv'`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from noetl.data.sql import Dialect, Token, tokens
from noetl.data.sql.sql_statements import split

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
    "replace", "rollback", "abort", "fail", "all", "unlogged", "concurrently",
}  # fmt: skip
_WITHOUT_TABLES = {"grant", "revoke", "show", "fetch", "move", "drop", "comment", "import"}
_NAMED_FIRST = {"summarize", "pivot", "unpivot"}  # statements of DuckDB that begin with a table
_FILE_FUNCTIONS = ("read_", "parquet_scan", "delta_scan", "iceberg_scan")  # beginnings of names of DuckDB
_NAME_QUOTES = {"sqlite": {"`": "`", "[": "]"}, "ansi": {"`": "`"}}  # beside those that are strings of the dialect


class Tables(NamedTuple):
    """Names of tables and files, as written, without quotes; `attached` are databases: name -> (file, type)."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    files_read: tuple[str, ...] = ()
    files_written: tuple[str, ...] = ()
    attached: Mapping[str, tuple[str, str]] = MappingProxyType({})


class _Word(NamedTuple):
    text: str  # as written, without quotes
    quoted: bool = False
    symbol: bool = False
    string: str = ""  # of a symbol `'`: the text, where it can be a file


@lru_cache(1024)
def tables_of(text: str, dialect: Dialect = "postgres") -> Tables:
    """The tables of all statements of a text."""
    found = _Found()
    for statement in split(text, dialect):
        _Statement(list(_words(statement, dialect)), found).scan()
    if dialect in ("mysql", "ansi"):
        found.temporary.add("dual")
    return Tables(
        _lasting(found.reads, found.temporary),
        _lasting(found.writes, found.temporary),
        tuple(found.files_read),
        tuple(found.files_written),
        MappingProxyType(found.attached),
    )


def _lasting(names: dict[str, None], temporary: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name.lower() not in temporary and not name.lower().startswith("pg_temp."))


def _words(statement: str, dialect: Dialect) -> Iterator[_Word]:
    quotes = _NAME_QUOTES.get(dialect, {})
    name, closing = "", ""  # of a quoted name that has begun
    for token in tokens(statement, dialect):
        if token.kind == "comment" and not closing:
            continue
        if token.kind in ("string", "word"):
            if closing:
                name += token.text
            else:
                yield _word(token, dialect)
            continue
        for character in token.text:
            if closing:
                if character == closing:
                    yield _Word(name, quoted=True)
                    name, closing = "", ""
                else:
                    name += character
            elif character in quotes:
                closing = quotes[character]
            elif not character.isspace():
                yield _Word(character, symbol=True)


def _word(token: Token, dialect: Dialect) -> _Word:
    if token.kind == "word":
        return _Word(token.text.lower() if dialect == "postgres" else token.text)
    if token.text[0] in '"`':
        return _Word(token.text[1:-1].replace(token.text[0] * 2, token.text[0]), quoted=True)
    return _Word("'", symbol=True, string=_file_text(token.text) if dialect in ("duckdb", "sqlite") else "")


def _file_text(literal: str) -> str:
    return literal[1:-1].replace("''", "'") if literal[0] == "'" else ""


@dataclass
class _Bracket:
    """What is known inside a pair of brackets."""

    function: str = ""
    into: dict[str, None] | None = None  # of the list of tables
    expected: bool = False  # a table is next
    is_list: bool = False  # in `[...]`
    arguments: int = 0  # before the current one


class _Found:
    """What statements read and write; the dicts are ordered sets."""

    def __init__(self) -> None:
        self.reads: dict[str, None] = {}
        self.writes: dict[str, None] = {}
        self.files_read: dict[str, None] = {}
        self.files_written: dict[str, None] = {}
        self.temporary: set[str] = set()
        self.attached: dict[str, tuple[str, str]] = {}


class _Statement:
    """One statement."""

    def __init__(self, words: list[_Word], found: _Found) -> None:
        self._words = words
        self._found = found
        self._reads = found.reads
        self._writes = found.writes
        self._temporary = found.temporary
        # Common table expressions, and the positions between which each is known.
        self._expressions: dict[str, list[tuple[int, int]]] = {}
        self._deleted: set[str] = set()  # the names or aliases before FROM in a DELETE of MySQL

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
        elif first in _NAMED_FIRST:
            number = self._one(0, self._reads) + 1
        elif first == "refresh":
            self._one(2, self._writes)
            return
        elif first == "delete" and self._text(1) != "from":
            number = self._delete()
        elif first == "copy" and self._text(1) != "into":
            self._copied_files()
            number = self._copy()
        elif first == "attach":
            self._attach()
            return
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
                current.arguments += not current.is_list
            else:
                self._other_symbol(word, current)
            return at
        return self._keyword(self._text(at), at, current)

    def _other_symbol(self, word: _Word, current: _Bracket) -> None:
        """A string is a file where a table is expected, and in the first argument of a function that reads files."""
        reads_file = current.function.startswith(_FILE_FUNCTIONS) and not current.arguments
        if word.string and (current.expected or reads_file):
            self._found.files_read[word.string] = None
        current.is_list = word.text == "[" or (current.is_list and word.text != "]")
        current.expected = False

    def _copied_files(self) -> None:
        """The files after TO and FROM in COPY."""
        for at, word in enumerate(self._words):
            if word.string and self._text(at - 1) in ("to", "from"):
                files = self._found.files_written if self._text(at - 1) == "to" else self._found.files_read
                files[word.string] = None

    def _attach(self) -> None:
        """`ATTACH 'file' AS name (TYPE type)`; without a name it is that of the file."""
        at = next((number for number, word in enumerate(self._words) if word.string), -1)
        if at < 0:
            return
        file = self._words[at].string
        named = self._words[at + 2].text if self._text(at + 1) == "as" and at + 2 < len(self._words) else ""
        types = (self._text(number + 1) for number in range(at, len(self._words)) if self._text(number) == "type")
        stem = file.partition("?")[0].rpartition("/")[2].partition(".")[0]
        self._found.attached[(named or stem).lower()] = (file, next(types, ""))

    def _keyword(self, word: str, at: int, current: _Bracket) -> int:
        before = self._text(at - 1)
        if word == "from" and current.function not in _FROM_FUNCTIONS and before != "distinct":
            deleted = before == "delete"
            current.into, current.expected = (self._writes if deleted else self._reads), True
        elif (word in ("join", "straight_join") and before not in ("array", "for")) or (
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
            current.into = self._reads  # `UPDATE a, b SET` of MySQL
            return self._one(at, self._writes)
        elif self._is_query(word, at, current):
            return self._one(at, self._reads)
        elif word in _ENDS_OF_LIST or (word == "with" and current.expected):  # WITH in brackets: a query
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
            self._add(name, end, self._writes if self._is_deleted(name, end) else current.into)
        return max(at, end - 1)

    def _delete(self) -> int:
        """The position of FROM in `DELETE a, b FROM a JOIN b` of MySQL; what is deleted are names or aliases."""
        at = 1
        while at < len(self._words) and self._text(at) != "from":
            name, end = self._name(at)
            self._deleted.add(name.lower())
            at = max(end, at + 1)
        return at

    def _is_deleted(self, name: str, end: int) -> bool:
        alias = self._words[end + (self._text(end) == "as")].text if end < len(self._words) - 1 else ""
        named = {name.lower(), name.rpartition(".")[2].lower(), alias.lower()}
        return bool(self._deleted & named) or (self._text(0) == "delete" and name in self._writes)

    def _is_query(self, word: str, at: int, current: _Bracket) -> bool:
        """Whether a word is a query whose table is next: `TABLE t`, or PIVOT in brackets."""
        before = self._text(at - 1)
        if word != "table":
            return word in _NAMED_FIRST and self._symbol(at - 1) == "("
        if at == 0 or self._symbol(at - 1) == "(" or before in ("as", "union", "all", "except", "intersect"):
            return True
        return self._text(0) == "insert" and not current.expected and self._symbol(at + 1) != "("

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
        if any(self._text(number) == "recursive" for number in range(at)):
            self._expressions[name.lower()] = [(0, len(self._words))]
        return max(end, at + 1)

    def _into(self, at: int) -> int:
        if self._text(at + 1) in ("temp", "temporary"):
            name, end = self._name(at + 2 + (self._text(at + 2) == "table"))
            self._temporary.add(name.lower())
            return end - 1
        if self._text(at + 1) == "name" and self._text(at + 3) == "value":  # the columns of UNPIVOT
            return at + 4
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
        known = any(start < end <= last for start, last in self._expressions.get(name.lower(), ()))
        if into is self._writes or not known:
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
        """A recursive expression is known in all of its statement, another one after its own text; neither outside of
        the brackets around WITH."""
        texts = [self._text(number) for number in range(len(self._words))]
        if "with" not in texts:
            return
        recursive = "recursive" in texts
        closing = self._closing_brackets()
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
                known_from = -1 if recursive else closing[start + 1]
                places = self._expressions.setdefault(self._words[before].text.lower(), [])
                places.append((known_from, closing[before]))

    def _closing_brackets(self) -> list[int]:
        """For each word the position of the bracket that closes the innermost pair around it."""
        last = len(self._words)
        opened: list[int] = []
        around: list[int] = []  # where the innermost pair of each word opens
        ends: dict[int, int] = {}
        for number in range(last):
            if self._symbol(number) == ")" and opened:
                ends[opened.pop()] = number
            around.append(opened[-1] if opened else -1)
            if self._symbol(number) == "(":
                opened.append(number)
        return [*(ends.get(place, last) for place in around), last]

    def _is_column_list(self, at: int) -> bool:
        """Whether a bracket has the columns of a join, and no subquery."""
        inside = self._symbol(at + 1) or self._text(at + 1)
        return self._symbol(at) == "(" and inside not in ("(", "select", "with", "values", "table", "from")

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
