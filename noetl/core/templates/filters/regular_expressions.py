"""Regular expressions of templates, matched by RE2.

RE2 needs time in proportion to the length of the text times the size of the pattern, whatever both are; this bound is
charged to the evaluation budget before a search. Patterns are written as for Python's `re`. RE2 reads almost all of
that syntax; `_Program` rewrites the few spellings that differ and refuses what RE2 cannot do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from noetl.core.templates.budget import EvaluationBudget, limit_exceeded
from noetl.errors import TemplateError

MAX_PATTERN = 1000  # characters
MAX_SUBJECT = 1_000_000  # characters
_STEPS_SHIFT = 11  # 2,048 steps of RE2 are one operation: bytes of the text times instructions of the program
_UNICODE_SHIFT = 15  # the same for the program with Unicode classes, most of whose instructions are alternatives
_COMPILE = 400  # operations to compile a pattern, and one more for two instructions
_CACHED = 256  # compiled patterns that are kept
_RESCAN_SHIFT = 10  # 1,024 bytes read again after a match are one operation
_UTF8 = ("utf-8", "surrogatepass")


class Match:
    """A match in the encoded text."""

    def __init__(self, found: Any) -> None:
        self.start, self.end = found.span()
        self._found = found

    def group(self, number: int = 0) -> str | None:
        """Return the text of a group, None for an absent one; group 0 is the whole match."""
        data: bytes | None = self._found.group(number)
        return None if data is None else data.decode(*_UTF8)

    def groups(self) -> list[str | None]:
        """Return the texts of all groups."""
        return [self.group(number) for number in range(1, len(self._found.groups()) + 1)]


# ── what filters call ───────────────────────────────────────────────────────────────────


def search(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """Return the first match."""
    program, data = _program(budget, pattern, text, ignorecase)
    return program.find(program.regexp.search, program.texts(data))


def match(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> Match | None:
    """Return the match at the beginning of the text."""
    program, data = _program(budget, pattern, text, ignorecase)
    return program.find(program.regexp.match, program.texts(data))


def findall(budget: EvaluationBudget, pattern: Any, text: str, *, ignorecase: bool = False) -> list[Any]:
    """Return all matches: their texts, or the texts of their groups."""
    program, data = _program(budget, pattern, text, ignorecase)
    found: list[Any] = []
    for each in program.find_all(budget, data):
        groups = [group or "" for group in each.groups()]
        found.append(each.group() if not groups else groups[0] if len(groups) == 1 else groups)
    return found


def replace(budget: EvaluationBudget, pattern: Any, replacement: Any, text: str, *, ignorecase: bool = False) -> str:
    """Replace every match."""
    if not isinstance(replacement, str):
        raise TemplateError("the replacement of a regular expression must be text")
    program, data = _program(budget, pattern, text, ignorecase)
    expand = _replacement(replacement, program.regexp)
    pieces: list[str] = []
    at = 0
    for each in program.find_all(budget, data):
        new = expand(each)
        budget.charge_text(each.start - at + len(new))
        pieces += (data[at : each.start].decode(*_UTF8), new)
        at = each.end
    pieces.append(data[at:].decode(*_UTF8))
    whole = "".join(pieces)
    if len(whole) > budget.max_text:
        budget.charge_text(len(whole))
    return whole


def check_pattern(pattern: Any) -> None:
    """Raise a TemplateError if a regular expression cannot be compiled."""
    if not isinstance(pattern, str):
        raise TemplateError("a regular expression must be text")
    _cached_program(pattern[:MAX_PATTERN], False, True)


def _program(budget: EvaluationBudget, pattern: Any, text: str, ignorecase: bool) -> tuple[_Program, bytes]:
    """Compile the pattern, charge for a search, and return the program and the text that it reads."""
    if not isinstance(pattern, str):
        raise TemplateError("a regular expression must be text")
    if len(pattern) > MAX_PATTERN:
        limit_exceeded(f"a regular expression of {len(pattern):,} characters (at most {MAX_PATTERN:,})")
    if len(text) > MAX_SUBJECT:
        limit_exceeded(f"a regular expression over {len(text):,} characters (at most {MAX_SUBJECT:,})")
    program = _cached_program(pattern, bool(ignorecase), True)
    _charge_compilation(budget, (pattern, bool(ignorecase), True), program)
    data = text.encode(*_UTF8)
    budget.charge(1 + (len(data) * program.size >> _STEPS_SHIFT))
    if len(data) > len(text):
        program = _cached_program(pattern, bool(ignorecase), False)
        _charge_compilation(budget, (pattern, bool(ignorecase), False), program)
        budget.charge(len(data) * program.size >> _UNICODE_SHIFT)
    return program, data


def _charge_compilation(budget: EvaluationBudget, key: tuple[str, bool, bool], program: _Program) -> None:
    """Charge the compilation when the pattern is new to the evaluation, whether or not the cache had it."""
    budget.charge_compiled(key, _COMPILE + (program.size >> 1), _CACHED - 50)


@lru_cache(maxsize=_CACHED)
def _cached_program(pattern: str, ignorecase: bool, ascii_only: bool) -> _Program:
    return _Program(pattern, ignorecase, ascii_only)


# ── patterns ────────────────────────────────────────────────────────────────────────────

_TOKEN = re.compile(
    r"""
      (?P<look>       \(\?<?[=!] )
    | (?P<atomic>     \(\?> )
    | (?P<reference>  \\[1-9] (?![0-7]{2}) | \(\?P= | \(\?\( )
    | (?P<comment>    \(\?\#[^)]*\) )
    | (?P<code>       \\u[0-9a-fA-F]{4} | \\U[0-9a-fA-F]{8} )
    | (?P<set>        \[ \^? \]? (?: \\. | [^\\\]] )* \] )
    | (?P<escape>     \\. )
    | (?P<repetition> (?: [*+?] | \{ (?: [0-9]+ ,? [0-9]* | , [0-9]* ) \} ) [?+]? )
    | (?P<other>      . )
    """,
    re.VERBOSE | re.DOTALL,
)
_UNSUPPORTED = {
    "look": "look-ahead and look-behind",
    "atomic": "atomic groups",
    "reference": "back references",
    "possessive": "possessive repetitions",
}
# The characters of `\w`, `\s` ... as Python defines them, to be written in brackets. RE2's own are ASCII.
_MEMBERS = {
    "w": r"\pL\pN_",
    "W": r"\pM\pS\pZ\pC\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}"
    r"\x{203f}\x{2040}\x{2054}\x{fe33}\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}",  # \p{Pc} without the underscore
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "s": r"\t-\r\x1c-\x20\x{85}\pZ",
    "S": r"\x00-\x08\x0e-\x1b!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}",
}


class _Program:
    """A pattern compiled by RE2, for texts of ASCII characters only or for all texts."""

    def __init__(self, pattern: str, ignorecase: bool, ascii_only: bool) -> None:
        import re2  # takes 20 ms; most processes never need it

        self._rewritten = "sS" if ascii_only else "wWdDsS"
        self._has_end = False
        # A search may read far beyond the match that it finds, and the next search reads the same text again.
        self._rescans = False
        options = re2.Options()
        options.case_sensitive = not ignorecase
        options.log_errors = False
        try:
            self.regexp = re2.compile(self._translate(pattern), options)
        except re2.error as problem:
            _invalid(problem.args[0].decode(errors="replace"))
        self.size: int = self.regexp.programsize

    def _translate(self, pattern: str) -> str:
        """Write a pattern as RE2 reads it."""
        pieces: list[str] = []
        levels = [_Level()]
        closed = _Level()  # the group before the token
        for token in _TOKEN.finditer(pattern):
            kind, text = str(token.lastgroup), token.group()
            if kind == "repetition" and text.endswith("+") and len(text) > 1:
                kind = "possessive"
            if kind in _UNSUPPORTED:
                raise TemplateError(f"{_UNSUPPORTED[kind]} are not supported in regular expressions")
            if kind == "repetition":
                self._rescans |= closed.is_open
                levels[-1].is_open |= text[0] in "*+" or ",}" in text
            elif text == "(":
                levels.append(_Level())
            elif text == "|":
                levels[-1].has_alternatives = True
            self._has_end |= text == "$"
            closed = _Level()
            if text == ")" and len(levels) > 1:
                closed = levels.pop()
                self._rescans |= closed.is_open and closed.has_alternatives
                levels[-1].is_open |= closed.is_open
            pieces.append(self._rewrite(kind, text))
        self._rescans |= levels[0].is_open and levels[0].has_alternatives
        return "".join(pieces)

    def _rewrite(self, kind: str, text: str) -> str:
        if kind == "comment":
            return ""
        if kind == "code":
            return rf"\x{{{text[2:]}}}"
        if kind == "repetition":
            return text.replace("{,", "{0,")
        if kind == "set":
            return re.sub(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", self._member, text, flags=re.DOTALL)
        letter = text[1:]
        if kind == "escape" and letter in self._rewritten:
            return f"[{'^' if letter.isupper() else ''}{_MEMBERS[letter.lower()]}]"
        if text == r"\C":
            _invalid(r"invalid escape sequence: \C")  # a single byte of RE2, which may be a part of a character
        return r"\z" if text == r"\Z" else text

    def _member(self, escape: re.Match[str]) -> str:
        letter = escape[1]
        if len(letter) > 1:
            return self._rewrite("code", escape[0])
        if letter == "b":
            return r"\x08"  # backspace
        return _MEMBERS[letter] if letter in self._rewritten else escape[0]

    def find(self, method: Callable[..., Any], texts: Sequence[bytes], at: int = 0) -> Match | None:
        """Return the first match; of two that begin at the same place, the one in the first text."""
        best = None
        for text in texts:
            found = method(text, at) if at <= len(text) else None
            if found is not None and (best is None or found.start() < best.start()):
                best = found
        return None if best is None else Match(best)

    def texts(self, data: bytes) -> Sequence[bytes]:
        """The texts to search: `$` also matches before a newline at the end, but to RE2 only at the end."""
        return (data, data[:-1]) if self._has_end and data.endswith(b"\n") else (data,)

    def find_all(self, budget: EvaluationBudget, data: bytes) -> Iterator[Match]:
        """Find all matches from left to right."""
        at, texts = 0, self.texts(data)
        while (found := self.find(self.regexp.search, texts, at)) is not None:
            budget.charge(4 + ((len(data) - found.start) >> _RESCAN_SHIFT if self._rescans else 0))
            yield found
            at = found.end
            if found.start == found.end:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:  # to the next character
                    at += 1


class _Level:
    """A group of a pattern: whether it has alternatives, and a repetition without an upper bound."""

    has_alternatives = False
    is_open = False


def _invalid(problem: str) -> NoReturn:
    """Raise the error for a message of RE2."""
    if "repetition size" in problem or "too large" in problem:
        limit_exceeded(f"the repetitions of a regular expression are too large ({problem})")
    if problem.startswith("invalid perl operator: "):
        problem = f"{problem.removeprefix('invalid perl operator: ')} is not supported"
    raise TemplateError(f"invalid regular expression: {problem}")


# ── replacements ────────────────────────────────────────────────────────────────────────

_ESCAPE = re.compile(r"\\(?:(\d{1,2})|g<(\w+)>|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def _replacement(template: str, regexp: Any) -> Callable[[Match], str]:
    """Return the function that fills a replacement with `\\1` and `\\g<name>` from a match."""
    pieces: list[str | int] = []
    at = 0
    for escape in _ESCAPE.finditer(template):
        pieces.append(template[at : escape.start()])
        number, name, letter = escape.groups()
        if letter is not None:
            pieces.append(_CONTROL.get(letter, "\\" + letter))
        else:
            pieces.append(_group_number(number or name, regexp))
        at = escape.end()
    pieces.append(template[at:])
    return lambda found: "".join(piece if isinstance(piece, str) else (found.group(piece) or "") for piece in pieces)


def _group_number(name: str, regexp: Any) -> int:
    number = int(name) if name.isdigit() else regexp.groupindex.get(name, -1)
    if not 0 <= number <= regexp.groups:
        raise TemplateError(f'the regular expression has no group "{name}"')
    return number
