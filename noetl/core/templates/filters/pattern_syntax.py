"""The structure of a regular expression: single-character atoms, groups, repetitions and assertions.

A pattern is written in the syntax of Python's `re`, which also checks it. `parse_pattern` splits it into pieces from
which a pattern for RE2 is written, and measures how expensive it can be. An atom (a literal, an escape, a class, `.`)
is kept as its source text: which characters it matches is decided by `re`, so classes, escapes and case folding
mean the same in both engines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from noetl.errors import TemplateError

MAX_REPETITION = 1000  # RE2's own limit
GROUP, END = "(", "$"  # pieces that are written differently for different texts

_FLAGS = {"i": re.I, "m": re.M, "s": re.S, "x": re.X, "a": re.A}
_ATOM_FLAGS = re.I | re.S | re.A
_TOKEN = re.compile(
    r"""
      (?P<comment>     \(\?\#[^)]*\) )
    | (?P<look>        \(\?<?[=!] )
    | (?P<atomic>      \(\?> )
    | (?P<atom>        \\0[0-7]{0,2} | \\[0-7]{3} | \\x.. | \\u.{4} | \\U.{8} | \\N\{[^}]*\}
                     | \[ \^? \]? (?: \\. | [^\\\]] )* \] )
    | (?P<reference>   \\[1-9][0-9]? | \(\?P= | \(\?\( )
    | (?P<assertion>   \\[AZbB] | [\^$] )
    | (?P<flags>       \(\? [a-zA-Z]* (?: - [a-zA-Z]+ )? [:)] )
    | (?P<group>       \( (?: \?P< \w+ > )? )
    | (?P<close>       \) )
    | (?P<alternative> \| )
    | (?P<repetition>  (?: [*+?] | \{ (?: [0-9]+ ,? [0-9]* | , [0-9]* ) \} ) [?+]? )
    | (?P<other>       \\. | . )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Part:
    """A part of a pattern: the least length of its match, its number of atoms, repetitions written out."""

    width: int = 0
    atoms: int = 0
    open: bool = False  # a repetition without an upper bound is in it
    group: bool = False


@dataclass
class _Level:
    """A group that is being read."""

    flags: int
    alternatives: list[_Part] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)

    def end_alternative(self) -> None:
        """Add up the parts read since the last `|`."""
        self.alternatives.append(
            _Part(
                sum(part.width for part in self.parts),
                sum(part.atoms for part in self.parts),
                any(part.open for part in self.parts),
            )
        )
        self.parts = []


class Pattern:
    """A parsed regular expression."""

    def __init__(self, source: str, flags: int) -> None:
        self.compiled = re.compile(source, flags)
        self.atoms: dict[tuple[str, int], int] = {}  # source and flags -> number
        self.pieces: list[str | int] = []  # text for RE2, GROUP, END, or the number of an atom
        self.has_boundary = False
        self.has_end = False
        self.alternatives = 1  # how many paths a backtracking engine may try from one position
        self.open_repetitions = 0
        self.is_flat = True  # no group is repeated
        # A search may read far beyond the match that it finds, and the next search reads the same text again.
        self.rescans = False
        whole = self._parse(source)
        self.min_width = whole.width
        self.size = max(whole.atoms, 1)

    def _parse(self, source: str) -> _Part:
        self._levels = [_Level(self.compiled.flags)]
        at = 0
        while at < len(source):
            token = _TOKEN.match(source, at)
            assert token is not None and token.lastgroup is not None
            at = token.end()
            kind, text = token.lastgroup, token.group()
            verbose = self._levels[-1].flags & re.X
            if verbose and text == "#":
                at = source.find("\n", at) % (len(source) + 1)
            elif kind != "comment" and not (verbose and text in " \t\n\r\v\f"):
                getattr(self, f"_{kind}", self._atom)(text)
        return self._close_level()

    def _atom(self, text: str) -> None:
        key = (text, self._levels[-1].flags & _ATOM_FLAGS)
        self._add(self.atoms.setdefault(key, len(self.atoms)), _Part(1, 1))

    def _assertion(self, text: str) -> None:
        multiline = self._levels[-1].flags & re.M
        self.has_boundary |= text in (r"\b", r"\B")
        self.has_end |= text == END and not multiline
        if multiline and text in "^$":
            text = f"(?m:{text})"
        self._add({"^": r"\A", r"\Z": r"\z"}.get(text, text), _Part())

    def _add(self, piece: str | int, part: _Part) -> None:
        self.pieces.append(piece)
        self._levels[-1].parts.append(part)

    def _group(self, text: str) -> None:
        self.pieces.append(GROUP)
        self._levels.append(_Level(self._levels[-1].flags))

    def _flags(self, text: str) -> None:
        if text.endswith(")"):
            return  # flags of the whole pattern, which `re` has read
        added, _, removed = text[2:-1].partition("-")
        flags = self._levels[-1].flags
        for letter in added:
            flags = flags & ~re.A if letter == "u" else flags | _FLAGS[letter]
        for letter in removed:
            flags &= ~_FLAGS[letter]
        self.pieces.append("(?:")
        self._levels.append(_Level(flags))

    def _close(self, text: str) -> None:
        self.pieces.append(")")
        part = self._close_level()
        part.group = True
        self._levels[-1].parts.append(part)

    def _close_level(self) -> _Part:
        level = self._levels.pop()
        level.end_alternative()
        self.alternatives *= len(level.alternatives)
        has_open = any(part.open for part in level.alternatives)
        self.rescans |= has_open and len(level.alternatives) > 1
        return _Part(
            min(part.width for part in level.alternatives), sum(part.atoms for part in level.alternatives), has_open
        )

    def _alternative(self, text: str) -> None:
        self.pieces.append("|")
        self._levels[-1].end_alternative()

    def _repetition(self, text: str) -> None:
        if text.endswith("+") and len(text) > 1:
            _unsupported("possessive repetitions")
        lazy = "?" if text.endswith("?") and len(text) > 1 else ""
        low, high = _bounds(text.removesuffix(lazy))
        if max(low, high or 0) > MAX_REPETITION:
            raise TemplateError(f"a repetition in a regular expression may count to {MAX_REPETITION:,} at most")
        self.pieces.append(f"{{{low},{'' if high is None else high}}}{lazy}")
        part = self._levels[-1].parts[-1]
        if part.group and (high is None or high > 1):
            self.is_flat = False
        if high is None:
            self.open_repetitions += 1
        else:
            self.alternatives *= high - low + 1
        self.rescans |= part.open
        part.width *= low
        part.atoms *= max(low, high or 1)
        part.open |= high is None

    def _look(self, text: str) -> NoReturn:
        _unsupported("look-ahead and look-behind")

    def _reference(self, text: str) -> NoReturn:
        _unsupported("back references")

    def _atomic(self, text: str) -> NoReturn:
        _unsupported("atomic groups")


def _bounds(text: str) -> tuple[int, int | None]:
    if text in "*+?":
        return (int(text == "+"), 1 if text == "?" else None)
    low, comma, high = text.strip("{}").partition(",")
    if not comma:
        return int(low), int(low)
    return int(low or 0), int(high) if high else None


def _unsupported(what: str) -> NoReturn:
    raise TemplateError(f"{what} are not supported in regular expressions")
