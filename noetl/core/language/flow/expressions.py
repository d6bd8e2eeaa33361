"""A small parser of the template language's expressions: which names they read, which functions they call.

It collects on its way and builds no tree. What it does not know it refuses (`NotSimple`), and the template
engine judges; so it must never accept what the engine would refuse, or read it differently.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import FUNCTIONS
from noetl.core.templates.predicates import TESTS

RUNTIME_NAMES = frozenset(["namespace", "cycler", "joiner"])


class Read(NamedTuple):
    """One read of a name from outside; `guarded` when its absence is taken care of."""

    path: tuple[str, ...]
    guarded: bool
    offset: int


class Call(NamedTuple):
    """One call of a function by its bare name; arguments that are not constant are None."""

    name: str
    args: tuple[Any, ...]
    offset: int


class Problem(NamedTuple):
    """Why a template cannot be read: a syntax error, or an unknown filter or test (then `word` is its name)."""

    message: str
    offset: int
    what: str = "syntax"
    word: str = ""


class Template(NamedTuple):
    """A template at a glance."""

    reads: tuple[Read, ...]
    calls: tuple[Call, ...]
    problem: Problem | None = None


class NotSimple(Exception):
    """Not of the grammar below; the template engine shall judge."""


def unknown(what: str, word: str, offset: int) -> Problem:
    """An unknown filter or test."""
    return Problem(f'there is no {what} "{word}"', offset, what, word)


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<name>[^\W\d]\w*)
    | (?P<number>\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<op>==|!=|<=|>=|//|\*\*|-\}\}|[-+*/%~<>=.,:|()\[\]{}])
    )""",
    re.X | re.S,
)
_KEYWORDS = frozenset(["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"])
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
_OPERATORS = frozenset(["==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "//", "%", "~", "**"])

_Path = tuple[str, ...]
_Paths = frozenset[_Path]
_NO_PATHS: _Paths = frozenset()
_NO_ANSWER: tuple[_Paths, _Paths, _Path | None] = (_NO_PATHS, _NO_PATHS, None)


def read_expressions(text: str) -> Template:
    """The names and calls of all expressions of a text; `NotSimple` when the engine has to judge."""
    return _Parser(text).template()


class _Parser:
    """Recursive descent over one template's expressions; collects reads and calls on its way.

    An expression answers which paths exist if it held, and which if it did not."""

    __slots__ = ("at", "calls", "guards", "kind", "offset", "problem", "reads", "text", "value")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.reads: list[Read] = []
        self.calls: list[Call] = []
        self.guards: _Paths = _NO_PATHS
        self.problem: Problem | None = None  # the first unknown filter or test; the rest is read all the same
        self.kind = ""
        self.value = ""
        self.offset = 0

    def template(self) -> Template:
        text = self.text
        start = text.find("{{")
        while start >= 0:
            self.at = start + (3 if text.startswith("-", start + 2) else 2)
            self.next()
            self.guards = _NO_PATHS
            self.tuple_or_expression()
            if self.kind != "end":
                raise NotSimple
            start = text.find("{{", self.at)
        return Template(tuple(self.reads), tuple(self.calls), self.problem)

    # --- tokens ---

    def next(self) -> None:
        """Read the next token; `}}` where a value has ended is the end of the expression."""
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise NotSimple
        self.kind = kind = found.lastgroup or ""
        self.value = value = found[kind]
        self.at = end = found.end()
        self.offset = end - len(value)
        if kind == "op":
            if value == "-}}" or (value == "}" and self.text.startswith("}", self.at)):
                # Inside a mapping this may be its own brace: whoever reads the mapping looks again.
                self.kind = "end"
                if value == "}":
                    self.at += 1
        elif kind == "name" and value in _KEYWORDS:
            self.kind = "keyword" if value not in _CONSTANTS else "constant"

    def accept(self, value: str) -> bool:
        if self.value == value and self.kind in ("op", "keyword"):
            self.next()
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise NotSimple

    # --- expressions, loosest binding first ---

    def tuple_or_expression(self) -> None:
        self.condition()
        while self.accept(","):
            if self.kind == "end" or self.value == ")":
                break
            self.condition()

    def condition(self) -> tuple[_Paths, _Paths, _Path | None]:
        first = len(self.reads)
        answer = self.or_()
        while self.value == "if" and self.kind == "keyword":
            self.next()
            before = len(self.reads)
            held, failed, _ = self.or_()
            self._guard(first, before, held)
            if self.accept("else"):
                guards = self.guards
                self.guards = guards | failed
                self.condition()
                self.guards = guards
            answer = _NO_ANSWER
        return answer

    def _guard(self, first: int, last: int, paths: _Paths) -> None:
        """Reads that stand before the condition that proves their names."""
        if not paths:
            return
        for number in range(first, last):
            read = self.reads[number]
            if not read.guarded and any(read.path[: len(path)] == path for path in paths):
                self.reads[number] = read._replace(guarded=True)

    def or_(self) -> tuple[_Paths, _Paths, _Path | None]:
        held, failed, path = self.and_()
        guards = self.guards
        while self.value == "or" and self.kind == "keyword":
            self.next()
            self.guards = self.guards | failed
            _, other, _ = self.and_()
            held, failed, path = _NO_PATHS, failed | other, None
        self.guards = guards
        return held, failed, path

    def and_(self) -> tuple[_Paths, _Paths, _Path | None]:
        held, failed, path = self.not_()
        guards = self.guards
        while self.value == "and" and self.kind == "keyword":
            self.next()
            self.guards = self.guards | held
            other, _, _ = self.not_()
            held, failed, path = held | other, _NO_PATHS, None
        self.guards = guards
        return held, failed, path

    def not_(self) -> tuple[_Paths, _Paths, _Path | None]:
        if self.value == "not" and self.kind == "keyword":
            self.next()
            held, failed, _ = self.not_()
            return failed, held, None
        return self.comparison()

    def comparison(self) -> tuple[_Paths, _Paths, _Path | None]:
        """Everything that binds tighter than `not`; precedence among it does not matter here."""
        answer = self.operand()
        while True:
            kind, value = self.kind, self.value
            if (kind == "op" and value in _OPERATORS) or (kind == "keyword" and value == "in"):
                self.next()
            elif kind == "keyword" and value == "not":
                self.next()
                self.expect("in")
            else:
                return answer
            self.operand()
            answer = _NO_ANSWER

    def operand(self) -> tuple[_Paths, _Paths, _Path | None]:
        if self.kind == "op" and self.value in "-+":
            while self.kind == "op" and self.value in ("-", "+"):
                self.next()
            self.postfix()
            return _NO_ANSWER
        return self.postfix()

    def postfix(self) -> tuple[_Paths, _Paths, _Path | None]:
        """A value with what hangs on it: fields, calls, filters, tests."""
        first = len(self.reads)
        if self.kind == "name":
            path, answer = self.chain()
        else:
            path = None
            answer = self.primary()
            while self.kind == "op" and self.value in (".", "[", "("):
                self.trailer()
                answer = _NO_ANSWER
        if path is not None:
            answer = (frozenset((path,)), _NO_PATHS, path)
        last = len(self.reads)
        while True:
            if self.kind == "op" and self.value == "|":
                self.filter(first, last)
                answer = _NO_ANSWER
            elif self.kind == "keyword" and self.value == "is":
                answer = self.test(first, last, answer[2])
            elif self.kind == "op" and self.value in (".", "["):
                raise NotSimple  # a field of a filter's result cannot be written
            else:
                return answer

    def chain(self) -> tuple[_Path | None, tuple[_Paths, _Paths, _Path | None]]:
        """A name and its constant fields; the path if that is all it is."""
        name, offset = self.value, self.offset
        self.next()
        if self.kind == "op" and self.value == "(":
            self.called(name, offset)
            while self.kind == "op" and self.value in (".", "[", "("):
                self.trailer()
            return None, _NO_ANSWER
        keys: list[str] = [name]
        exact = True  # every key so far is a constant
        pure = True  # nothing but fields hangs on the name
        while self.kind == "op":
            if self.value == ".":
                self.next()
                self.check_field()
                key, is_number = self.value, self.kind == "number"
                self.next()
                if self.kind == "op" and self.value == "(":
                    if is_number:
                        raise NotSimple
                    # A method: what stands before it is read, the method itself is not.
                    self.read(keys, offset)
                    self.arguments()
                    while self.kind == "op" and self.value in (".", "[", "("):
                        self.trailer()
                    return None, _NO_ANSWER
                if exact:
                    keys.append(key)
            elif self.value == "[":
                constant = self.subscript()
                if constant is None:
                    exact = pure = False
                elif exact:
                    keys.append(constant)
            elif self.value == "(":
                raise NotSimple
            else:
                break
        self.read(keys, offset)
        if not pure or self.reads[-1:] == [] or name in FUNCTIONS:
            return None, _NO_ANSWER
        return tuple(keys), _NO_ANSWER

    def check_field(self) -> None:
        """What follows a dot is a name, or a whole number."""
        if self.kind == "number":
            if not self.value.isdigit():
                raise NotSimple
        elif self.kind not in ("name", "keyword", "constant"):
            raise NotSimple

    def read(self, keys: list[str], offset: int) -> None:
        name = keys[0]
        if name in FUNCTIONS or name in RUNTIME_NAMES:
            return
        path = tuple(keys)
        guarded = bool(self.guards) and any(path[: len(known)] == known for known in self.guards)
        self.reads.append(Read(path, guarded, offset))

    def subscript(self) -> str | None:
        """`[...]`: the key when it is constant."""
        self.next()
        if self.kind in ("string", "number"):
            kind, value, start = self.kind, self.value, self.at
            self.next()
            if self.kind == "op" and self.value == "]" and "\\" not in value and "_" not in value.strip("0123456789"):
                self.next()
                return value[1:-1] if kind == "string" else value
            # An expression that begins with a literal: read it from its beginning.
            self.at = start
            self.kind, self.value = kind, value
        while not (self.kind == "op" and self.value == "]"):
            if not self.accept(":"):
                self.condition()
                if self.kind != "op" or self.value not in "]:":
                    raise NotSimple
        self.next()
        return None

    def trailer(self) -> None:
        """A field, a subscript or a call of something that is not a name."""
        if self.value == ".":
            self.next()
            self.check_field()
            self.next()
        elif self.value == "[":
            self.subscript()
        else:
            self.arguments()

    def called(self, name: str, offset: int) -> None:
        place = len(self.calls)
        args = self.arguments()
        self.calls.insert(place, Call(name, args, offset))

    def arguments(self) -> tuple[Any, ...]:
        """`(...)`: positional arguments, constants as they are."""
        self.next()
        guards = self.guards
        found: list[Any] = []
        while not (self.kind == "op" and self.value == ")"):
            if self.kind == "op" and self.value in ("*", "**"):
                raise NotSimple
            if self.kind == "name" and _KEYWORD.match(self.text, self.at):
                self.next()
                self.next()
                self.constant_or_expression()
            else:
                found.append(self.constant_or_expression())
            if not self.accept(","):
                break
        self.guards = guards
        self.expect(")")
        return tuple(found)

    def constant_or_expression(self) -> Any:
        kind, value, reads, calls = self.kind, self.value, len(self.reads), len(self.calls)
        start = self.offset
        self.condition()
        if len(self.reads) != reads or len(self.calls) != calls:
            if kind == "op" and value in "[(":
                raise NotSimple
            return None
        written = self.text[start : self.offset].strip()
        if kind == "string" and written == value:
            if "\\" in value:
                raise NotSimple
            return value[1:-1]
        if kind == "number" and written == value:
            return float(value) if "." in value or "e" in value.lower() else int(value)
        if kind == "constant" and written == value:
            return _CONSTANTS[value]
        if kind == "op" and value in "[(":
            return tuple(word[1:-1] for word in re.findall(r"'[^']*'|\"[^\"]*\"", written))
        return None

    def primary(self) -> tuple[_Paths, _Paths, _Path | None]:
        if self.kind == "string":
            self.next()
            while self.kind == "string":
                self.next()
        elif self.kind in ("number", "constant"):
            self.next()
        elif self.kind == "op" and self.value == "(":
            self.next()
            if self.value == ")":
                self.next()
                return _NO_ANSWER
            held = self.condition()
            if self.accept(","):
                while not (self.kind == "op" and self.value == ")"):
                    self.condition()
                    if not self.accept(","):
                        break
                held = _NO_ANSWER
            self.expect(")")
            return held
        elif self.kind == "op" and self.value == "[":
            self.next()
            while not (self.kind == "op" and self.value == "]"):
                self.condition()
                if not self.accept(","):
                    break
            self.expect("]")
        elif self.kind == "op" and self.value == "{":
            self.mapping()
        else:
            raise NotSimple
        return _NO_ANSWER

    def mapping(self) -> None:
        """`{key: value}`; its brace may be the first of the three in `}}}`."""
        self.next()
        while True:
            if self.kind == "end" and self.text[self.at - 2 : self.at] == "}}":
                self.at -= 1
                break
            if self.kind == "op" and self.value == "}":
                break
            self.condition()
            self.expect(":")
            self.condition()
            if self.kind == "op" and self.value == ",":
                self.next()
            elif not (self.kind == "end" or self.value == "}"):
                raise NotSimple
        self.next()

    def filter(self, first: int, last: int) -> None:
        self.next()
        if self.kind != "name":
            raise NotSimple
        if self.value not in FILTERS:
            self.problem = self.problem or unknown("filter", self.value, self.offset)
        if self.value in ("default", "d"):
            self.take_care(first, last)
        self.next()
        if self.kind == "op" and self.value == "(":
            self.arguments()
        elif self.kind == "op" and self.value == ".":
            raise NotSimple

    def take_care(self, first: int, last: int) -> None:
        """These reads may find nothing."""
        for number in range(first, last):
            read = self.reads[number]
            if not read.guarded:
                self.reads[number] = read._replace(guarded=True)

    def test(self, first: int, last: int, path: _Path | None) -> tuple[_Paths, _Paths, _Path | None]:
        self.next()
        negated = self.value == "not" and self.kind == "keyword"
        if negated:
            self.next()
        name = self.value
        if self.kind not in ("name", "keyword", "constant") or (name not in TESTS and self.kind != "name"):
            raise NotSimple
        if name not in TESTS:
            self.problem = self.problem or unknown("test", name, self.offset)
        self.next()
        if name in ("defined", "undefined"):
            self.take_care(first, last)
            known = frozenset((path,)) if path is not None else _NO_PATHS
            if (name == "defined") != negated:
                return known, _NO_PATHS, None
            return _NO_PATHS, known, None
        if self.kind == "op" and self.value == "(":
            self.arguments()
        elif self.kind in ("name", "number", "string", "constant") or (self.kind == "op" and self.value in "[{"):
            self.postfix()
        return _NO_ANSWER


_KEYWORD = re.compile(r"\s*=(?!=)")
