"""Makes text from data safe to print: control, escape and bidirectional characters are shown as escapes.

A terminal obeys control sequences (`ESC ] 0 ; title BEL`, `ESC [ 2 J`), and bidirectional marks let a line look like
another one. Data may contain both, so nothing that comes from data is printed without this.
"""

from __future__ import annotations

import re
from functools import cache

# C0 and C1 controls except newline and tab, zero-width and bidirectional marks, line separators, surrogates; below:
# invisible tags and variation selectors, in which whole texts can be hidden.
_UNSAFE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff"
)
_NAMES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with unsafe characters as escapes; newlines and tabs remain unless it must be one line."""
    if text.isascii() and (text if one_line else text.replace("\n", "")).isprintable():
        return text
    return _unsafe(r"\n\t" if one_line else "").sub(_escape, text)


def printable_json(text: str) -> str:
    """Encoded JSON with unsafe characters as JSON escapes: the same data, safe to print."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return _unsafe().sub(_json_escape, text)


@cache
def _unsafe(more: str = "") -> re.Pattern[str]:
    return re.compile(f"[{_UNSAFE}{more}]|[\U000e0000-\U000e0fff]")


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    if character in _NAMES:
        return _NAMES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
