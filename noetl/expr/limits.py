"""How much one evaluation may use, counted without a clock.

Every evaluation owns a `Run`: a purse of operations and of characters. Loop turns, calls and
filters spend operations, text and lists that are made spend characters; an empty purse is a
`TemplateError` of kind `limit`. Counting instead of timing keeps evaluation deterministic: the
same template over the same data fails at the same place on every machine.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from noetl.errors import TemplateError

MAX_TEMPLATE = 1024 * 1024  # characters of one template
MAX_NODES = 20_000  # parts of one template, as the parser counts them
MAX_TEXT = 16 * 1024 * 1024  # characters of one text made by a template, its result included
MAX_MADE = 8 * MAX_TEXT  # characters that all texts of one evaluation may have together
MAX_ITEMS = 1_000_000  # elements of one list made by a template
MAX_RANGE = 100_000  # elements of one range()
MAX_OPERATIONS = 2_000_000  # loop turns, calls, filters of one evaluation
MAX_BITS = 4096  # size of a whole number made by a template
MAX_DEPTH = 200  # lists in lists, mappings in mappings
MAX_WIDTH = 100_000  # padding that format, center and friends may ask for


class Draws(Protocol):
    """Where `now()`, `uuid()` and `random()` come from; whoever gives them records them."""

    def now(self) -> str:
        """The time as ISO 8601 text."""

    def uuid(self) -> str:
        """A fresh UUID."""

    def random(self) -> float:
        """A number from 0 up to, but not including, 1."""


class Run:
    """The purse and the draws of one evaluation."""

    __slots__ = ("draws", "max_text", "operations", "text")

    def __init__(self, draws: Draws | None = None, max_text: int = MAX_TEXT) -> None:
        self.draws = draws
        self.max_text = max_text
        self.operations = MAX_OPERATIONS
        self.text = max_text * 8

    def spend(self, operations: int = 1) -> None:
        """Count operations."""
        self.operations -= operations
        if self.operations < 0:
            too_much(f"it needs more than {MAX_OPERATIONS:,} operations")

    def spend_text(self, length: int) -> None:
        """Count a text of that many characters that is about to be made."""
        if length > self.max_text:
            too_much(f"it would make a text of {length:,} characters (at most {self.max_text:,})")
        self.text -= length
        if self.text < 0:
            too_much(f"it makes more than {self.max_text * 8:,} characters in all")

    def spend_items(self, length: int) -> None:
        """Count a list of that many elements that is about to be made."""
        if length > MAX_ITEMS:
            too_much(f"it would make a list of {length:,} elements (at most {MAX_ITEMS:,})")
        self.spend(1 + (length >> 3))


def too_much(message: str) -> NoReturn:
    """Refuse what would go beyond a limit."""
    raise TemplateError(f"the template asks for too much: {message}", kind="limit")
