"""How much one evaluation may use, counted without a clock.

Every evaluation owns a `EvaluationBudget`: a purse of operations and of characters. Loop turns, calls and
filters spend operations, text and lists that are made spend characters; an empty purse is a
`TemplateError` of kind `limit`. Counting instead of timing keeps evaluation deterministic: the
same template over the same data fails at the same place on every machine.

Weight. `[[[1] * 1000] * 1000] * 1000` is three small lists to make and a thousand million elements to
compare, sort or print. So a list made by a template is weighed by what it holds all the way
down; nothing heavier than `MAX_WEIGHT` is made, and what walks over it pays for its weight.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from noetl.errors import TemplateError

MAX_TEMPLATE = 1024 * 1024  # characters of one template
MAX_TOKENS = 50_000  # words and signs of one template
MAX_NODES = 10_000  # parts of one template, as the parser counts them
MAX_NESTING = 20  # statements in statements
MAX_TEXT = 16 * 1024 * 1024  # characters of one text made by a template, its result included
MADE_FACTOR = 8  # all texts of one evaluation together may be so many times longer than one
MAX_ITEMS = 1_000_000  # elements of one list made by a template
MAX_WEIGHT = 4_000_000  # elements of one list made by a template, those of lists inside it included
MAX_RANGE = 100_000  # elements of one range()
MAX_OPERATIONS = 500_000  # loop turns, calls, filters of one evaluation: an eighth of a second, while others wait
MAX_BITS = 4096  # size of a whole number made by a template
MAX_DEPTH = 200  # lists in lists, mappings in mappings
MAX_WIDTH = 100_000  # padding that format, center and friends may ask for


class NondeterminismSource(Protocol):
    """Where `now()`, `uuid()` and `random()` come from; whoever gives them records them."""

    def now(self) -> str:
        """The time as ISO 8601 text."""

    def uuid(self) -> str:
        """A fresh UUID."""

    def random(self) -> float:
        """A number from 0 up to, but not including, 1."""


class NeedsBudget(Exception):
    """An expression that seemed not to need counting met something large; evaluate it with a run."""


class EvaluationBudget:
    """The purse and the draws of one evaluation."""

    __slots__ = ("max_text", "nondeterminism", "operations", "text", "weights")

    def __init__(self, nondeterminism: NondeterminismSource | None = None, max_text: int = MAX_TEXT) -> None:
        self.nondeterminism = nondeterminism
        self.max_text = max_text
        self.operations = MAX_OPERATIONS
        self.text = max_text * MADE_FACTOR
        # Weight of what this evaluation made, by id; the object is kept so that its id stays its own.
        self.weights: dict[int, tuple[int, Any]] | None = None

    def charge(self, operations: int = 1) -> None:
        """Count operations."""
        self.operations -= operations
        if self.operations < 0:
            limit_exceeded(f"it needs more than {MAX_OPERATIONS:,} operations")

    def charge_text(self, length: int) -> None:
        """Count a text of that many characters that is about to be made."""
        if length > self.max_text:
            limit_exceeded(f"it would make a text of {length:,} characters (at most {self.max_text:,})")
        self.text -= length
        if self.text < 0:
            limit_exceeded(f"it makes more than {self.max_text * MADE_FACTOR:,} characters in all")

    def charge_items(self, length: int) -> None:
        """Count a list of that many elements that is about to be made."""
        if length > MAX_ITEMS:
            limit_exceeded(f"it would make a list of {length:,} elements (at most {MAX_ITEMS:,})")
        self.charge(1 + (length >> 3))

    def weigh(self, made: Any) -> Any:
        """Give back a list, tuple or mapping that was just made, its weight known and paid for."""
        elements = made.values() if isinstance(made, dict) else made
        self.charge(1 + (len(made) >> 3))
        weight = 1 + len(made)
        for element in elements:
            if type(element) not in _LIGHT:
                weight += self.weight_of(element)
        if weight > MAX_WEIGHT:
            limit_exceeded(f"it would make a list that holds more than {MAX_WEIGHT:,} elements in all")
        if weight > 1 + len(made):  # else its length says it all
            if self.weights is None:
                self.weights = {}
            self.weights[id(made)] = (weight, made)
        return made

    def weight_of(self, value: Any) -> int:
        """How much walking over a value costs; what was not made here is weighed by its length."""
        if isinstance(value, str):
            return 1 + (len(value) >> 6)
        if self.weights is not None:
            known = self.weights.get(id(value))
            if known is not None:
                return known[0]
        return 1 + len(value) if isinstance(value, (dict, list, tuple)) else 1

    def charge_walk(self, *values: Any) -> None:
        """Count a walk over values that Python does by itself: a comparison, a search."""
        self.charge(1 + (sum(self.weight_of(value) for value in values) >> 4))


_LIGHT = frozenset([int, float, bool, type(None)])


def limit_exceeded(message: str) -> NoReturn:
    """Refuse what would go beyond a limit."""
    raise TemplateError(f"the template asks for too much: {message}", kind="limit")
