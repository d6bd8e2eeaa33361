"""Writes workbooks and text of fixed width, whose cells are texts."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_RELATIONS = f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" Type="{_OFFICE}/%s" Target="%s"/>'
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" ContentType='
    '"application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    'ContentType="application/xml"/></Types>',
    "_rels/.rels": _RELATIONS % ("officeDocument", "xl/workbook.xml") + "</Relationships>",
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
    '<sheet name="Sheet" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": _RELATIONS % ("worksheet", "worksheets/sheet1.xml") + "</Relationships>",
}


def write_workbook(path: Path, rows: list[list[str | None]]) -> None:
    """A workbook with one sheet."""

    def cell(value: str | None) -> str:
        text = "" if value is None else escape(value)
        return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>' if text else "<c/>"

    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**_PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            archive.writestr(name, content)


def write_fixed(path: Path, rows: list[list[str | None]]) -> list[int]:
    """Text of fixed width; the widths of its columns."""
    widths = [max(len(value or "") for value in column) + 1 for column in zip(*rows, strict=True)]
    lines = ("".join((value or "").ljust(width) for value, width in zip(row, widths, strict=True)) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return widths
