"""Positions of the Language Server Protocol, converted from and to those of the compiler.

The protocol counts lines and units of its encoding (UTF-16 unless client and server agree on another) from 0; the
compiler counts lines and characters from 1. They also disagree on which characters end a line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from lsprotocol import types as lsp
from pygls.workspace import PositionCodec

from noetl.core.language.source.yaml_source import LINE_BREAK

_PROTOCOL_LINE_BREAK = re.compile("\r\n|\n|\r")


class TextPositions:
    """A text with the starts of its lines."""

    def __init__(self, text: str, codec: PositionCodec) -> None:
        self.text = text
        self._codec = codec

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in LINE_BREAK.finditer(self.text))]

    @cached_property
    def _protocol_starts(self) -> list[int]:
        return [0, *(found.end() for found in _PROTOCOL_LINE_BREAK.finditer(self.text))]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the compiler."""
        return LINE_BREAK.split(self.text)

    def position(self, line: int, column: int) -> lsp.Position:
        """The protocol's position of a line and column of the compiler."""
        start = self._starts[min(line, len(self._starts)) - 1]
        return self._position_at(min(start + column - 1, len(self.text)))

    def range(self, line: int, column: int, end_column: int) -> lsp.Range:
        """The protocol's range of some characters of one line."""
        return lsp.Range(self.position(line, column), self.position(line, end_column))

    def whole(self) -> lsp.Range:
        """The range of the whole text."""
        return lsp.Range(lsp.Position(0, 0), self._position_at(len(self.text)))

    def _position_at(self, offset: int) -> lsp.Position:
        row = bisect_right(self._protocol_starts, offset) - 1
        before = self.text[self._protocol_starts[row] : offset]
        return lsp.Position(row, len(before) if before.isascii() else self._codec.client_num_units(before))

    def line_and_column(self, position: lsp.Position) -> tuple[int, int]:
        """The compiler's line and column of a position; beyond the end of a line or the text, that end."""
        offset = self._offset(position)
        row = bisect_right(self._starts, offset) - 1
        return row + 1, offset - self._starts[row] + 1

    def protocol_column(self, position: lsp.Position) -> int:
        """The column, in characters from 1, on the protocol's line."""
        row = min(position.line, len(self._protocol_starts) - 1)
        return self._offset(position) - self._protocol_starts[row] + 1

    def on_line(self, row: int, column: int) -> lsp.Position:
        """The position of a column, in characters from 1, on the protocol's line `row`."""
        start = self._protocol_starts[min(row, len(self._protocol_starts) - 1)]
        return self._position_at(min(start + column - 1, len(self.text)))

    def _offset(self, position: lsp.Position) -> int:
        if position.line >= len(self._protocol_starts):
            return len(self.text)
        start = self._protocol_starts[position.line]
        end_of_line = _PROTOCOL_LINE_BREAK.search(self.text, start)
        line = self.text[start : end_of_line.start() if end_of_line else len(self.text)]
        if line.isascii():
            return start + min(position.character, len(line))
        units = 0
        for index, character in enumerate(line):
            if units >= position.character:
                return start + index
            units += self._codec.client_num_units(character)
        return start + len(line)
