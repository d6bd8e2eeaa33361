"""Bodies of HTTP messages: what authors write into bytes to send, bytes received into data.

Sending: JSON, forms, multipart, raw text, a file, a stored payload. Receiving: by content type; text in
whatever charset it turns out to be; binary as base64 text (`meta.encoding` says so).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from noetl.core.model.reference import Reference

FORM = "application/x-www-form-urlencoded"
_TEXTS = ("xml", "javascript", "ecmascript", "yaml", "toml", "csv", "graphql", "sql", "x-sh")
_LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"})


class BadBody(ValueError):
    """A body that cannot be sent, in words."""


# ── sending ─────────────────────────────────────────────────────────────────────────────

Make = Callable[[], Any]


def json_body(value: Any) -> tuple[Make, str]:
    """The value as JSON."""
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise BadBody(f"the JSON body cannot be encoded: {wrong}") from wrong
    return (lambda: data), "application/json"


def form_body(value: Any) -> tuple[Make, str]:
    """A mapping (or text) as an URL-encoded form."""
    if isinstance(value, str):
        return raw_body(value)[0], FORM
    if not isinstance(value, Mapping):
        raise BadBody("a form is a mapping of names to values")
    data = urlencode(pairs(value)).encode()
    return (lambda: data), FORM


def raw_body(value: Any) -> tuple[Make, str]:
    """Text or bytes as they are; any other value as its JSON."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return (lambda: data), "text/plain; charset=utf-8" if isinstance(value, str) else "application/octet-stream"
    return json_body(value)


def base64_body(value: Any) -> tuple[Make, str]:
    """Base64 text as the bytes it stands for."""
    try:
        data = base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise BadBody("body_base64 is not base64 text") from wrong
    return (lambda: data), "application/octet-stream"


def file_body(path: str) -> tuple[Make, str]:
    """A file, read as it is sent."""
    try:
        open(path, "rb").close()
    except OSError as wrong:
        raise BadBody(f"the file {path} cannot be read: {wrong.strerror}") from wrong
    return (lambda: open(path, "rb")), "application/octet-stream"


def stored_body(given: Any, open_result: Callable[[Reference], AsyncIterator[bytes]]) -> tuple[Make, str]:
    """A stored payload, streamed as it is read."""
    try:
        reference = given if isinstance(given, Reference) else msgspec.convert(given, Reference)
    except msgspec.ValidationError as wrong:
        raise BadBody(f"body_ref is not a reference: {wrong}") from wrong
    return (lambda: open_result(reference)), reference.meta.content_type


def multipart_body(value: Any, resolve_path: Callable[[str], str]) -> Make:
    """A mapping of fields; one that is a mapping itself is a file (`filename`, `content|base64|path`)."""
    import aiohttp

    if not isinstance(value, Mapping):
        raise BadBody("multipart is a mapping of field names to values or files")
    for name, part in value.items():
        for each in part if isinstance(part, list) else [part]:
            _part(str(name), each, resolve_path)  # complain before anything is sent

    def make() -> Any:
        form = aiohttp.FormData(default_to_multipart=True, quote_fields=False)  # names in UTF-8, as browsers send them
        for name, part in value.items():
            for each in part if isinstance(part, list) else [part]:
                content, options = _part(str(name), each, resolve_path)
                form.add_field(str(name), content() if callable(content) else content, **options)
        return form

    return make


def _part(name: str, part: Any, resolve_path: Callable[[str], str]) -> tuple[Any, dict[str, Any]]:
    if not isinstance(part, Mapping):
        return text_of(part), {}
    options = {key: str(part[key]) for key in ("filename", "content_type") if part.get(key)}
    if "path" in part:
        path = resolve_path(str(part["path"]))
        make, _ = file_body(path)
        return make, {"filename": path.rpartition("/")[2], **options}
    if "base64" in part:
        return base64_body(part["base64"])[0](), {"filename": name, **options}
    if "content" not in part:
        raise BadBody(f'the multipart field "{name}" is a file without content: give `content`, `base64` or `path`')
    content = part["content"]
    if not isinstance(content, str | bytes):
        options.setdefault("content_type", "application/json")
    data = raw_body(content)[0]()
    return data, {"filename": name, **options}


def pairs(value: Any) -> list[tuple[str, str]]:
    """Query or form parameters: nulls are left out, lists are repeated."""
    items: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
    found = []
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadBody("parameters are a mapping, or a list of [name, value]")
        name, given = item
        each = given if isinstance(given, list | tuple) else [given]
        found += [(str(name), text_of(one)) for one in each if one is not None]
    return found


def text_of(value: Any) -> str:
    """A parameter as text: booleans as JSON has them, mappings and lists as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return msgspec.json.encode(value).decode()
    return str(value)


# ── receiving ───────────────────────────────────────────────────────────────────────────


@lru_cache(1024)
def split_type(header: str | None) -> tuple[str, str | None]:
    """The media type in lower case, and the charset."""
    media, *options = (header or "").split(";")
    charset = None
    for option in options:
        name, _, value = option.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'") or None
    return media.strip().lower(), charset


def is_json(media: str) -> bool:
    """Whether a media type is JSON."""
    return media.endswith(("/json", "+json"))


def parsed(body: bytes, header: str | None, wish: str = "auto") -> tuple[Any, dict[str, Any]]:
    """Data and what to say about it in `meta`; ValueError when it is not what it claims to be."""
    media, charset = split_type(header)
    meta: dict[str, Any] = {"content_type": header or None, "bytes": len(body)}
    if wish == "none":
        return None, meta
    if wish == "bytes":
        return _binary(body, meta)
    if wish == "text":
        return decoded(body, charset), meta
    if not body.strip() and (not body or wish == "json" or is_json(media)):
        return None, meta
    if wish == "json" or is_json(media):
        return _json(body, charset), meta
    if media in _LINES:
        lines = decoded(body, charset).splitlines()
        return [_json_of(line.encode()) for line in lines if line.strip()], meta
    if media == FORM:
        return _form(decoded(body, charset)), meta
    if media.startswith("text/") or any(media.endswith(("/" + kind, "+" + kind)) for kind in _TEXTS):
        return decoded(body, charset), meta
    if media in ("", "application/octet-stream", "binary/octet-stream") and not header:
        return _guessed(body, meta)
    return _binary(body, meta)


def decoded(body: bytes, charset: str | None) -> str:
    """Text in its declared charset, else UTF-8, else what any bytes can be read as."""
    for name in (charset, "utf-8-sig"):
        if name:
            try:
                return body.decode("utf-8-sig" if name.lower() in ("utf-8", "utf8") else name)
            except (UnicodeDecodeError, LookupError):
                continue
    return body.decode("cp1252", "replace")


def _json(body: bytes, charset: str | None) -> Any:
    unicode = not charset or charset.lower() in ("utf-8", "utf8", "us-ascii")
    if unicode and body[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return _json_of(body.removeprefix(b"\xef\xbb\xbf"))
    text = body.decode("utf-16") if body[:2] in (b"\xff\xfe", b"\xfe\xff") else decoded(body, charset)
    return _json_of(text.encode())


def _json_of(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValueError(str(wrong) or "it is nested too deeply") from wrong


def _form(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(text.strip(), keep_blank_values=True):
        known = fields.get(name)
        fields[name] = value if known is None else [*(known if isinstance(known, list) else [known]), value]
    return fields


def _guessed(body: bytes, meta: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Nobody said what it is: JSON when it looks like it and is, else text, else binary."""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return _json_of(body), meta
        except ValueError:
            return decoded(body, None), meta
    try:
        return body.decode(), meta
    except UnicodeDecodeError:
        return _binary(body, meta)


def _binary(body: bytes, meta: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return base64.b64encode(body).decode(), {**meta, "encoding": "base64"}
