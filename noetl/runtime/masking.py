"""Keep secret values out of everything that is written down: logs, errors, events, results.

A `Masker` knows the values a run has been given and replaces each by `***`, in every form in which it
commonly travels: plain, base64 (at all three alignments, so also inside a longer encoded text), hex,
percent-encoded, JSON-escaped (once and twice), HTML-escaped, and line by line if it has several lines.

Rules people should know:

- Mask before cutting. A cut could leave half a secret that nobody recognises any more.
- A value shorter than four characters is masked only where it is a whole string of its own: replacing
  every `a` in every log line would hide nothing and destroy the text. The words `true`, `false`,
  `null`, `none` are never masked.
- Of a credential's fields, those that say where and as whom (`host`, `port`, `user`, `database`, ...)
  are no secrets. The password inside a URL or DSN is one, by itself too.

How. Searching one form is a memmem of the C library, so text without a secret costs a few hundred
nanoseconds per value and line; only text that has one is taken apart.
"""

from __future__ import annotations

import base64
import html
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

_WORDS = frozenset({"true", "false", "null", "none"})
# Fields of a credential that say where, as whom or how, and give nothing away.
_OPEN_FIELDS = frozenset(
    {"host", "hostname", "server", "servers", "port", "endpoint", "path", "file", "bucket", "region", "service"}
    | {"user", "username", "login", "account", "role", "client_id", "tenant_id"}
    | {"database", "dbname", "db", "schema", "warehouse", "sslmode", "ssl", "tls"}
    | {"name", "type", "kind", "driver", "scheme", "protocol", "provider", "engine", "version", "timeout"}
    | {"scope", "token_type", "auth_type", "header", "header_name", "expires_in", "expires_at"}
)
_OPEN_PREFIX = re.compile(r"^(?:db|pg|nats|s3|aws|gcp|azure|mysql|sqlite|duckdb|sf)_")
_URL_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@", re.IGNORECASE)
_DSN_PASSWORD = re.compile(r"\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", re.IGNORECASE)


def secret_texts(value: Any, field: str = "") -> set[str]:
    """The texts of a keychain value that must not be seen; fields that only say where are left out."""
    if isinstance(value, Mapping):
        return set().union(*(secret_texts(each, str(name)) for name, each in value.items()))
    if isinstance(value, list | tuple | set):
        return set().union(*(secret_texts(each, field) for each in value))
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool) or value is None:
        return set()
    text = str(value)
    inside = {unquote(found) for found in _URL_PASSWORD.findall(text)}
    inside |= set(_URL_PASSWORD.findall(text))
    inside |= {quoted or bare for quoted, bare in _DSN_PASSWORD.findall(text)}
    name = _OPEN_PREFIX.sub("", field.lower())
    if name in _OPEN_FIELDS or text.lower() in _WORDS or not text.strip():
        return {found for found in inside if found}
    return {text, *inside}


def forms_of(text: str) -> set[str]:
    """Every form in which a secret text is looked for."""
    raw = text.encode("utf-8", "surrogateescape")
    once = json.dumps(text)[1:-1]
    plain = {text, once, json.dumps(once)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
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
    """The characters that the secret alone decides, wherever it begins inside an encoded text."""
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
    """Replaces secret values; it learns them as a run is given them."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._forms: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()
        self._short: frozenset[str] = frozenset()
        self._known: set[str] = set()
        self.add(*values)

    def __bool__(self) -> bool:
        return bool(self._forms or self._short)

    def add(self, *values: Any) -> None:
        """Learn keychain values: texts, or mappings and lists of them."""
        fresh = set().union(*map(secret_texts, values)) - self._known
        if not fresh:
            return
        self._known |= fresh
        forms = set(self._forms).union(*(forms_of(text) for text in fresh if len(text) >= SHORTEST))
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._bytes = tuple(form.encode("utf-8", "surrogateescape") for form in self._forms)
        self._short |= {text for text in fresh if len(text) < SHORTEST}

    def mask(self, text: str) -> str:
        """The text without secrets."""
        if text in self._short:
            return MASK
        found = [form for form in self._forms if form in text]
        return _cut_out(text, found, MASK) if found else text

    def mask_bytes(self, data: bytes, *, same_length: bool = False) -> bytes:
        """The bytes without secrets; with `same_length` each is written over, byte for byte."""
        found = [form for form in self._bytes if form in data]
        return _cut_out(data, found, None if same_length else MASK.encode()) if found else data

    def mask_data(self, value: Any) -> Any:
        """JSON data without secrets, keys included; the same object when there is none in it."""
        if not self:
            return value
        if not self._short and not self._is_in(value):
            return value
        return self._walk(value)

    def _is_in(self, value: Any) -> bool:
        """Whether any secret is somewhere in the data: one encoding is cheaper than a walk."""
        if isinstance(value, str):
            return any(form in value for form in self._forms)
        try:
            encoded = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError, OverflowError):
            return True  # cannot tell: walk
        return any(form in encoded for form in self._bytes)

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

        `same_length` is for formats in which offsets count (Parquet, Arrow): nothing moves."""
        overlap = max(map(len, self._bytes), default=1) - 1
        rest = b""
        async for chunk in chunks:
            if not overlap:
                yield chunk
                continue
            data = self.mask_bytes(rest + chunk, same_length=same_length)
            # What is held back may begin a secret; what goes out ends before it.
            keep = min(overlap, len(data))
            rest = data[len(data) - keep :]
            if len(data) > keep:
                yield data[: len(data) - keep]
        if rest:
            yield rest


def _cut_out(text: Any, found: list[Any], mask: Any) -> Any:
    """Replace all occurrences, overlapping ones as one."""
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
