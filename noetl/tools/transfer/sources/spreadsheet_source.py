"""Rows of Excel workbooks (xlsx, xls, xlsb, ods) and of text files with columns of fixed width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from noetl.data.values import duration, unique_names
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.bad_rows import NumberedRows
from noetl.tools.transfer.sources.arrow_rows import BATCH_ROWS, BatchBuilder

FORMATS = ("excel", "fixed")
ENDINGS = ("xlsx", "xls", "xlsb", "xlsm", "ods")


def format_by_ending(path: str) -> str | None:
    """`excel` for the file of a workbook."""
    return "excel" if path.rpartition(".")[2].lower() in ENDINGS else None


def excel_batches(path: str, fields: Mapping[str, Any], numbered: NumberedRows, label: str) -> Iterator[Any]:
    """The rows of a sheet; its first row that is not empty has the names of the columns."""
    import python_calamine

    try:
        workbook = python_calamine.CalamineWorkbook.from_path(path)
        sheet = _sheet(workbook, fields.get("sheet"), label)
        first = (sheet.start or (0, 0))[0] + 1
        found = [
            (number, row) for number, row in enumerate(sheet.to_python(), first) if any(cell != "" for cell in row)
        ]
        cells = [row for _, row in found]
    except (python_calamine.CalamineError, OSError) as wrong:
        raise BadInput(f"{label} cannot be read as a workbook: {wrong}") from None
    if not cells:
        return
    names = unique_names(str(cell).strip() or f"column_{number}" for number, cell in enumerate(cells[0], 1))
    columns = [_column(list(column)) for column in zip(*cells[1:], strict=True)] or [[] for _ in names]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    builder = BatchBuilder(fields.get("types"), label, names, sample=rows)
    for start in range(0, max(len(rows), 1), BATCH_ROWS):
        numbers = [number for number, _ in found[1 + start : 1 + start + BATCH_ROWS]]
        yield from numbered.built(builder.batch, rows[start : start + BATCH_ROWS], numbers)


def _sheet(workbook: Any, wanted: Any, path: str) -> Any:
    names = workbook.sheet_names
    if wanted is None:
        return workbook.get_sheet_by_index(0)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if not 0 <= wanted < len(names):
            raise BadInput(f"{path} has {len(names)} sheets; `sheet` counts from 0")
        return workbook.get_sheet_by_index(wanted)
    if wanted not in names:
        raise BadInput(f"{path} has no sheet {wanted!r}; its sheets are {', '.join(names)}")
    return workbook.get_sheet_by_name(wanted)


def _column(cells: list[Any]) -> list[Any]:
    """The values of a column: empty cells are null, whole numbers are integers, dates without a time are dates."""
    values = [None if cell == "" else cell for cell in cells]
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, float) and value.is_integer() and abs(value) < 2**53 for value in given):
        return [None if value is None else int(value) for value in values]
    if given and all(isinstance(value, date) for value in given) and len({type(value) for value in given}) > 1:
        return [value if value is None or isinstance(value, datetime) else midnight(value) for value in values]
    return [duration(value) if isinstance(value, timedelta) else value for value in values]


def midnight(day: date) -> datetime:
    """The first moment of a day; workbooks have no zones."""
    return datetime.fromisoformat(day.isoformat())


def fixed_batches(path: str, fields: Mapping[str, Any], numbered: NumberedRows, label: str) -> Iterator[Any]:
    """The lines of a file whose columns have fixed widths; spaces around values are removed, an empty value is null."""
    widths = _widths(fields.get("widths"))
    builder = BatchBuilder(dict.fromkeys(widths, "text") | dict(fields.get("types") or {}), label, list(widths))
    slices, start = {}, 0
    for name, width in widths.items():
        slices[name] = slice(start, start + width)
        start += width
    is_empty = True
    with Path(path).open(encoding=str(fields.get("encoding") or "utf-8")) as file:
        lines = (line.rstrip("\r\n") for line in file)
        given = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        while part := list(islice(given, BATCH_ROWS)):
            is_empty = False
            good = []
            for number, line in part:
                if len(line.rstrip()) <= start:
                    good.append((number, line))
                    continue
                reason = f"has {len(line.rstrip())} characters, and `widths` describe {start}"
                if not numbered.reject(number, line, f"the line {reason}"):
                    raise BadInput(f"{label}: line {number} {reason}")
            rows = [{name: line[place].strip() or None for name, place in slices.items()} for _, line in good]
            yield from numbered.built(builder.batch, rows, [number for number, _ in good])
    if is_empty:
        yield builder.batch([])


def _widths(given: Any) -> dict[str, int]:
    if not isinstance(given, Mapping) or not given:
        raise BadInput("format fixed requires `widths`: column -> number of characters, in the order of the file")
    for name, width in given.items():
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BadInput(f"widths.{name} must be a positive number of characters, not {width!r}")
    return {str(name): width for name, width in given.items()}
