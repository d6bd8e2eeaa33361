"""Masking of secret values in logs, errors, events and results.

A `Masker` has the secret values of a run and replaces each by `***`, in its common
encodings: plain, in UTF-16, in upper or lower case, base64 (at all three alignments, so also inside of a longer encoded
text), hex (also with separators), and line by line if it has several lines. A text in which single characters of it are
escaped, in whatever way and how often (JSON, HTML, URLs, SQL, shells, `repr`), is recognized by a pattern (`_escaped`),
and so is one whose signs were replaced or removed, as in names that are derived from it (`_without_signs`).

Rules:

- Mask before truncating. `tests/architecture` finds messages with a cut value. Where a stream or a body had to be cut
  first, the beginning of a secret at the end of a text, and its end at the beginning, are masked too (`EDGE` characters
  or more).
- Plain texts, base64 and hex are recognized across line breaks, spaces and sequences that color a terminal; so is a
  line that is a part of a secret and nothing else.
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
import unicodedata
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import msgspec

MASK = "***"
SHORTEST = 4
SHORTEST_LINE = 8
SHORTEST_BASE64 = 5
SHORTEST_CASE = 12  # of a text that is searched for in upper and lower case
EDGE = 8  # characters of a cut secret that are masked at the edges of a text
STRETCHED = 2  # how much longer a form of a secret can be where it has line breaks or escapes in a stream
_SEED = 8  # characters of base64 of which one of two is not broken by a line break
# Patterns are compiled when they are first used: most commands have no secrets.
_COLOR = r"(?:\x1b|\\+u001b|\\+x1b|\\+033)\[[0-9;]*[A-Za-z]"
_BREAK = rf"(?:\\+r)?\\+n|\r?\n[ \t]*|[ \t]+|(?:{_COLOR})+"
_ZEROS = ("\0", "u0000", "x00", "\\0", "^@")  # every second byte of ASCII text in UTF-16, as texts show it
_COLORS = ("\x1b[", "u001b[", "x1b[", "033[")
_SIGNS = tuple(sign.encode() for sign in (*_ZEROS, *_COLORS)[1:])  # of both, in JSON
_ZERO = r"(?:\0|\\+u0000|\\+x00|\\+0{1,3}|\^@)"
_RUN = r"[A-Za-z0-9]{3,}"
_BYTES = ("%(?:25)*{:02x}", r"\\+x{:02x}", r"\\+{:03o}", "={:02x}")
_URL_WORD = r"[^\s\"'<>]*%(?:5[Cc]|25)[^\s\"'<>]*"  # with a backslash or a percent sign: escaped before it was quoted
_NAMED = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_SIGN_CHARACTERS = "".join(sign for sign in map(chr, range(128)) if not sign.isalnum())
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}

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
    pairs = [f"{byte:02x}" for byte in raw]
    plain |= {"".join(pairs), "".join(pairs).upper(), ":".join(pairs).upper()}
    plain |= {separator.join(pairs) for separator in (":", " ", "\\x", "%")} | {"%".join(pairs).upper()}
    utf16 = text.encode("utf-16-be", "surrogatepass")
    plain.add("".join(f"\\u{unit}" for unit in utf16.hex(" ", 2).split()))
    plain |= {"".join(form.format(ord(each)) for each in text) for form in ("&#{};", "&#x{:x};")}
    plain.add("".join(f"\\{byte:03o}" for byte in raw))
    if not text.isascii():
        plain |= {raw.decode("latin-1"), raw.decode("cp1252", "replace")}  # UTF-8 that was read in another encoding
        plain |= {unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}
    if len(text) >= SHORTEST_CASE:
        plain |= {text.upper(), text.lower()}
    plain.add("00".join(pairs))
    wide = "\0".join(text).encode("utf-8", "surrogateescape")  # ASCII characters in UTF-16 of either order
    wide_forms = _base64_forms(wide)
    if not text.isascii():
        wide_forms = _base64_forms(utf16) | _base64_forms(text.encode("utf-16-le", "surrogatepass"))
    for stable in _base64_forms(raw) | wide_forms:
        escaped = quote(stable, safe="")
        plain |= {stable, escaped, re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), escaped)}
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


def _seed_of(text: str) -> str:
    """The longest part of a text that no escaping changes."""
    return max(re.findall(_RUN, text), key=len, default="")


def _escaped(text: str) -> re.Pattern[str]:
    """The pattern of a text with any of its characters escaped."""
    parts = re.findall(r"\\+|[^\\]", text, re.DOTALL)
    return re.compile("".join(map(_escaped_part, parts)), re.IGNORECASE)


def _without_signs(text: str) -> re.Pattern[str] | None:
    """The pattern of a text whose signs are replaced by others or removed, in any case; None if it is too short."""
    runs = re.findall("[A-Za-z0-9]+|[^A-Za-z0-9]+", text.strip(_SIGN_CHARACTERS))
    if sum(len(run) for run in runs if run.isascii() and run.isalnum()) < SHORTEST_CASE:
        return None
    gaps = (f"[^A-Za-z0-9]{{0,{3 * len(run)}}}" if not (run.isascii() and run.isalnum()) else run for run in runs)
    return re.compile("".join(gaps), re.IGNORECASE)


def _escaped_part(part: str) -> str:
    """The pattern of a character, or of several backslashes, in all spellings."""
    if part.isascii() and part.isalnum():
        return f"(?-i:{part})"
    if part[0] == "\\":
        return rf"(?:\\{{{len(part)},{16 * len(part)}}}|(?:{'|'.join(_numeric(part[0]))}){{{len(part)}}})"
    spellings = [rf"\\{{0,16}}{re.escape(part)}", *_numeric(part)]
    if part in _NAMED:
        spellings.append(f"&(?:amp;)*{_NAMED[part]};")
    if part in "'\"%":
        spellings.append(re.escape(part * 2))
    if part == "'":
        spellings.append(r"""'"'"'|'\\''""")
    if part in _LETTERS:
        spellings.append(rf"\\+{_LETTERS[part]}")
    if part == "\n":
        spellings.append(r"(?:\\+r|\r)?(?:\\+n|\n)(?:[ \t]|> ?)*|[ ]")
    if part == " ":
        spellings += [r"\+", "\u00a0"]
    return "(?:" + "|".join(spellings) + ")"


def _numeric(character: str) -> list[str]:
    """The patterns of a character as a number: in JSON, HTML, URLs, strings of programs, quoted-printable."""
    code, raw = ord(character), character.encode("utf-8", "surrogateescape")
    spellings = [rf"\\+u0*{code:x}", rf"\\+u\{{0*{code:x}\}}", f"&(?:amp;)*#(?:0*{code}|x0*{code:x});"]
    spellings += ["".join(form.format(byte) for byte in raw) for form in _BYTES]
    if 0x7F < code < 0x100:
        spellings.append(rf"\\+x{code:x}")
    if code > 0xFFFF:
        high, low = divmod(code - 0x10000, 0x400)
        spellings.append(rf"\\+u{0xD800 + high:x}\\+u{0xDC00 + low:x}")
    return spellings


class Masker:
    """Replaces the secret values that were added to it."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._forms: tuple[str, ...] = ()
        # Texts that may have line breaks in them, each with two parts of which one is not broken.
        self._broken: tuple[tuple[str, str, str], ...] = ()
        self._parts: tuple[str, ...] = ()
        self._joined = ""  # all forms, to search for a part of any
        self._starts: tuple[str, ...] = ()  # the beginnings of the forms, of which many are equal
        self._bytes: tuple[bytes, ...] = ()
        self._ends: tuple[bytes, ...] = ()  # parts of them, one of which is in every text with a secret
        self._short: frozenset[str] = frozenset()
        self._escaped: dict[str, re.Pattern[str] | None] = {}  # by text; compiled when its seed is found
        self._seeds: dict[str, str] = {}
        # Patterns of texts whose signs are replaced, by seed in each case.
        self._derived: dict[str, list[re.Pattern[str]]] = {}
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
        self._joined = "\0".join(self._forms)
        self._starts = tuple({form[:EDGE] for form in self._forms})
        self._bytes = tuple(form.encode("utf-8", "surrogateescape") for form in self._forms)
        raw = [text.encode("utf-8", "surrogateescape") for text in fresh]
        broken = {form for each in raw for form in (*_base64_forms(each), each.hex())} | fresh
        long = (form for form in broken if len(form) >= 2 * _SEED)
        self._broken = tuple({*self._broken, *((form, form[:_SEED], form[_SEED : 2 * _SEED]) for form in long)})
        self._parts = tuple({part for _, *parts in self._broken for part in parts})
        ends = {form[:EDGE] for form in self._forms} | {form[-EDGE:] for form in self._forms} | set(self._parts)
        self._ends = tuple(end.encode("utf-8", "surrogateescape") for end in ends)
        self._short |= {text for text in fresh if len(text) < SHORTEST}
        for text in fresh:
            if len(text) >= SHORTEST and not (text.isascii() and text.isalnum()):
                seed = self._seeds[text] = _seed_of(text)
                if seed and (pattern := _without_signs(text)):
                    for each in {seed, seed.upper(), seed.lower()}:
                        self._derived.setdefault(each, []).append(pattern)

    def found_in(self, text: str) -> list[str]:
        """The secret values that occur in a text, in any of their forms."""
        return [
            known for known in sorted(self._known) if known in text or any(form in text for form in forms_of(known))
        ]

    def mask(self, text: str) -> str:
        """The text without secrets."""
        if text in self._short:
            return MASK
        return self._mask_edges(self._mask_inner(text))

    def _mask_inner(self, text: str, urls: int = 3) -> str:
        """The text without whole secrets, which may be quoted for URLs so many times."""
        if [start for start in self._starts if start in text]:  # faster than `any`
            found = [form for form in self._forms if form in text]
            text = _replace_all(text, found, MASK) if found else text
        plain = re.sub(_COLOR, "", text) if any(color in text for color in _COLORS) else text
        if [part for part in self._parts if part in plain]:
            text = self._mask_broken(text, plain)
        if any(zero in text for zero in _ZEROS):
            narrow = re.sub(_ZERO, "", text)
            for known in self._known:
                if len(known) >= SHORTEST and known in narrow:
                    text = re.sub(_ZERO.join(map(re.escape, known)), MASK, text)
        for known, seed in self._seeds.items():
            if seed in text and len(text) >= len(known):
                text = self._mask_escaped(known, text)
        for seed in [seed for seed in self._derived if seed in text]:
            for pattern in self._derived[seed]:
                text = pattern.sub(MASK, text)
        if urls and ("%5C" in text or "%5c" in text or "%25" in text):
            text = re.sub(_URL_WORD, lambda word: self._mask_url(word[0], urls - 1), text)
        return text

    def _mask_url(self, word: str, urls: int) -> str:
        """A word of a URL; decoded if it has a secret that was escaped before it was quoted."""
        decoded = unquote(word)
        masked = self._mask_inner(decoded, urls)
        return word if masked == decoded else masked

    def _mask_escaped(self, known: str, text: str) -> str:
        """Mask a secret whose characters are escaped."""
        pattern = self._escaped.get(known)
        if pattern is None:
            pattern = self._escaped[known] = _escaped(known)
        return pattern.sub(MASK, text)

    def _mask_broken(self, text: str, plain: str) -> str:
        """Mask secrets with line breaks or colors in them; `plain` is the text without colors."""
        for form, first, second in self._broken:
            if first in plain or second in plain:
                pattern = f"(?:{_BREAK})?".join(map(re.escape, form))
                text = re.sub(pattern, MASK, text)
        return text

    def _mask_edges(self, text: str) -> str:
        """Mask a part of a secret at the end or the beginning of a text that was cut there."""
        line = text.strip()
        last, first = line[-EDGE:], line[:EDGE]
        if len(line) < EDGE or (last not in self._joined and first not in self._joined):
            return text
        if line in self._joined:
            return text.replace(line, MASK)
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
        if any(sign in encoded for sign in _SIGNS) or any(
            seed.encode() in encoded for seed in (*self._seeds.values(), *self._derived)
        ):
            return True
        # The beginning of each form is enough for a secret that was cut, or has line breaks.
        if b"\\\\" in encoded:  # a backslash of a form is escaped in JSON
            encoded += encoded.replace(b"\\\\", b"\\")
        return any(end in encoded for end in self._ends)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self._walk(key): self._walk(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(each) for each in value]
        if isinstance(value, bytes | bytearray):
            return self.mask_bytes(bytes(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return MASK if str(value) in self._known or str(value).removesuffix(".0") in self._known else value
        if isinstance(value, msgspec.Struct):
            fields = {name: self._walk(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        return value

    def _mask_stream(self, data: bytes) -> bytes:
        """A part of a text without whole secrets."""
        return self._mask_inner(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    async def mask_chunks(self, chunks: AsyncIterator[bytes], *, same_length: bool = False) -> AsyncIterator[bytes]:
        """A stream without secrets, also where one spans two chunks.

        `same_length` is for formats with offsets (Parquet, Arrow): no byte moves."""
        overlap = (max(map(len, self._bytes), default=1) - 1) * (1 if same_length else STRETCHED)
        rest = b""
        async for chunk in chunks:
            if not overlap:
                yield chunk
                continue
            data = rest + chunk
            data = self.mask_bytes(data, same_length=True) if same_length else self._mask_stream(data)
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
