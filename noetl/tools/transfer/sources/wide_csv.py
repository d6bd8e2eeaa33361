"""CSV with many columns or long values, or with rows that may be bad, read in pieces of a few megabytes.

DuckDB reads CSV in vectors of 2,048 rows for each column and thread, so its memory grows with the width of the rows.
Here a piece of whole lines is parsed by Arrow as text; DuckDB detects the types from the first rows and converts the
text. Both have the same result: the options, the types and the nulls are those of `duckdb_files`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from duckdb import InvalidInputException

from noetl.core.model.excerpt import excerpt
from noetl.data.files import duckdb_files as files
from noetl.data.files.table_files import row_encoder
from noetl.runtime.malloc import release_memory
from noetl.runtime.temporary_folders import TemporaryFolder

PIECE_BYTES = 2 << 20
LARGEST_RECORD = 64 << 20
COLUMNS = 200  # of a file that is wide, and whose types are detected at a time
WIDE_BYTES = 4 << 10  # of a line
SAMPLE_ROWS, SAMPLE_VALUE = 100, 256  # rows by which types are detected, at least; and characters of a value
_BREAKS, _BACK = str.maketrans("\r\n", "\x0e\x0f"), str.maketrans("\x0e\x0f", "\r\n")
PIECE, VALUE, COLUMN = "noetl_piece", "noetl_value", "noetl_column"


class Kind(NamedTuple):
    """A type, and how text is converted to it."""

    name: str
    text: str = VALUE  # the expression of the text: null if it is empty and quoted nulls exist

    @property
    def value(self) -> str:
        """The expression that converts the text."""
        return self.text if self.name == "VARCHAR" else f"TRY_CAST({self.text} AS {self.name})"


def is_wide(path: str) -> bool:
    """Whether the rows are too wide for vectors."""
    first = next(iter(files.found_files(path)), None)
    if first is None or files.row_width(path) < COLUMNS:
        return False
    with first.open("rb") as file:
        head = file.readline(1 << 20)
    return head.endswith(b"\n") and (
        files.row_width(path) > WIDE_BYTES or head.count(files.delimiter_of(path).encode()) >= COLUMNS
    )


class WideCsv:
    """CSV files with the same columns."""

    def __init__(self, cursor: Any, path: str, types: Mapping[str, str]) -> None:
        self._cursor = cursor
        self._delimiter = files.delimiter_of(path)
        self._record = _record(self._delimiter)
        self._files = files.found_files(path)
        self._names: list[str] = []
        self._given = dict(types)

    def plan(self) -> tuple[dict[str, Kind], set[str]]:
        """The types, and the columns of numbers that stay text because a double is not exact. Called in a thread."""
        with TemporaryFolder("noetl-transfer-") as folder:
            self._names = self._header(Path(folder, "header.csv"))
            sample = self._sample()
            names = [self._names[start : start + COLUMNS] for start in range(0, len(self._names), COLUMNS)]
            detected = [self._detect(each, sample, Path(folder, "sample.csv")) for each in names]
        quoted_nulls = any(
            plain[name] == "VARCHAR" != kind for plain, quoted in detected for name, kind in quoted.items()
        )
        text = f"nullif({VALUE}, '')" if quoted_nulls else VALUE
        kinds = {
            name: Kind(kind, text)
            for plain, quoted in detected
            for name, kind in (quoted if quoted_nulls else plain).items()
        }
        texts, numbers = self._look({name: kind for name, kind in kinds.items() if name not in self._given})
        return kinds | dict.fromkeys(texts | numbers, Kind("VARCHAR", text)), numbers

    def _header(self, copy: Path) -> list[str]:
        """The names of the columns, as DuckDB makes them unique."""
        with self._files[0].open("rb") as file:
            head = next(_pieces(file, self._record), b"")
        found = self._record.match(head)
        names = _one_line((head if found is None else found[0]).rstrip(b"\r\n").decode("utf-8", "surrogateescape"))
        copy.write_bytes(names.encode("utf-8", "surrogateescape") + b"\n")
        found_names = files.described(self._cursor, files.csv_call(str(copy), delimiter=self._delimiter))
        return [name.translate(_BACK) for name in found_names]

    def _sample(self) -> Any:
        """The first rows, with long values cut off."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts, count = [], 0
        for _, _, batch in self.texts():
            short = [pc.utf8_slice_codeunits(column, 0, SAMPLE_VALUE) for column in batch.columns]
            parts.append(pa.table(short, names=self._names))
            count += batch.num_rows
            if count >= SAMPLE_ROWS:
                break
        return pa.concat_tables(parts) if parts else pa.Table.from_batches([self.no_rows()])

    def no_rows(self) -> Any:
        """The columns as text."""
        import pyarrow as pa

        return pa.RecordBatch.from_pylist([], schema=pa.schema([(name, pa.string()) for name in self._names]))

    def _detect(self, names: list[str], sample: Any, copy: Path) -> Sequence[dict[str, str]]:
        """The types of some columns, without and with quoted nulls."""
        encoder = row_encoder("csv", [_one_line(name) for name in names])
        rows = [
            {_one_line(name): _one_line(value) for name, value in row.items()}
            for row in sample.select(names).to_pylist()
        ]
        copy.write_bytes(encoder.write_rows(rows) + encoder.close())
        given = {_one_line(name): kind for name, kind in self._given.items() if name in names}
        calls = [files.csv_call(str(copy), given, quoted_nulls=nulls, delimiter=",") for nulls in (False, True)]
        return [dict(zip(names, files.described(self._cursor, call).values(), strict=True)) for call in calls]

    def _look(self, kinds: Mapping[str, Kind]) -> tuple[set[str], set[str]]:
        """The columns that look like other types and are texts, and those whose numbers a double does not keep."""
        texts: set[str] = set()
        numbers: set[str] = set()
        tests = {kind: files.text_tests(kind.name, kind.text) for kind in {*kinds.values()}}
        suspects = {test: [name for name in kinds if kinds[name] == kind] for kind, test in tests.items() if test}
        for _, _, batch in self.texts() if suspects else ():
            for (other, inexact), names in suspects.items():
                query = f"SELECT {COLUMN}, bool_or({other}), bool_or({inexact}) FROM {PIECE} GROUP BY ALL"
                with self._stacked(batch, names, numbered=True):
                    for index, is_text, is_inexact in self._cursor.execute(query).fetchall():
                        texts |= {names[index]} if is_text else set()
                        numbers |= {names[index]} if is_inexact else set()
        return texts, numbers - texts

    @contextmanager
    def _stacked(self, batch: Any, names: Sequence[str], *, numbered: bool = False) -> Iterator[None]:
        """The values of some columns as one column: a query takes as long for it as for one column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = pa.concat_arrays([batch.column(name) for name in names])
        columns = {VALUE: values}
        if numbered:
            columns[COLUMN] = pc.list_parent_indices(pa.FixedSizeListArray.from_arrays(values, batch.num_rows))
        self._cursor.register(PIECE, pa.table(columns))
        try:
            yield
        finally:
            self._cursor.unregister(PIECE)

    def texts(self) -> Iterator[tuple[Path, int, Any]]:
        """The rows of all files as text: the file, the number of the first row in it, and a batch."""
        import pyarrow as pa
        import pyarrow.csv as pc

        parse = pc.ParseOptions(
            delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=len(self._names) > 1
        )
        convert = pc.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.string()), null_values=[""], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )  # fmt: skip
        first = files.first_line(self._files[0], self._delimiter)
        for path in self._files:
            number, is_head = 1, True
            names = self._order(path, first)
            with path.open("rb") as file:
                for piece in _pieces(file, self._record):
                    if is_head:  # the names
                        found = self._record.match(piece)
                        piece, is_head = piece[found.end() if found else len(piece) :], False
                    if not piece.strip():
                        continue
                    options = pc.ReadOptions(column_names=names, use_threads=False, block_size=len(piece) + 1)
                    try:
                        table = pc.read_csv(pa.BufferReader(piece), options, parse, convert)
                    except pa.ArrowInvalid as wrong:
                        raise InvalidInputException(f"{path} is not CSV: {excerpt(str(wrong), 300)}") from None
                    for batch in table.select(self._names).combine_chunks().to_batches():
                        yield path, number, batch
                        number += batch.num_rows
                    release_memory()  # many small allocations for each column

    def _order(self, path: Path, first: list[str]) -> list[str]:
        """The columns in the order of a file, which may differ from that of the first one."""
        own = files.first_line(path, self._delimiter)
        if own == first:
            return self._names
        if len({*own}) < len(own):
            raise InvalidInputException(f"{path} has a column twice, and another order than {self._files[0]}")
        return [self._names[first.index(name)] for name in own]

    def typed(
        self, batch: Any, kinds: Mapping[str, Kind], select: Callable[[str], Iterator[Any]]
    ) -> tuple[Any, dict[int, str]]:
        """The batch in its types, and its rows with values of another type, with the reason; `select` runs a query."""
        import pyarrow as pa

        columns: dict[str, tuple[Any, Any]] = {}
        wrong: dict[int, list[str]] = {}
        count = batch.num_rows
        for kind in {*kinds.values()}:
            names = [name for name in self._names if kinds[name] == kind]
            with self._stacked(batch, names):
                parts = pa.Table.from_batches(list(select(f"SELECT {kind.value} AS {VALUE} FROM {PIECE}")))
                (value,) = parts.combine_chunks().column(0).chunks or [pa.array([], parts.schema.field(0).type)]
                if value.null_count != sum(batch.column(name).null_count for name in names):
                    query = f"SELECT {kind.value} IS NULL AND {kind.text} IS NOT NULL FROM {PIECE}"
                    for index, (is_wrong,) in enumerate(self._cursor.execute(query).fetchall()):
                        if is_wrong:
                            name, row = names[index // count], index % count
                            text = excerpt(batch.column(name)[row].as_py())
                            wrong.setdefault(row, []).append(f"the column {name!r}: {text} is not {kind.name}")
            for index, name in enumerate(names):
                columns[name] = value.slice(index * count, count), parts.schema.field(0).with_name(name)
        arrays, fields = zip(*(columns[name] for name in self._names), strict=True)
        reasons = {row: "; ".join(each) for row, each in sorted(wrong.items())}
        return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields)), reasons


def _one_line(text: Any) -> Any:
    """The text with other control characters for line breaks: DuckDB reads no file with two kinds of them."""
    return text and text.translate(_BREAKS)


def _pieces(file: Any, record: re.Pattern[bytes]) -> Iterator[bytes]:
    """The file in pieces of whole records; a record with quotes may have line breaks."""
    pending = b""
    while block := file.read(min(max(PIECE_BYTES, len(pending)), LARGEST_RECORD + PIECE_BYTES - len(pending))):
        pending = pending + block if file.tell() > len(block) else block.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
        end = pending.rfind(b"\n") + 1 if b'"' not in pending else _last_end(record, pending)
        if end:
            yield pending[:end]
            pending = pending[end:]
        elif len(pending) >= LARGEST_RECORD + PIECE_BYTES:
            raise InvalidInputException(
                f"{file.name}: a row has more than {LARGEST_RECORD >> 20} MB; perhaps a quote is not closed"
            )
    if pending:
        yield pending


def _record(delimiter: str) -> re.Pattern[bytes]:
    """One line, or several if a value that begins with a quote has line breaks."""
    mark = re.escape(delimiter).encode()
    rest = rb"[^" + mark + rb"\n]*+"
    value = rb'(?:"(?:[^"]++|"")*+"' + rest + rb'|[^"' + mark + rb"\n]" + rest + rb"|)"
    return re.compile(rb"(?:" + value + mark + rb")*+" + value + rb"\n")


def _last_end(record: re.Pattern[bytes], data: bytes) -> int:
    end = 0
    while found := record.match(data, end):
        end = found.end()
    return end
