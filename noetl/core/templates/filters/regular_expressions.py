"""Regular expressions that cannot run away.

Python's `re` backtracks, and `(a+)+$` over thirty letters takes minutes. Patterns of which it can be told
beforehand that backtracking stays small are given to `re`. All others run on a machine that
follows every possibility at once, one character at a time: its cost is the length of the text times
the size of the pattern, and every step is counted. Both give the same matches, because threads are kept in
the order in which a backtracker would try them; a property test compares the two.

What cannot be matched that way (look-around, back references, repetitions of what may be empty) is an
error that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from noetl.core.templates.budget import EvaluationBudget, limit_exceeded
from noetl.errors import TemplateError

MAX_PATTERN = 1000  # characters
MAX_PROGRAM = 3000  # instructions; counted repetitions are written out
MAX_SUBJECT = 1_000_000  # characters
SMALL_BACKTRACKING = 1_000_000  # steps that `re` may take at worst

_Set = Callable[[str], bool]


class Match:
    """A match: where it is, and its groups."""

    __slots__ = ("spans", "text")

    def __init__(self, text: str, spans: tuple[tuple[int, int] | None, ...]) -> None:
        self.text = text
        self.spans = spans

    def group(self, number: int = 0) -> str | None:
        """The text of a group; 0 is all of it."""
        span = self.spans[number]
        return None if span is None else self.text[span[0] : span[1]]

    def groups(self) -> list[str | None]:
        """The texts of all groups."""
        return [self.group(number) for number in range(1, len(self.spans))]


# ── what filters call ───────────────────────────────────────────────────────────────────


def search(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """The first match anywhere."""
    return next(_matches(budget, pattern, text, ignorecase), None)


def match(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """A match at the beginning."""
    return next(_matches(budget, pattern, text, ignorecase, anchored=True), None)


def findall(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> list[Any]:
    """All matches: their texts, or the texts of their groups."""
    found: list[Any] = []
    for each in _matches(budget, pattern, text, ignorecase):
        groups = [group or "" for group in each.groups()]
        found.append(each.group() if not groups else groups[0] if len(groups) == 1 else groups)
    return found


def replace(budget: EvaluationBudget, pattern: Any, replacement: Any, text: str, *, ignorecase: bool = False) -> str:
    """Every match replaced."""
    if not isinstance(replacement, str):
        raise TemplateError("the replacement of a regular expression is text")
    program = _program(pattern, ignorecase)
    expand = _replacement(replacement, program)
    pieces: list[str] = []
    at = 0
    for each in _matches(budget, pattern, text, ignorecase):
        start, end = each.spans[0] or (0, 0)
        new = expand(each)
        budget.charge_text(start - at + len(new))
        pieces += (text[at:start], new)
        at = end
    pieces.append(text[at:])
    whole = "".join(pieces)
    if len(whole) > budget.max_text:
        budget.charge_text(len(whole))
    return whole


def _matches(
    budget: EvaluationBudget, pattern: Any, text: str, ignorecase: bool, *, anchored: bool = False
) -> Iterator[Match]:
    if len(text) > MAX_SUBJECT:
        limit_exceeded(f"a regular expression over {len(text):,} characters (at most {MAX_SUBJECT:,})")
    program = _program(pattern, ignorecase)
    if program.small_for(len(text)):
        budget.charge(1 + (len(text) >> 2))
        yield from _backtrack(budget, program.compiled, text, anchored)
    else:
        yield from _simulate(budget, program, text, anchored)


def _backtrack(budget: EvaluationBudget, compiled: re.Pattern[str], text: str, anchored: bool) -> Iterator[Match]:
    if anchored:
        found = compiled.match(text)
        if found is not None:
            yield _from_re(found)
        return
    for each in compiled.finditer(text):
        budget.charge(1)
        yield _from_re(each)


def _from_re(found: re.Match[str]) -> Match:
    spans = [found.span(number) for number in range((found.re.groups or 0) + 1)]
    return Match(found.string, tuple(None if start < 0 else (start, end) for start, end in spans))


# ── programs ────────────────────────────────────────────────────────────────────────────


class _Instruction(NamedTuple):
    """`char`: step over one character of a set; `split`: try the targets in order; `save`: note the
    position; `at`: go on if the place is right; `match`: done."""

    kind: str
    value: Any = None
    targets: tuple[int, ...] = ()


class _Program:
    """A pattern, ready for both ways."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.compiled = re.compile(pattern, flags)
        tree = _parser.parse(pattern, flags)
        self.groups: int = self.compiled.groups
        self.names: dict[str, int] = dict(self.compiled.groupindex)
        self.code: list[_Instruction] = []
        self._variable = 0  # repetitions whose count is open
        self._ways = 1  # alternatives, multiplied
        self._nested = False
        self._supported(tree)
        self._measure(tree, False)
        self._emit(_Instruction("save", 0))
        self._build(tree, tree.state.flags)
        self._emit(_Instruction("save", 1))
        self._emit(_Instruction("match"))

    def small_for(self, length: int) -> bool:
        """Whether backtracking over a text of that length stays small whatever the text is."""
        if self._nested:
            return False
        return bool(self._ways * (length + 1) ** (min(self._variable, 6) + 1) <= SMALL_BACKTRACKING) and (
            self._variable <= 6
        )

    # What `re` may take.

    def _supported(self, tree: Any) -> None:
        for kind, value in tree:
            if kind in (sre.ASSERT, sre.ASSERT_NOT):
                raise TemplateError("look-ahead and look-behind are not supported in regular expressions here")
            if kind in (sre.GROUPREF, sre.GROUPREF_EXISTS):
                raise TemplateError("back references are not supported in regular expressions here")
            if kind is getattr(sre, "ATOMIC_GROUP", None) or kind is getattr(sre, "POSSESSIVE_REPEAT", None):
                raise TemplateError("atomic groups are not supported in regular expressions here")
            if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[1] > 1 and value[2].getwidth()[0] == 0:
                # Backtrackers disagree among themselves about what this means, and nobody needs it.
                raise TemplateError("a repetition of something that may be empty is not supported: `(a*)*`")
            for part in _parts(kind, value):
                self._supported(part)

    def _measure(self, tree: Any, repeated: bool) -> None:
        for kind, value in tree:
            inside = repeated
            if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
                low, high, _ = value
                self._variable += low != high
                self._nested |= repeated
                inside = True
            elif kind is sre.BRANCH:
                self._ways *= len(value[1])
                self._nested |= repeated
            for part in _parts(kind, value):
                self._measure(part, inside)

    # Instructions.

    def _emit(self, instruction: _Instruction) -> int:
        if len(self.code) >= MAX_PROGRAM:
            limit_exceeded("a regular expression whose repetitions are too large")
        self.code.append(instruction)
        return len(self.code) - 1

    def _build(self, tree: Any, flags: int) -> None:
        for kind, value in tree:
            if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
                low, high, inner = value
                self._repeat(low, high, inner, flags, greedy=kind is sre.MAX_REPEAT)
            elif kind is sre.BRANCH:
                self._branch(value[1], flags)
            elif kind is sre.SUBPATTERN:
                group, added, removed, inner = value
                if group is not None:
                    self._emit(_Instruction("save", group * 2))
                self._build(inner, (flags | added) & ~removed)
                if group is not None:
                    self._emit(_Instruction("save", group * 2 + 1))
            elif kind is sre.AT:
                self._emit(_Instruction("at", _place(value, flags)))
            else:
                self._emit(_Instruction("char", _character_set(kind, value, flags)))

    def _branch(self, ways: Any, flags: int) -> None:
        split = self._emit(_Instruction("split"))
        starts, ends = [], []
        for way in ways:
            starts.append(len(self.code))
            self._build(way, flags)
            ends.append(self._emit(_Instruction("split")))
        self.code[split] = _Instruction("split", None, tuple(starts))
        for end in ends:
            self.code[end] = _Instruction("split", None, (len(self.code),))

    def _repeat(self, low: int, high: Any, inner: Any, flags: int, *, greedy: bool) -> None:
        for _ in range(int(low)):
            self._build(inner, flags)
        if high is sre.MAXREPEAT:
            split = self._emit(_Instruction("split"))
            self._build(inner, flags)
            self._emit(_Instruction("split", None, (split,)))
            self._choose(split, greedy)
            return
        splits = []
        for _ in range(int(high) - int(low)):
            splits.append(self._emit(_Instruction("split")))
            self._build(inner, flags)
        for split in splits:
            self._choose(split, greedy)

    def _choose(self, split: int, greedy: bool) -> None:
        """Make a split go into what follows it, or past the whole repetition."""
        into, past = split + 1, len(self.code)
        self.code[split] = _Instruction("split", None, (into, past) if greedy else (past, into))


def _parts(kind: Any, value: Any) -> list[Any]:
    """The patterns inside a node of the tree."""
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return [value[2]]
    if kind is sre.BRANCH:
        return list(value[1])
    return [value[3]] if kind is sre.SUBPATTERN else []


def _program(pattern: Any, ignorecase: bool) -> _Program:
    if not isinstance(pattern, str):
        raise TemplateError("a regular expression is text")
    if len(pattern) > MAX_PATTERN:
        limit_exceeded(f"a regular expression of {len(pattern):,} characters (at most {MAX_PATTERN:,})")
    return _cached_program(pattern, bool(ignorecase))


@lru_cache(maxsize=256)
def _cached_program(pattern: str, ignorecase: bool) -> _Program:
    try:
        return _Program(pattern, re.IGNORECASE if ignorecase else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        raise TemplateError(f"the regular expression cannot be read: {problem}") from None


# ── single characters and places ────────────────────────────────────────────────────────

_CATEGORIES: dict[Any, _Set] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_NOT_DIGIT: lambda sign: not sign.isdecimal(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda sign: not sign.isspace(),
    sre.CATEGORY_WORD: lambda sign: sign.isalnum() or sign == "_",
    sre.CATEGORY_NOT_WORD: lambda sign: not (sign.isalnum() or sign == "_"),
}


def _character_set(kind: Any, value: Any, flags: int) -> _Set:
    if kind is sre.ANY:
        return (lambda sign: True) if flags & re.DOTALL else (lambda sign: sign != "\n")
    if kind is sre.LITERAL:
        members = [(sre.LITERAL, value)]
    elif kind is sre.NOT_LITERAL:
        members = [(sre.NEGATE, None), (sre.LITERAL, value)]
    elif kind is sre.IN:
        members = list(value)
    else:
        raise TemplateError(f"the regular expression has a part that is not supported here ({kind})")
    return _members(members, flags)


def _members(members: list[Any], flags: int) -> _Set:
    negated = bool(members) and members[0][0] is sre.NEGATE
    literals: set[str] = set()
    ranges: list[tuple[str, str]] = []
    categories: list[_Set] = []
    for kind, value in members[1:] if negated else members:
        if kind is sre.LITERAL:
            literals.add(chr(value))
        elif kind is sre.RANGE:
            ranges.append((chr(value[0]), chr(value[1])))
        else:
            categories.append(_CATEGORIES[value])

    def member(sign: str) -> bool:
        return (
            sign in literals
            or any(low <= sign <= high for low, high in ranges)
            or any(category(sign) for category in categories)
        )

    if flags & re.IGNORECASE:
        return lambda sign: (member(sign) or member(sign.lower()) or member(sign.upper())) is not negated
    return (lambda sign: not member(sign)) if negated else member


def _place(value: Any, flags: int) -> Callable[[str, int], bool]:
    multiline = bool(flags & re.MULTILINE)
    if value is sre.AT_BEGINNING_STRING or (value is sre.AT_BEGINNING and not multiline):
        return lambda text, at: at == 0
    if value is sre.AT_BEGINNING:
        return lambda text, at: at == 0 or text[at - 1] == "\n"
    if value is sre.AT_END_STRING:
        return lambda text, at: at == len(text)
    if value is sre.AT_END:
        if multiline:
            return lambda text, at: at == len(text) or text[at] == "\n"
        return lambda text, at: at == len(text) or (at == len(text) - 1 and text[at] == "\n")
    boundary = value is sre.AT_BOUNDARY

    def at_boundary(text: str, at: int) -> bool:
        before = at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_")
        after = at < len(text) and (text[at].isalnum() or text[at] == "_")
        return (before is not after) is boundary

    return at_boundary


# ── all possibilities at once ───────────────────────────────────────────────────────────

_Saves = tuple[int, ...]


def _simulate(budget: EvaluationBudget, program: _Program, text: str, anchored: bool) -> Iterator[Match]:
    """The matches one after the other, as `re.finditer` gives them."""
    start, forbidden = 0, -1
    while start <= len(text):
        saves = _first(budget, program, text, start, forbidden, anchored)
        if saves is None:
            return
        yield _from_saves(text, saves)
        if anchored:
            return
        begin, end = saves[0], saves[1]
        # After an empty match the next one must not be empty at the same place.
        start, forbidden = end, end if begin == end else -1


def _from_saves(text: str, saves: _Saves) -> Match:
    pairs = zip(saves[::2], saves[1::2], strict=True)
    return Match(text, tuple(None if start < 0 or end < 0 else (start, end) for start, end in pairs))


def _first(
    budget: EvaluationBudget, program: _Program, text: str, start: int, forbidden: int, anchored: bool
) -> _Saves | None:
    """The saves of the leftmost match from `start`; none that is empty at `forbidden`."""
    empty: _Saves = (-1,) * (2 * program.groups + 2)
    code = program.code
    threads: list[tuple[int, _Saves]] = []
    found: _Saves | None = None
    for at in range(start, len(text) + 1):
        seen: set[int] = set()
        current: list[tuple[int, _Saves]] = []
        for pc, saves in threads:
            _follow(budget, code, text, at, pc, saves, seen, current)
        if found is None and (not anchored or at == start):
            _follow(budget, code, text, at, 0, empty, seen, current)
        budget.charge(1 + len(current))
        threads = []
        sign = text[at] if at < len(text) else ""
        for pc, saves in current:
            instruction = code[pc]
            if instruction.kind == "match":
                if saves[0] == at == forbidden:
                    continue
                found = saves
                break  # what comes after it would have been tried later
            if sign and instruction.value(sign):
                threads.append((pc + 1, saves))
        if not threads and (found is not None or anchored):
            break
    return found


def _follow(
    budget: EvaluationBudget,
    code: list[_Instruction],
    text: str,
    at: int,
    pc: int,
    saves: _Saves,
    seen: set[int],
    current: list[tuple[int, _Saves]],
) -> None:
    """Add every instruction that waits for a character and can be reached from `pc`, best first."""
    stack = [(pc, saves)]
    steps = 0
    while stack:
        pc, saves = stack.pop()
        if pc in seen:
            continue
        seen.add(pc)
        steps += 1
        kind, value, targets = code[pc]
        if kind == "split":
            stack.extend((target, saves) for target in reversed(targets))
        elif kind == "save":
            stack.append((pc + 1, (*saves[:value], at, *saves[value + 1 :])))
        elif kind == "at":
            if value(text, at):
                stack.append((pc + 1, saves))
        else:
            current.append((pc, saves))
    budget.charge(steps)


# ── replacements ────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(r"\\(?:(\d{1,2})|g<(\w+)>|(.))", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def _replacement(template: str, program: _Program) -> Callable[[Match], str]:
    """A replacement with `\\1` and `\\g<name>` in it, as a function of the match."""
    pieces: list[str | int] = []
    at = 0
    for escape in _ESCAPE.finditer(template):
        pieces.append(template[at : escape.start()])
        number, name, sign = escape.groups()
        if sign is not None:
            pieces.append(_SIGNS.get(sign, "\\" + sign))
        else:
            pieces.append(_group_number(number or name, program))
        at = escape.end()
    pieces.append(template[at:])
    return lambda found: "".join(piece if isinstance(piece, str) else (found.group(piece) or "") for piece in pieces)


def _group_number(name: str, program: _Program) -> int:
    number = int(name) if name.isdigit() else program.names.get(name, -1)
    if not 0 <= number <= program.groups:
        raise TemplateError(f'the regular expression has no group "{name}"')
    return number
