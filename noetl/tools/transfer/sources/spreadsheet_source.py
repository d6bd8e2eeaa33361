"""Rows of Excel workbooks (xlsx, xls, xlsb, ods) and of text files with columns of fixed width."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from noetl.data.files.csv_text import LongLine, text_lines
from noetl.data.values import duration, unique_names
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows
from noetl.tools.transfer.sources.arrow_rows import BATCH_ROWS, BatchBuilder
from noetl.tools.transfer.sources.large_workbook import UnusualSheet, large_sheet

FORMATS = ("excel", "fixed")
ENDINGS = ("xlsx", "xls", "xlsb", "xlsm", "ods")


def format_by_ending(path: str) -> str | None:
    """`excel` for the file of a workbook."""
    return "excel" if path.rpartition(".")[2].lower() in ENDINGS else None


def excel_batches(path: str, fields: Mapping[str, Any], numbered: NumberedRows, label: str) -> Iterator[Any]:
    """The rows of a sheet; its first row that is not empty, or `header_row`, has the names of the columns."""
    begin = _header_row(fields.get("header_row"))
    with ExitStack() as stack:
        sheet: Any = large_sheet(path, fields.get("sheet"))
        try:
            found = None if sheet is None else _look_through(stack.enter_context(sheet), begin)
        except UnusualSheet:
            sheet = None
        if sheet is None:
            sheet = _WholeSheet(path, fields.get("sheet"), label)
            found = _look_through(sheet, begin)
        if found is not None:
            yield from _sheet_batches(sheet, found, fields, numbered, label)
        elif begin:
            raise BadInput(f"{label} has no row {begin} (`header_row`) in this sheet, nor one after it")


class _WholeSheet:
    """A sheet whose cells are all in memory."""

    left = 0

    def __init__(self, path: str, wanted: Any, label: str) -> None:
        import python_calamine

        try:
            self._sheet = _sheet(python_calamine.CalamineWorkbook.from_path(path), wanted, label)
        except (python_calamine.CalamineError, OSError) as wrong:
            raise BadInput(f"{label} cannot be read as a workbook: {wrong}") from None

    @property
    def width(self) -> int:
        """The number of columns."""
        width: int = self._sheet.width
        return width

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows with their numbers; each pass makes new values."""
        return enumerate(self._sheet.iter_rows(), 1)


class _Found(NamedTuple):
    """What a sheet has: the number of the row with the names, and the names and columns."""

    head: int
    names: list[str]
    columns: list[_Column]


def _look_through(sheet: Any, begin: int) -> _Found | None:
    """Read all rows once, for the names and types; None if there are none."""
    head: tuple[int, list[Any]] | None = None
    columns: list[_Column] = []
    for block in _blocks(sheet, begin):
        rows = block if head is not None else block[1:]
        head = head or block[0]
        for number, values in enumerate(zip_longest(*(row for _, row in rows), fillvalue="")):
            if number == len(columns):
                columns.append(_Column())
            columns[number].look(values)
    if head is None:
        return None
    cells, columns = _padded(head[1][sheet.left :], sheet.width), columns[sheet.left :]
    names = unique_names(str(_whole(cell)).strip() or f"column_{number}" for number, cell in enumerate(cells, 1))
    return _Found(head[0], names, columns + [_Column() for _ in names[len(columns) :]])


def _sheet_batches(
    sheet: Any, found: _Found, fields: Mapping[str, Any], numbered: NumberedRows, label: str
) -> Iterator[Any]:
    names, columns = found.names, found.columns
    sample = [dict(zip(names, row, strict=True)) for row in zip_longest(*(column.sample() for column in columns))]
    builder = BatchBuilder(fields.get("types"), label, names, json_text=True)
    builder.learn(sample)
    is_empty = True
    for block in _blocks(sheet, found.head + 1):
        is_empty = False
        cells = zip(*(_padded(row, len(names)) for _, row in block), strict=True)
        values = (column.values(each) for column, each in zip(columns, cells, strict=True))
        rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        yield from numbered.built(builder.batch, rows, [number for number, _ in block])
    if is_empty:
        yield from numbered.built(builder.batch, [], [])


def _blocks(sheet: Any, begin: int) -> Iterator[list[tuple[int, list[Any]]]]:
    """The rows from a number on that are not empty, with their numbers."""
    rows = ((number, row) for number, row in sheet.rows() if number >= begin and any(cell != "" for cell in row))
    while block := list(islice(rows, BATCH_ROWS)):
        yield block


def _padded(row: list[Any], width: int) -> list[Any]:
    return row if len(row) == width else row + [""] * (width - len(row))


def _header_row(given: Any) -> int:
    if given is None:
        return 0
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise BadInput(f"`header_row` is the number of a row, from 1, not {given!r}")
    return given


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


class _Column:
    """The values of a column: empty cells are null, whole numbers are integers, dates without a time are dates."""

    def __init__(self) -> None:
        self._found: dict[type, list[Any]] = {}  # the extremes of numbers, and a value of each other type

    def look(self, cells: Sequence[Any]) -> None:
        """Note the types of some cells, which decide about those of all values."""
        given = [_whole(cell) for cell in cells if cell != ""]
        for kind in {type(value) for value in given}:
            same = [value for value in given if type(value) is kind] + self._found.get(kind, [])
            self._found[kind] = [min(same), max(same)] if kind in (int, float) else same[-1:]

    def values(self, cells: Iterable[Any]) -> list[Any]:
        """The values of some cells."""
        values = [None if cell == "" else cell for cell in cells]
        if float in self._found and self._found.keys() <= {int, float}:
            return values
        if len(self._found) > 1 and all(issubclass(kind, date) for kind in self._found):
            return [value if value is None or isinstance(value, datetime) else midnight(value) for value in values]
        return [duration(value) if isinstance(value, timedelta) else _whole(value) for value in values]

    def sample(self) -> list[Any]:
        """Values from which the type of all can be inferred."""
        return self.values(value for found in self._found.values() for value in found)


def _whole(cell: Any) -> Any:
    """A number without a fraction as an integer: cells have no integers."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53 else cell


def midnight(day: date) -> datetime:
    """The first moment of a day; workbooks have no zones."""
    return datetime.fromisoformat(day.isoformat())


def fixed_batches(path: str, fields: Mapping[str, Any], numbered: NumberedRows, label: str) -> Iterator[Any]:
    """The lines of a file whose columns have fixed widths; spaces around values are removed, an empty value is null."""
    widths = _widths(fields.get("widths"))
    types = dict.fromkeys(widths, "text") | dict(fields.get("types") or {})
    builder = BatchBuilder(types, label, list(widths), json_text=True)
    slices, start = {}, 0
    for name, width in widths.items():
        slices[name] = slice(start, start + width)
        start += width
    is_empty = True
    encoding = read_encoding(fields.get("encoding"))
    with Path(path).open(encoding=encoding, errors="surrogateescape") as file:
        given = ((number, line) for number, line in _lines(file, label) if line.strip())
        while part := list(islice(given, BATCH_ROWS)):
            is_empty = False
            good = []
            for number, line in part:
                reason = _misfit(line, start, encoding)
                if reason is None:
                    good.append((number, line))
                elif not numbered.reject(number, _UNREADABLE.sub("\ufffd", line), f"the line {reason}"):
                    raise BadInput(f"{label}: line {number} {reason}")
            rows = [{name: line[place].strip() or None for name, place in slices.items()} for _, line in good]
            yield from numbered.built(builder.batch, rows, [number for number, _ in good])
    if is_empty:
        yield builder.batch([])


def read_encoding(given: Any) -> str:
    """The name of an encoding as Python knows it; BadInput if there is no such one."""
    name = str(given or "utf-8")
    try:
        "".encode(name)  # a LookupError also for codecs that are no encodings of text
        return "utf-8-sig" if codecs.lookup(name).name == "utf-8" else name
    except (LookupError, ValueError):
        raise BadInput(f"the encoding {name!r} is not known; write utf-8, latin-1 or cp1252, for example") from None


def _lines(file: Any, label: str) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for line in text_lines(file):
            number += 1
            yield number, line.rstrip("\r\n")
    except LongLine as wrong:
        raise BadInput(f"{label}: {wrong}") from None
    except UnicodeDecodeError as wrong:  # of an encoding whose characters have several bytes
        raise BadInput(f"{label}: after line {number}, the file is not {wrong.encoding} ({wrong.reason})") from None


_UNREADABLE = re.compile("[\ud800-\udfff]")  # bytes that are no characters


def _misfit(line: str, width: int, encoding: str) -> str | None:
    """Why a line is no row; None if it is one."""
    if not line.isascii() and _UNREADABLE.search(line):
        return f"is not {encoding.removesuffix('-sig')}: set `encoding` in the source, for example latin-1 or cp1252"
    if len(line.rstrip()) > width:
        return f"has {len(line.rstrip())} characters, and `widths` describe {width}"
    return None


def wrong_encoding(label: str, encoding: str, wrong: UnicodeError) -> str:
    """The error of text that is not in the encoding that it should have."""
    return f"{label} is not {encoding}: set `encoding` in the source ({getattr(wrong, 'reason', wrong)})"


def _widths(given: Any) -> dict[str, int]:
    if not isinstance(given, Mapping) or not given:
        raise BadInput("format fixed requires `widths`: column -> number of characters, in the order of the file")
    for name, width in given.items():
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BadInput(f"widths.{name} must be a positive number of characters, not {width!r}")
    return {str(name): width for name, width in given.items()}
