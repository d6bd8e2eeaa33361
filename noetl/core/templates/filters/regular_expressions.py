"""Regular expressions with a bounded cost.

The matches are those of Python's `re`, but `re` backtracks: `(a+)+$` over thirty letters takes minutes. It is used
only where the number of its steps has a small upper bound. All other searches run on RE2, whose
cost is proportional to the length of the text times the size of the pattern. Both charge the evaluation
budget for that bound before they start.

RE2 reads bytes, one for each character. In a text that is not ASCII, characters that no part of the pattern
distinguishes share a byte; `re` decides which characters an atom matches. So `\\w`, `\\b` and case folding
have their Unicode meaning, and offsets need no conversion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from noetl.core.templates.budget import EvaluationBudget, limit_exceeded
from noetl.core.templates.filters.pattern_syntax import END, GROUP, Pattern
from noetl.errors import TemplateError

MAX_PATTERN = 1000  # characters
MAX_SUBJECT = 1_000_000  # characters
LINEAR_STEPS = 10_000_000  # steps of `re` for a pattern without open repetitions
BACKTRACKING_STEPS = 200_000  # steps of `re` for other patterns
_STEPS_SHIFT = 9  # 512 steps of an engine are one operation
_RESCAN_SHIFT = 10  # 1,024 characters read again after a match are one operation

_Spans = tuple[tuple[int, int], ...]


class Match(NamedTuple):
    """A match: the text that was searched, and the spans of the match and its groups, (-1, -1) for an absent one."""

    text: str
    spans: _Spans

    def group(self, number: int = 0) -> str | None:
        """Return the text of a group; group 0 is the whole match."""
        start, end = self.spans[number]
        return None if start < 0 else self.text[start:end]

    def groups(self) -> list[str | None]:
        """Return the texts of all groups."""
        return [self.group(number) for number in range(1, len(self.spans))]


# ── what filters call ───────────────────────────────────────────────────────────────────


def search(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """Return the first match."""
    return _first(budget, _parsed(pattern, ignorecase), text, anchored=False)


def match(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """Return the match at the beginning of the text."""
    return _first(budget, _parsed(pattern, ignorecase), text, anchored=True)


def findall(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> list[Any]:
    """Return all matches: their texts, or the texts of their groups."""
    found: list[Any] = []
    for each in _matches(budget, _parsed(pattern, ignorecase), text):
        groups = [group or "" for group in each.groups()]
        found.append(each.group() if not groups else groups[0] if len(groups) == 1 else groups)
    return found


def replace(budget: EvaluationBudget, pattern: Any, replacement: Any, text: str, *, ignorecase: bool = False) -> str:
    """Replace every match."""
    if not isinstance(replacement, str):
        raise TemplateError("the replacement of a regular expression must be text")
    parsed = _parsed(pattern, ignorecase)
    expand = _replacement(replacement, parsed.compiled)
    pieces: list[str] = []
    at = 0
    for each in _matches(budget, parsed, text):
        start, end = each.spans[0]
        new = expand(each)
        budget.charge_text(start - at + len(new))
        pieces += (text[at:start], new)
        at = end
    pieces.append(text[at:])
    whole = "".join(pieces)
    if len(whole) > budget.max_text:
        budget.charge_text(len(whole))
    return whole


def _parsed(pattern: Any, ignorecase: bool) -> Pattern:
    if not isinstance(pattern, str):
        raise TemplateError("a regular expression must be text")
    if len(pattern) > MAX_PATTERN:
        limit_exceeded(f"a regular expression of {len(pattern):,} characters (at most {MAX_PATTERN:,})")
    return _cached_pattern(pattern, bool(ignorecase))


@lru_cache(maxsize=256)
def _cached_pattern(pattern: str, ignorecase: bool) -> Pattern:
    try:
        return Pattern(pattern, re.IGNORECASE if ignorecase else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        raise TemplateError(f"invalid regular expression: {problem}") from None


# ── choosing the engine ─────────────────────────────────────────────────────────────────


def _first(budget: EvaluationBudget, pattern: Pattern, text: str, *, anchored: bool) -> Match | None:
    if _charge_backtracking(budget, pattern, text):
        found = pattern.compiled.match(text) if anchored else pattern.compiled.search(text)
        return None if found is None else _from_re(found)
    program, data = _program(budget, pattern, text)
    first = program.regexp.match(data) if anchored else program.regexp.search(data)
    return None if first is None else Match(text, program.spans(first, len(data)))


def _matches(budget: EvaluationBudget, pattern: Pattern, text: str) -> Iterator[Match]:
    # Where a match may be empty, RE2 decides alone: the engines continue differently after an empty match.
    if pattern.min_width and _charge_backtracking(budget, pattern, text):
        for found in pattern.compiled.finditer(text):
            budget.charge(1)
            yield _from_re(found)
        return
    program, data = _program(budget, pattern, text)
    for spans in program.find_all(data):
        budget.charge(2 + ((len(data) - spans[0][0]) >> _RESCAN_SHIFT if pattern.rescans else 0))
        yield Match(text, spans)


def _charge_backtracking(budget: EvaluationBudget, pattern: Pattern, text: str) -> bool:
    """Whether `re` needs few steps whatever the text is; if so, charge for them."""
    if len(text) > MAX_SUBJECT:
        limit_exceeded(f"a regular expression over {len(text):,} characters (at most {MAX_SUBJECT:,})")
    if not pattern.is_flat or pattern.open_repetitions > 4:
        return False
    if pattern.has_end and text.endswith("\n"):
        return False  # where something follows `$`, the engines differ
    steps = pattern.alternatives * pattern.size * (len(text) + 1) ** (pattern.open_repetitions + 1)
    if steps > (BACKTRACKING_STEPS if pattern.open_repetitions else LINEAR_STEPS):
        return False
    budget.charge(1 + (steps >> _STEPS_SHIFT))
    return True


def _from_re(found: re.Match[str]) -> Match:
    return Match(found.string, tuple(found.span(number) for number in range(found.re.groups + 1)))


# ── RE2 ─────────────────────────────────────────────────────────────────────────────────


class _Program(NamedTuple):
    """A pattern compiled by RE2 for one assignment of bytes to characters."""

    regexp: Any
    groups: tuple[int, ...]  # numbers of the author's groups, 0 for the whole match included
    newlines: tuple[int, ...]  # numbers of groups that hold the newline before which `$` matched

    def find_all(self, data: bytes) -> Iterator[_Spans]:
        """Find all matches from left to right."""
        if not self.newlines:
            last: _Spans = ()
            for found in self.regexp.finditer(data):
                spans = self.spans(found, len(data))
                if spans != last:  # RE2 finds an empty match twice
                    yield spans
                last = spans
            return
        at = 0
        while at <= len(data) and (found := self.regexp.search(data, at)) is not None:
            spans = self.spans(found, len(data))
            yield spans
            start, end = spans[0]
            at = end + (start == end)

    def spans(self, found: Any, length: int) -> _Spans:
        """Return the spans of the author's groups, without a newline that `$` has read."""
        pairs = [found.span(number) for number in self.groups]
        if self.newlines and any(found.span(number)[0] >= 0 for number in self.newlines):
            pairs = [(min(start, length - 1), min(end, length - 1)) for start, end in pairs]
        return tuple(pairs)


def _program(budget: EvaluationBudget, pattern: Pattern, text: str) -> tuple[_Program, bytes]:
    """Return the compiled pattern for a text, and the text as the bytes that it reads."""
    budget.charge(1 + (len(text) * pattern.size >> _STEPS_SHIFT))
    if text.isascii():
        sets, data = _ascii_sets(pattern), text.encode()
    else:
        budget.charge(len(text) >> 5)
        sets, data = _shared_bytes(pattern, text)
    source, groups, newlines = _re2_source(pattern, sets, before_newline=pattern.has_end and data.endswith(b"\n"))
    return _Program(_compile(source), groups, newlines), data


@lru_cache(maxsize=128)
def _compile(source: bytes) -> Any:
    import re2  # takes 20 ms; most processes never need it

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as problem:
        detail = problem.args[0].decode() if isinstance(problem.args[0], bytes) else problem
        limit_exceeded(f"the repetitions of a regular expression are too large ({detail})")


def _re2_source(
    pattern: Pattern, sets: list[str], *, before_newline: bool
) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """Write a pattern for RE2; also return the numbers of its groups.

    `$` also matches before a newline at the end of the text. RE2 cannot look ahead, so there it reads the newline
    into a group of its own, and the match is shortened afterwards.
    """
    pieces: list[str] = []
    groups, newlines = [0], []
    count = 0
    for piece in pattern.pieces:
        if isinstance(piece, int):
            pieces.append(sets[piece])
            continue
        if piece == GROUP:
            count += 1
            groups.append(count)
        elif piece == END and not before_newline:
            piece = r"\z"
        elif piece == END:
            count += 1
            newlines.append(count)
            piece = r"(?:\z|(\n)\z)"
        pieces.append(piece)
    return "".join(pieces).encode(), tuple(groups), tuple(newlines)


# ── characters as bytes ─────────────────────────────────────────────────────────────────

_ASCII = "".join(map(chr, range(128)))
_WORD = [byte for byte in range(128) if chr(byte).isalnum() or byte == ord("_")]
_OTHERS = [byte for byte in range(256) if byte not in _WORD and byte != ord("\n")]


@lru_cache(maxsize=256)
def _ascii_sets(pattern: Pattern) -> list[str]:
    return [_byte_set(map(ord, members)) for members in _members(pattern, _ASCII)]


def _shared_bytes(pattern: Pattern, text: str) -> tuple[list[str], bytes]:
    """Give a byte to every class of characters that the pattern does not distinguish.

    RE2's `\\b` knows the ASCII word characters alone, so with it word characters get bytes of those.
    """
    letters = "".join(sorted(set(text)))
    members = _members(pattern, letters)
    words = set(re.findall(r"\w", letters, pattern.compiled.flags & re.ASCII))
    classes: dict[tuple[bool, ...], list[str]] = {}
    for letter in letters:
        if letter != "\n":
            key = (pattern.has_boundary and letter in words, *(letter in each for each in members))
            classes.setdefault(key, []).append(letter)
    word_bytes, other_bytes = iter(_WORD), iter(_OTHERS if pattern.has_boundary else [*_OTHERS, *_WORD])
    table = {ord("\n"): ord("\n")}
    for key in sorted(classes):  # the same classes give the same pattern, which is then compiled once
        byte = next(word_bytes if key[0] else other_bytes, None)
        if byte is None:
            limit_exceeded("a regular expression that distinguishes too many characters")
        table.update(dict.fromkeys(map(ord, classes[key]), byte))
    sets = [_byte_set(table[ord(letter)] for letter in each) for each in members]
    return sets, text.translate(table).encode("latin-1")


def _members(pattern: Pattern, letters: str) -> list[set[str]]:
    """Return, for each atom, which of the letters it matches."""
    return [set(re.findall(source, letters, flags)) for source, flags in pattern.atoms]


def _byte_set(values: Any) -> str:
    """Write a set of bytes as a class of RE2."""
    ordered = sorted(set(values))
    if len(ordered) == 1:
        return rf"\x{ordered[0]:02x}"
    ranges: list[list[int]] = []
    for value in ordered:
        if ranges and ranges[-1][1] == value - 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    body = "".join(rf"\x{low:02x}-\x{high:02x}" for low, high in ranges)
    return f"[{body}]" if body else r"[^\x00-\xff]"


# ── replacements ────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(r"\\(?:(\d{1,2})|g<(\w+)>|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def _replacement(template: str, compiled: re.Pattern[str]) -> Callable[[Match], str]:
    """Return the function that fills a replacement with `\\1` and `\\g<name>` from a match."""
    pieces: list[str | int] = []
    at = 0
    for escape in _ESCAPE.finditer(template):
        pieces.append(template[at : escape.start()])
        number, name, letter = escape.groups()
        if letter is not None:
            pieces.append(_CONTROL.get(letter, "\\" + letter))
        else:
            pieces.append(_group_number(number or name, compiled))
        at = escape.end()
    pieces.append(template[at:])
    return lambda found: "".join(piece if isinstance(piece, str) else (found.group(piece) or "") for piece in pieces)


def _group_number(name: str, compiled: re.Pattern[str]) -> int:
    number = int(name) if name.isdigit() else compiled.groupindex.get(name, -1)
    if not 0 <= number <= compiled.groups:
        raise TemplateError(f'the regular expression has no group "{name}"')
    return number
