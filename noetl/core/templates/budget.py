"""Limits on the work and the memory of one evaluation, counted without a clock.

Every evaluation has an `EvaluationBudget` of operations and characters. Loop iterations, calls and filters are
charged as operations, new text as characters; an exhausted budget is a `TemplateError` of kind `limit`. Counting
instead of timing keeps evaluation deterministic: the same template over the same data fails at the same
place on every machine.

Weight. `[[[1] * 1000] * 1000] * 1000` creates three small lists, but has a thousand million elements to
compare, sort or print. So the weight of a list that a template creates is the number of its elements at all levels;
no list heavier than `MAX_WEIGHT` is created, and a traversal is charged for the weight.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

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


class EvaluationBudget:
    """The remaining operations and characters of one evaluation."""

    __slots__ = ("max_text", "nondeterminism", "operations", "text", "weights")

    def __init__(self, nondeterminism: NondeterminismSource | None = None, max_text: int = MAX_TEXT) -> None:
        self.nondeterminism = nondeterminism
        self.max_text = max_text
        self.operations = MAX_OPERATIONS
        self.text = max_text * TOTAL_TEXT_FACTOR
        # Weights of the lists that this evaluation created, by id; the reference keeps the id unique.
        self.weights: dict[int, tuple[int, Any]] | None = None

    def charge(self, operations: int = 1) -> None:
        """Charge operations."""
        self.operations -= operations
        if self.operations < 0:
            limit_exceeded(f"more than {MAX_OPERATIONS:,} operations")

    def charge_text(self, length: int) -> None:
        """Charge a text of that many characters before it is created."""
        if length > self.max_text:
            limit_exceeded(f"a text of {length:,} characters (at most {self.max_text:,})")
        self.text -= length
        if self.text < 0:
            limit_exceeded(f"more than {self.max_text * TOTAL_TEXT_FACTOR:,} characters of text in total")

    def charge_items(self, length: int) -> None:
        """Charge a list of that many elements before it is created."""
        if length > MAX_ITEMS:
            limit_exceeded(f"a list of {length:,} elements (at most {MAX_ITEMS:,})")
        self.charge(1 + (length >> 3))

    def weigh(self, created: Any) -> Any:
        """Charge a new list, tuple or mapping, record its weight, and return it."""
        elements = created.values() if isinstance(created, dict) else created
        self.charge(1 + (len(created) >> 3))
        weight = 1 + len(created)
        for element in elements:
            if type(element) not in _LIGHT:
                weight += self.weight_of(element)
        if weight > MAX_WEIGHT:
            limit_exceeded(f"a list with more than {MAX_WEIGHT:,} elements, nested ones included")
        if weight > 1 + len(created):  # otherwise the weight follows from the length
            if self.weights is None:
                self.weights = {}
            self.weights[id(created)] = (weight, created)
        return created

    def weight_of(self, value: Any) -> int:
        """Return the cost of traversing a value; a value that was not created here has its length as weight."""
        if isinstance(value, str):
            return 1 + (len(value) >> 6)
        if self.weights is not None:
            known = self.weights.get(id(value))
            if known is not None:
                return known[0]
        return 1 + len(value) if isinstance(value, (dict, list, tuple)) else 1

    def charge_walk(self, *values: Any) -> None:
        """Charge a traversal that Python performs: a comparison, a search."""
        self.charge(1 + (sum(self.weight_of(value) for value in values) >> 4))


_LIGHT = frozenset([int, float, bool, type(None)])


def limit_exceeded(message: str) -> NoReturn:
    """Raise the error for an exceeded limit."""
    raise TemplateError(f"template limit exceeded: {message}", kind="limit")
