"""Numbers of any size for targets that have only decimals of a fixed scale.

A column becomes `decimal(38, s)`, with the decimals that its rows need and at least nine
if there is room. It becomes text if the values do not fit that: more than 38 digits, NaN or an infinity.
"""

from __future__ import annotations

from typing import Any

from noetl.data.arrow_tables import Digits, digits_of, meaning_of


class NumberColumns:
    """Converts the columns of numbers of all chunks of a transfer; their types only become wider."""

    def __init__(self) -> None:
        self.digits: dict[str, Digits] = {}  # replaced, never changed
        self._widened: set[str] = set()

    def apply(self, table: Any) -> Any:
        """The table with its numbers as decimals, or as text where no decimal type holds them."""
        import pyarrow as pa

        for number, field in enumerate(table.schema):
            if meaning_of(field) != "number":
                continue
            column, name = table.column(number), field.name
            known = self.digits.get(name)
            digits = digits_of(column).wider(known or Digits())
            self.digits = {**self.digits, name: digits}
            kind = digits.decimal_type()
            if known is not None and kind != known.decimal_type():
                self._widened.add(name)
            if kind is None:
                table = table.set_column(number, pa.field(name, pa.string()), column)
            else:
                table = table.set_column(number, pa.field(name, kind), column.cast(kind))
        return table

    def take_widened(self) -> dict[str, str]:
        """The columns whose type has changed since the last call, and their types in SQL."""
        widened, self._widened = self._widened, set()
        kinds = {name: self.digits[name].decimal_type() for name in sorted(widened)}
        return {
            name: "VARCHAR" if kind is None else f"DECIMAL({kind.precision}, {kind.scale})"
            for name, kind in kinds.items()
        }
