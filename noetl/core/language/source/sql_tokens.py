"""The tokens of SQL text: strings, quoted names, dollar quotes and comments as in the database, and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

# `mysql` has its own strings and comments, and placeholders `%s`; `ansi` is standard SQL with placeholders `?`.
Dialect = Literal["postgres", "duckdb", "sqlite", "mysql", "ansi"]

_PATTERN = r"""
      (?P<comment>COMMENT)
    | (?P<block>/\*)
    | (?P<string>STRING)
    | (?P<dollar>(?<![\w$])\$(?:[A-Za-z_]\w*)?\$)
    | (?P<named>%\((?P<percent>[^)]+)\)s)
    | (?P<positional>%s)
    | (?P<doubled>%%)
    | (?P<numbered>(?<!\w)\$\d+)
    | (?P<dollared>(?<![\w$])\$[A-Za-z_]\w*)
    | (?P<colon>(?<![:\w\]]):[A-Za-z_]\w*)
    | (?P<question>\?)
    | (?P<semicolon>;)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<other>[^'"`#$%:;?\w/-]+|.)
    """


def _token_pattern(comment: str, string: str) -> re.Pattern[str]:
    return re.compile(_PATTERN.replace("COMMENT", comment).replace("STRING", string), re.VERBOSE | re.DOTALL)


_TOKEN = _token_pattern(
    r"--[^\n]*",
    r"""(?<!\w)[eE]'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'|'[^']*(?:''[^']*)*'|"[^"]*(?:""[^"]*)*\"""",
)
_MYSQL_TOKEN = _token_pattern(
    r"--(?=\s|$)[^\n]*|\#[^\n]*",
    r"""'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'|"[^"\\]*(?:(?:\\.|"")[^"\\]*)*"|`[^`]*(?:``[^`]*)*`""",
)
_EDGE = re.compile(r"/\*|\*/")


class Token(NamedTuple):
    """A piece of SQL text and where it ends; `name` is a named parameter's."""

    kind: str
    text: str
    end: int
    name: str = ""


def tokens(text: str, dialect: Dialect = "postgres") -> Iterator[Token]:
    """Split the text into tokens, which together are the text."""
    position = 0
    pattern = _MYSQL_TOKEN if dialect == "mysql" else _TOKEN
    while position < len(text):
        match = pattern.match(text, position)
        assert match is not None  # `other` takes any character
        kind, end = str(match.lastgroup), match.end()
        name = ""
        if kind == "block":
            end = _end_of_comment(text, position, nested=dialect == "postgres")
            executed = dialect == "mysql" and text.startswith(("/*!", "/*M!"), position)
            kind = "other" if executed else "comment"
        elif kind == "dollar" and dialect in ("postgres", "duckdb", "ansi"):
            closing = text.find(match[0], end)
            end = len(text) if closing < 0 else closing + len(match[0])
            kind = "string"
        elif kind == "named":
            name = match["percent"].strip()
        elif kind in ("colon", "dollared"):
            name = match[0][1:]
        if kind == "dollared" and dialect == "postgres":
            kind = "other"
        if kind == "question" and dialect == "postgres":
            kind = "other"  # an operator of jsonb
        yield Token(kind, text[position:end], end, name)
        position = end


def _end_of_comment(text: str, start: int, *, nested: bool) -> int:
    depth, position = 1, start + 2
    while depth:
        edge = _EDGE.search(text, position)
        if edge is None:
            return len(text)
        if edge[0] == "*/":
            depth -= 1
        elif nested:
            depth += 1
        position = edge.end()
    return position
