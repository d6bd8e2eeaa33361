"""Makes text from data safe to print: control, escape and bidirectional characters are shown as escapes.

A terminal obeys control sequences (`ESC ] 0 ; title BEL`, `ESC [ 2 J`), and bidirectional marks let a line look like
another one. Data may contain both, so nothing that comes from data is printed without this.
"""

from __future__ import annotations

import re
from functools import cache

# C0 and C1 controls except newline and tab, zero-width and bidirectional marks, other format characters, letters
# without a shape, line separators, surrogates; below: invisible tags and variation selectors, in which whole texts can
# be hidden.
_UNSAFE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb"
    r"\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
# Marks that a terminal draws over the character before them; many of them cover the lines above.
_MARKS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc"
    r"\u0ec8-\u0ece\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u302a-\u302f\ufe0f\ufe20-\ufe2f"
)
_MOST_MARKS = 4  # on one character
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
    too_many = rf"(?<=[{_MARKS}]{{{_MOST_MARKS}}})[{_MARKS}]"
    return re.compile(f"[{_UNSAFE}{more}]|[\U000e0000-\U000e0fff]|{too_many}")


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
