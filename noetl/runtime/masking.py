"""Masking of secret values in logs, errors, events and results.

A `Masker` has the secret values of a run and replaces each by `***`, in its common
encodings: plain, base64 (at all three alignments, so also inside of a longer encoded text), hex,
percent-encoded, JSON-escaped (once and twice), HTML-escaped, and line by line if it has several lines.

Rules:

- Mask before truncating. `tests/architecture` finds messages with a cut value. Where a stream or a body had to be cut
  first, the beginning of a secret at the end of a text, and its end at the beginning, are masked too (`EDGE` characters
  or more).
- base64 is recognized across line breaks.
- A value shorter than four characters is masked only where it is a complete string: replacing
  every `a` in every log line would make the text unreadable. The words `true`, `false`,
  `null`, `none` are never masked.
- Fields of a credential for the address and the user (`host`, `port`, `user`, `database`, ...)
  are not secret. The password inside of a URL or DSN is secret, also on its own.

Searching one form is a `memmem` of the C library, so text without a secret costs a few hundred
nanoseconds per value and line; only text with a secret is split.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import msgspec

MASK = "***"
SHORTEST = 4
SHORTEST_LINE = 8
SHORTEST_BASE64 = 5
EDGE = 8  # characters of a cut secret that are masked at the edges of a text
_SEED = 8  # characters of base64 of which one of two is not broken by a line break
# Patterns are compiled when they are first used: most commands have no secrets.
_BREAK = r"(?:\\r)?\\n|\r?\n[ \t]*"

_WORDS = frozenset({"true", "false", "null", "none"})
# Fields of a credential for the address, the user or options, which are not secret.
_OPEN_FIELDS = frozenset(
    {"host", "hostname", "server", "servers", "port", "endpoint", "path", "file", "bucket", "region", "service"}
    | {"user", "username", "login", "account", "role", "client_id", "tenant_id"}
    | {"database", "dbname", "db", "schema", "warehouse", "sslmode", "ssl", "tls"}
    | {"name", "type", "kind", "driver", "scheme", "protocol", "provider", "engine", "version", "timeout"}
    | {"scope", "token_type", "auth_type", "header", "header_name", "expires_in", "expires_at"}
)
_OPEN_PREFIX = r"^(?:db|pg|nats|s3|aws|gcp|azure|mysql|sqlite|duckdb|sf)_"
_URL_PASSWORD = r"(?i)\b[a-z][a-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@"
_DSN_PASSWORD = r"(?i)\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))"


def secret_texts(value: Any, field: str = "") -> set[str]:
    """The secret texts of a keychain value, without the fields that are not secret."""
    if isinstance(value, Mapping):
        return set().union(*(secret_texts(each, str(name)) for name, each in value.items()))
    if isinstance(value, list | tuple | set):
        return set().union(*(secret_texts(each, field) for each in value))
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool) or value is None:
        return set()
    text = str(value)
    in_addresses = re.findall(_URL_PASSWORD, text)
    inside = {*in_addresses, *map(unquote, in_addresses)}
    inside |= {quoted or bare for quoted, bare in re.findall(_DSN_PASSWORD, text)}
    name = re.sub(_OPEN_PREFIX, "", field.lower())
    if name in _OPEN_FIELDS or text.lower() in _WORDS or not text.strip():
        return {found for found in inside if found}
    return {text, *inside}


def forms_of(text: str) -> set[str]:
    """All encodings in which a secret text is searched for."""
    raw = text.encode("utf-8", "surrogateescape")
    once = json.dumps(text)[1:-1]
    plain = {text, once, json.dumps(once)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    import html  # takes a millisecond, and is needed only where there are secrets

    plain |= {html.escape(text), html.escape(text, quote=False)}
    for safe in ("", "/", "/:@", "~()*!.'"):
        for escaped in (quote(raw, safe=safe), quote_plus(raw, safe=safe)):
            plain |= {escaped, re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), escaped)}
    plain |= {raw.hex(), raw.hex().upper()}
    for stable in _base64_forms(raw):
        plain |= {stable, quote(stable, safe="")}
    if "\n" in text:
        plain |= {line.strip() for line in text.splitlines() if len(line.strip()) >= SHORTEST_LINE}
    return {form for form in plain if len(form) >= SHORTEST}


def _base64_forms(raw: bytes) -> set[str]:
    """The base64 characters that depend only on the secret, for each alignment."""
    forms = set()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        first = -(-before * 8 // 6)
        last = (before + len(raw)) * 8 // 6
        stable = encoded[first:last].decode()
        if len(stable) >= SHORTEST_BASE64:
            forms |= {stable, stable.replace("+", "-").replace("/", "_")}
    return forms


class Masker:
    """Replaces the secret values that were added to it."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._forms: tuple[str, ...] = ()
        self._base64: tuple[str, ...] = ()  # of the forms, those that may have line breaks
        self._bytes: tuple[bytes, ...] = ()
        self._short: frozenset[str] = frozenset()
        self._known: set[str] = set()
        self.add(*values)

    def __bool__(self) -> bool:
        return bool(self._forms or self._short)

    @property
    def longest(self) -> int:
        """The length of the longest form of a secret."""
        return len(self._forms[0]) if self._forms else 0

    def add(self, *values: Any) -> None:
        """Add keychain values: texts, or mappings and lists of them."""
        fresh = set().union(*map(secret_texts, values)) - self._known
        if not fresh:
            return
        self._known |= fresh
        forms = set(self._forms).union(*(forms_of(text) for text in fresh if len(text) >= SHORTEST))
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._bytes = tuple(form.encode("utf-8", "surrogateescape") for form in self._forms)
        broken = {form for text in fresh for form in _base64_forms(text.encode("utf-8", "surrogateescape"))}
        self._base64 = tuple({*self._base64, *(form for form in broken if len(form) >= 2 * _SEED)})
        self._short |= {text for text in fresh if len(text) < SHORTEST}

    def found_in(self, text: str) -> list[str]:
        """The secret values that occur in a text, in any of their forms."""
        return [
            known for known in sorted(self._known) if known in text or any(form in text for form in forms_of(known))
        ]

    def mask(self, text: str) -> str:
        """The text without secrets."""
        if text in self._short:
            return MASK
        found = [form for form in self._forms if form in text]
        if found:
            text = _replace_all(text, found, MASK)
        if (self._base64 and "\n" in text) or "\\n" in text:
            text = self._mask_broken(text)
        return self._mask_edges(text)

    def _mask_broken(self, text: str) -> str:
        """Mask base64 with line breaks in it."""
        for form in self._base64:
            if form[:_SEED] in text or form[_SEED : 2 * _SEED] in text:
                pattern = f"(?:{_BREAK})?".join(map(re.escape, form))
                text = re.sub(pattern, MASK, text)
        return text

    def _mask_edges(self, text: str) -> str:
        """Mask a part of a secret at the end or the beginning of a text that was cut there."""
        if len(text) < EDGE:
            return text
        last, first = text[-EDGE:], text[:EDGE]
        for form in self._forms:
            if last in form:
                size = next(
                    (n for n in range(min(len(form) - 1, len(text)), EDGE - 1, -1) if text.endswith(form[:n])), 0
                )
                if size:
                    text = text[:-size] + MASK
                    last = text[-EDGE:]
            if first in form:
                size = next(
                    (n for n in range(min(len(form) - 1, len(text)), EDGE - 1, -1) if text.startswith(form[-n:])), 0
                )
                if size:
                    text = MASK + text[size:]
                    first = text[:EDGE]
        return text

    def mask_bytes(self, data: bytes, *, same_length: bool = False) -> bytes:
        """The bytes without secrets; with `same_length` each is overwritten byte by byte."""
        found = [form for form in self._bytes if form in data]
        return _replace_all(data, found, None if same_length else MASK.encode()) if found else data

    def mask_data(self, value: Any) -> Any:
        """JSON data without secrets in keys and values; the same object if it has none."""
        if not self:
            return value
        if not self._short and not self._has_secret(value):
            return value
        return self._walk(value)

    def _has_secret(self, value: Any) -> bool:
        """Whether the data has any secret; encoding it once is cheaper than walking it."""
        if isinstance(value, str):
            return self.mask(value) != value
        try:
            encoded = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError, OverflowError):
            return True  # unknown: walk
        # The beginning of each form is enough for a secret that was cut, or has line breaks.
        return any(form[:EDGE] in encoded or form[-EDGE:] in encoded for form in self._bytes)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self._walk(key): self._walk(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(each) for each in value]
        if isinstance(value, bytes | bytearray):
            return self.mask_bytes(bytes(value))
        if isinstance(value, int) and not isinstance(value, bool):
            return MASK if str(value) in self._known else value
        if isinstance(value, msgspec.Struct):
            fields = {name: self._walk(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        return value

    async def mask_chunks(self, chunks: AsyncIterator[bytes], *, same_length: bool = False) -> AsyncIterator[bytes]:
        """A stream without secrets, also where one spans two chunks.

        `same_length` is for formats with offsets (Parquet, Arrow): no byte moves."""
        overlap = max(map(len, self._bytes), default=1) - 1
        rest = b""
        async for chunk in chunks:
            if not overlap:
                yield chunk
                continue
            data = self.mask_bytes(rest + chunk, same_length=same_length)
            # The end of the data may be the beginning of a secret, so it is held back.
            held = min(overlap, len(data))
            rest = data[len(data) - held :]
            if len(data) > held:
                yield data[: len(data) - held]
        if rest:
            yield rest


def _replace_all(text: Any, found: list[Any], mask: Any) -> Any:
    """Replace all occurrences; overlapping ones are replaced together."""
    spans: list[tuple[int, int]] = []
    for form in found:
        start = text.find(form)
        while start >= 0:
            spans.append((start, start + len(form)))
            start = text.find(form, start + 1)
    spans.sort()
    pieces = []
    done = 0
    covered = -1
    for start, end in spans:
        if mask is None:
            if end > done:
                pieces += [text[done:start], b"*" * (end - max(done, start))]
        elif start > covered:
            pieces += [text[done:start], mask]
        covered = max(covered, end)
        done = max(done, end)
    pieces.append(text[done:])
    return text[:0].join(pieces)
