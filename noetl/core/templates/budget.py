"""Limits on the work and the memory of one evaluation, counted without a clock.

Every evaluation has an `EvaluationBudget` of operations and characters. Loop iterations, calls and filters are
charged as operations, new text as characters; an exhausted budget is a `TemplateError` of kind `limit`. Counting
instead of timing keeps evaluation deterministic: the same template over the same data fails at the same
place on every machine.

Weight. `[[[1] * 1000] * 1000] * 1000` creates three small lists, but has a thousand million elements to
compare, sort or print. So the weight of a list that a template creates is the number of its elements at all levels;
no list heavier than `MAX_WEIGHT` is created. A traversal by Python (a comparison, a sort) is charged for the weight of
the whole data (`whole_weight`), nested levels included, wherever the data came from.

Every function that a template can reach is either linear in the size of its arguments and charged for it, or charged
for its worst case (`charge_search`, `charge_number`), or limited to short arguments. `tests/security` measures
all of them with adversarial arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from noetl.errors import TemplateError

MAX_TEMPLATE = 1024 * 1024  # characters of one template
MAX_TOKENS = 50_000  # tokens of one template
MAX_NODES = 10_000  # nodes of one template's syntax tree
MAX_NESTING = 20  # levels of nested statements
MAX_TEXT = 16 * 1024 * 1024  # characters of one text that a template creates, its result included
TOTAL_TEXT_FACTOR = 8  # all texts of one evaluation together, as a multiple of MAX_TEXT
MAX_ITEMS = 1_000_000  # elements of one list that a template creates
MAX_WEIGHT = 4_000_000  # elements of one list that a template creates, nested ones included
MAX_RANGE = 100_000  # elements of one range()
MAX_OPERATIONS = 500_000  # loop iterations, calls, filters of one evaluation: about an eighth of a second
DECISION_OPERATIONS = 2 * MAX_OPERATIONS  # all evaluations that follow from one command to the engine
DECISION_TEXT = TOTAL_TEXT_FACTOR * MAX_TEXT  # all texts that these evaluations create
DECISION_DATA = 256 * 1024 * 1024  # bytes of their results as JSON; a value counts as often as a template returns it
MAX_BITS = 4096  # size of a whole number that a template computes
MAX_DEPTH = 200  # levels of nested lists and mappings
MAX_WIDTH = 100_000  # width of padding in `format`, `center` and similar filters


class NondeterminismSource(Protocol):
    """Source of the values of `now()`, `uuid()` and `random()`; the implementation records them."""

    def now(self) -> str:
        """Return the time as ISO 8601 text."""

    def uuid(self) -> str:
        """Return a new UUID."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""


class NeedsBudget(Exception):
    """An expression that was evaluated without a budget met a large value; evaluate it again with one."""


class Meter:
    """What several evaluations have left together: those of one command to the engine, or of one task of a pipeline."""

    __slots__ = ("data", "most_data", "operations", "spent", "text")

    def __init__(self, most_data: int = DECISION_DATA) -> None:
        self.most_data = most_data
        self.spent = 0  # operations of all decisions
        self.reset()

    def reset(self) -> None:
        """Begin the next decision."""
        self.operations = DECISION_OPERATIONS
        self.text = DECISION_TEXT
        self.data = self.most_data

    def charge_result(self, value: Any) -> None:
        """Charge a result as the JSON that is written or sent: `[text] * 1000` is small until then."""
        kind = type(value)
        if kind is str:
            self.data -= len(value)
        elif kind is list or kind is dict:
            self.data -= len(_encode(value))
        if self.data < 0:
            limit_exceeded(f"the templates of one decision return more than {self.most_data:,} bytes of data")

    def spend(self, budget: EvaluationBudget) -> None:
        """Subtract what an evaluation has used, whether it succeeded or not."""
        used = budget.allowed - budget.operations
        self.spent += used
        self.operations = max(self.operations - used, 0)
        self.text = max(self.text - (budget.allowed_text - budget.text), 0)


class Measured:
    """Base of values that are not plain data and have a weight of their own."""

    __slots__ = ()

    def weight(self, budget: EvaluationBudget, depth: int) -> int:
        """Return the cost of traversing the value."""
        return 1


class EvaluationBudget:
    """The remaining operations and characters of one evaluation."""

    __slots__ = (
        "allowed", "allowed_text", "compiled", "max_text", "nondeterminism", "operations", "text", "walked", "weights",
    )  # fmt: skip

    def __init__(
        self,
        nondeterminism: NondeterminismSource | None = None,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> None:
        self.nondeterminism = nondeterminism
        self.max_text = max_text
        self.allowed = MAX_OPERATIONS if meter is None else min(MAX_OPERATIONS, meter.operations)
        self.operations = self.allowed
        total = max_text * TOTAL_TEXT_FACTOR
        self.allowed_text = total if meter is None else min(total, meter.text)
        self.text = self.allowed_text
        # Weights of the lists that this evaluation created, by id; the reference keeps the id unique.
        self.weights: dict[int, tuple[int, Any]] | None = None
        # Weights of whole data that this evaluation has traversed, by id.
        self.walked: dict[int, tuple[int, Any]] | None = None
        # Regular expressions and date formats that this evaluation has used.
        self.compiled: set[Any] | None = None

    def charge(self, operations: int = 1) -> None:
        """Charge operations."""
        self.operations -= operations
        if self.operations < 0:
            if self.allowed < MAX_OPERATIONS:
                limit_exceeded(f"the templates of one decision need more than {DECISION_OPERATIONS:,} operations")
            limit_exceeded(f"more than {MAX_OPERATIONS:,} operations")

    def charge_text(self, length: int) -> None:
        """Charge a text of that many characters before it is created."""
        if length > self.max_text:
            limit_exceeded(f"a text of {length:,} characters (at most {self.max_text:,})")
        self.text -= length
        if self.text < 0:
            total = self.max_text * TOTAL_TEXT_FACTOR
            if self.allowed_text < total:
                limit_exceeded(f"the templates of one decision create more than {DECISION_TEXT:,} characters of text")
            limit_exceeded(f"more than {total:,} characters of text in total")

    def charge_width(self, made: Any) -> None:
        """Charge what a new text takes beyond one byte for each character: up to three more."""
        if type(made) is str and not made.isascii() and not (len(made) > _SHORT and _is_latin(made)):
            self.text -= (_MAX_CHARACTER - 1) * len(made)
            if self.text < 0:
                self.charge_text(0)

    def charge_items(self, length: int) -> None:
        """Charge a list of that many elements before it is created."""
        if length > MAX_ITEMS:
            limit_exceeded(f"a list of {length:,} elements (at most {MAX_ITEMS:,})")
        self.charge(1 + (length >> 3))

    def weigh(self, created: Any) -> Any:
        """Charge a new list, tuple or mapping, record its weight, and return it."""
        elements = created
        if isinstance(created, dict):
            elements = created.values()
            self.charge_keys(created)
        self.charge(1 + (len(created) >> 3))
        weight = 1 + len(created)
        weighed = 0
        for element in elements:
            if type(element) not in _LIGHT:
                weight += self.weight_of(element)
                weighed += 1
        self.charge(weighed >> 2)
        if weight > MAX_WEIGHT:
            limit_exceeded(f"a list with more than {MAX_WEIGHT:,} elements, nested ones included")
        if weight > 1 + len(created):  # otherwise the weight follows from the length
            if self.weights is None:
                self.weights = {}
            self.weights[id(created)] = (weight, created)
        return created

    def charge_keys(self, created: dict[Any, Any]) -> None:
        """Charge the numbers among the keys of a new mapping.

        The hash value of a number can be chosen, and with it the places that a search reads: each may read all keys."""
        if len(created) > _FEW_KEYS:
            numbers = sum([type(key) is not str for key in created])
            self.charge(numbers * numbers >> 9)

    def weight_of(self, value: Any) -> int:
        """Return the weight of an element of a new list; data that was not created here has its length as weight."""
        if isinstance(value, str):
            return 1 + (len(value) >> 6)
        if self.weights is not None:
            known = self.weights.get(id(value))
            if known is not None:
                return known[0]
        return 1 + len(value) if isinstance(value, (dict, list, tuple)) else 1

    def whole_weight(self, value: Any, depth: int = 0) -> int:
        """Return the cost of traversing data with all nested levels; measuring it is charged too."""
        kind = type(value)
        if kind is str:
            return 1 + (len(value) >> 6)
        if kind in _LIGHT:
            return 1
        if kind is range:
            return 1 + len(value)
        if not isinstance(value, (dict, list, tuple)):
            if isinstance(value, Measured):
                return value.weight(self, depth)
            if not isinstance(value, Mapping):
                return 1 + (len(value) >> 6) if isinstance(value, str) else 1
        elif self.walked is not None:
            known = self.walked.get(id(value))
            if known is not None:
                return known[0]
        if depth > MAX_DEPTH:
            limit_exceeded(f"data nested more than {MAX_DEPTH} levels deep")
        self.charge(1 + (len(value) >> 3))
        weight = 1 + len(value)
        elements: Any = value
        if isinstance(value, Mapping):
            weight += len(value)
            elements = value.values()
        for element in elements:
            kind = type(element)
            if kind is str:
                weight += len(element) >> 6
            elif kind not in _LIGHT:
                weight += self.whole_weight(element, depth + 1)
        if self.walked is None:
            self.walked = {}
        self.walked[id(value)] = (weight, value)
        return weight

    def charge_walk(self, *values: Any) -> None:
        """Charge a traversal that Python performs: a comparison, a search."""
        self.charge(1 + (sum([self.whole_weight(value) for value in values]) >> 4))

    def charge_search(self, length: int, part: int, *, backwards: bool = False) -> None:
        """Charge the search for a part in a text, by their lengths."""
        self.charge(1 + search_cost(length, part, backwards=backwards))

    def charge_number(self, value: Any) -> None:
        """Charge arithmetic with a large whole number, and refuse one of more than `MAX_BITS`."""
        bits = value.bit_length()
        if bits > MAX_BITS:
            limit_exceeded(f"a number of {bits:,} bits (at most {MAX_BITS:,})")
        self.charge(bits >> 8)

    def charge_digits(self, value: int) -> None:
        """Charge the conversion of a large whole number to text, which is quadratic in its digits."""
        bits = value.bit_length()
        self.charge(bits * bits >> 18)

    def charge_compiled(self, what: Any, operations: int, most: int) -> None:
        """Charge the compilation of a pattern when it is new to this evaluation, and always above `most` patterns."""
        if self.compiled is None:
            self.compiled = set()
        if what not in self.compiled or len(self.compiled) > most:
            self.compiled.add(what)
            self.charge(operations)


def _is_latin(text: str) -> bool:
    """Whether Python stores a text with one byte for each character."""
    try:
        return bool(text.encode("latin-1"))
    except UnicodeEncodeError:
        return False


_encode = msgspec.json.Encoder().encode
_FEW_PLACES = 2001
_FEW_KEYS = 32
_SHORT = 256
_MAX_CHARACTER = 4  # bytes that Python uses for one character
_LIGHT = frozenset([int, float, bool, type(None)])
SMALL = 1 << 256  # numbers below it are calculated with and printed at a constant cost


def search_cost(length: int, part: int, *, backwards: bool = False) -> int:
    """Return the operations that finding a part in a text costs at worst.

    Python searches long texts forwards in linear time, but short ones, and all texts backwards, in a time that grows
    with the product of both lengths."""
    if part > length:
        return 0
    if part <= 1:
        return length >> 7
    if backwards or length < 2500 or (part < 100 and length < 30_000) or part < 6:
        return (length - part + 1) * part >> 8
    # Where few places are left, also long texts are searched in a time that grows with the product.
    return (length + part >> 5) + (min(length - part + 1, _FEW_PLACES) * part >> 8)


def limit_exceeded(message: str) -> NoReturn:
    """Raise the error for an exceeded limit."""
    raise TemplateError(f"template limit exceeded: {message}", kind="limit")
