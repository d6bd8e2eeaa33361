"""The network policy for DuckDB, which opens its own connections.

The addresses that a call names (in string literals, parameters, `ATTACH` and `CREATE SECRET`) are checked before its
statements are executed. A call that names none cannot load the extensions that connect. Extensions with access to the
network are not installed or loaded by statements, and settings that redirect connections are not changed. Requests over
HTTP (also to S3) go through the gate's proxy, which checks redirects, computed addresses and name servers.
Not checked: addresses of other servers (Postgres, MySQL) that a call computes besides an allowed one that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from noetl.connections.address_gate import LOOPBACK, AddressDenied, Allows, check_urls, host_of
from noetl.connections.gate_proxy import gate_proxy
from noetl.data.sql import Token, tokens
from noetl.runtime.threads import in_thread

# Extensions without access to the network.
_LOCAL_EXTENSIONS = {
    "autocomplete", "avro", "core_functions", "excel", "fts", "icu", "inet", "jemalloc", "json", "parquet",
    "sqlite", "sqlite_scanner", "tpcds", "tpch", "vss",
}  # fmt: skip
_SETTINGS = re.compile(r"extension|repository|filesystem|proxy|endpoint|external_access|^azure_|^s3_|^ca_cert|^http_")
_INSTANCE_CHANGES = {"attach", "detach", "set", "reset", "pragma", "load", "install", "force", "update"}
_PROVIDER_SCHEMES = {"s3", "s3a", "s3n", "gs", "gcs", "r2", "az", "azure", "abfs", "abfss", "hf"}
_HOST = re.compile(r"\bhost(?:addr)?\s*=\s*'?([^\s'&;]+)", re.IGNORECASE)
_DATABASE = re.compile(r"(?:postgres(?:ql)?|mysql|md|motherduck|ducklake|iceberg|quack|uc_catalog):", re.IGNORECASE)
_SERVER_TYPES = {"postgres", "postgresql", "mysql", "motherduck", "iceberg", "quack"}
_ENDPOINTS = {"endpoint", "host", "connection_string", "http_proxy", "oauth2_server_uri"}


async def check_statements(statements: Sequence[tuple[str, Any]], allows: Allows) -> bool:
    """Check statements with their parameters; return whether they name an address (all named ones are allowed)."""
    named = False
    for text, params in statements:
        found = [token for token in tokens(text, "duckdb") if token.kind != "comment" and token.text.strip()]
        words = [token.text.lower() for token in found if token.kind == "word"]
        _refuse_changes(words, found)
        places = list(_places(words, found, params))
        await check_urls(places, allows)
        named = named or bool(places) or any(map(_is_remote, _texts(found, params)))
    return named


async def apply_policy(
    cursor: Any, statements: Sequence[tuple[str, Any]], allows: Allows, proxy: str | None = None
) -> None:
    """Check statements, and prepare a cursor for them: extensions are loaded on demand only if they name an address.

    Requests over HTTP go through the proxy of the call or of the gate, also those to addresses that statements
    compute."""
    named = await check_statements(statements, allows)
    value = str(named).lower()
    text = f"SET autoinstall_known_extensions = {value}; SET autoload_known_extensions = {value}"
    proxy = proxy or await gate_proxy(allows)
    if proxy is not None:
        text += f"; SET GLOBAL http_proxy = '{proxy}'"
    await in_thread(lambda: cursor.execute(text), interrupt=cursor.interrupt)


def changes_instance(text: str) -> bool:
    """Whether a statement changes what all cursors of a database share: attached databases, secrets, settings."""
    words = [token.text.lower() for token in tokens(text, "duckdb") if token.kind == "word"][:6]
    return bool(words) and (words[0] in _INSTANCE_CHANGES or (words[0] in ("create", "drop") and "secret" in words))


def _refuse_changes(words: list[str], found: list[Token]) -> None:
    """Refuse statements after which connections would not be checked."""
    first = words[0] if words else ""
    if first in ("install", "load", "force", "update"):
        names = words[words.index("install") + 1 :] if "install" in words[:2] else words[1:]
        is_extension = first != "update" or names[:1] == ["extensions"]
        literals = any(token.kind == "string" for token in found)
        if is_extension and (literals or len(names) != 1 or names[0] not in _LOCAL_EXTENSIONS):
            raise AddressDenied(f"{first.upper()} {' '.join(names)}".strip(), "of an extension")
    elif first in ("set", "reset", "pragma", "call"):
        names = [token.text.strip('"').lower() for token in found if token.kind in ("word", "string")]
        changed = next((name for name in names[1:] if _SETTINGS.search(name)), None)
        if changed:
            raise AddressDenied(f"{first.upper()} {changed}", "of a setting")


def _places(words: list[str], found: list[Token], params: Any) -> Iterable[str]:
    """The hosts and URLs that a statement connects to."""
    for text in _texts(found, params):
        yield from _places_in(text)
    if words[:1] == ["attach"] and _SERVER_TYPES & set(words):
        texts = list(_texts(found, params))
        if not any(True for text in texts for _ in _places_in(text)):
            yield LOOPBACK  # the default of the driver
    if words[:1] == ["create"] and "secret" in words[:6]:
        for token, value in pairwise(found):
            text = _text_of(value) if value.kind == "string" else ""
            if text and token.text.lower() in _ENDPOINTS:
                yield host_of(text) or LOOPBACK
            elif token.text.lower() == "account_name" and re.search(r"[^\w-]", text):
                raise AddressDenied(text, "of an account")


def _places_in(text: str) -> Iterable[str]:
    yield from _HOST.findall(text)
    for url in re.findall(r"\b[a-zA-Z][\w+.-]+://[^\s'\"]*", text):
        try:
            parts = urlsplit(url)
        except ValueError:
            raise AddressDenied(url, "without a valid host") from None
        if parts.scheme.lower() not in (*_PROVIDER_SCHEMES, "file", "md", "motherduck"):
            yield url
            continue
        options = parse_qsl(parts.query)
        yield from (value for name, value in options if "endpoint" in name.lower() or "proxy" in name.lower())
        host = parts.netloc.rpartition("@")[2]
        if parts.scheme.lower().startswith(("az", "abfs")) and "." in host:
            yield host
    if _DATABASE.match(text) and not _HOST.search(text) and "://" not in text and not text.startswith(("md", "moth")):
        yield LOOPBACK


def _is_remote(text: str) -> bool:
    scheme = re.match(r"([a-zA-Z][\w+.-]+):", text)
    return scheme is not None and (scheme[1].lower() in _PROVIDER_SCHEMES or bool(_DATABASE.match(text)))


def _texts(found: list[Token], params: Any) -> Iterable[str]:
    """All string literals and text parameters of a statement."""
    yield from (_text_of(token) for token in found if token.kind == "string")
    yield from _values(params)


def _values(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _values(each)


def _text_of(token: Token) -> str:
    text = token.text
    if text.startswith("$"):
        return text.split("$", 2)[2].rpartition("$")[0].rpartition("$")[0]
    return text.lstrip("eE").strip("'\"").replace("''", "'")
