"""Encodes request bodies and decodes response bodies.

Requests: JSON, forms, multipart, text, a file, a stored payload. Responses are decoded by content type: text in its
charset, binary as a base64 string (then `meta.encoding` is `base64`).
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
_TEXT_TYPES = ("xml", "javascript", "ecmascript", "yaml", "toml", "csv", "graphql", "sql", "x-sh")
_JSON_LINES_TYPES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"}
)


class BadBody(ValueError):
    """A body that cannot be sent; the message has the reason."""


# ── requests ────────────────────────────────────────────────────────────────────────────

BodyFactory = Callable[[], Any]


def json_body(value: Any) -> tuple[BodyFactory, str]:
    """The value as JSON."""
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise BadBody(f"the body cannot be encoded as JSON: {wrong}") from wrong
    return (lambda: data), "application/json"


def form_body(value: Any) -> tuple[BodyFactory, str]:
    """A mapping (or string) as a URL-encoded form."""
    if isinstance(value, str):
        return raw_body(value)[0], FORM
    if not isinstance(value, Mapping):
        raise BadBody("`form` must be a mapping of names to values")
    data = urlencode(pairs(value)).encode()
    return (lambda: data), FORM


def raw_body(value: Any) -> tuple[BodyFactory, str]:
    """A string or bytes unchanged; any other value as JSON."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return (lambda: data), "text/plain; charset=utf-8" if isinstance(value, str) else "application/octet-stream"
    return json_body(value)


def base64_body(value: Any) -> tuple[BodyFactory, str]:
    """The bytes of a base64 string."""
    try:
        data = base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise BadBody("body_base64 is not valid base64") from wrong
    return (lambda: data), "application/octet-stream"


def file_body(path: str) -> tuple[BodyFactory, str]:
    """A file, streamed."""
    try:
        open(path, "rb").close()
    except OSError as wrong:
        raise BadBody(f"cannot read file {path}: {wrong.strerror}") from wrong
    return (lambda: open(path, "rb")), "application/octet-stream"


def stored_body(given: Any, open_result: Callable[[Reference], AsyncIterator[bytes]]) -> tuple[BodyFactory, str]:
    """A stored payload, streamed."""
    try:
        reference = given if isinstance(given, Reference) else msgspec.convert(given, Reference)
    except msgspec.ValidationError as wrong:
        raise BadBody(f"body_ref is not a reference: {wrong}") from wrong
    return (lambda: open_result(reference)), reference.meta.content_type


def multipart_body(value: Any, resolve_path: Callable[[str], str]) -> BodyFactory:
    """A mapping of fields; a field that is a mapping is a file (`filename`, `content|base64|path`)."""
    import aiohttp

    if not isinstance(value, Mapping):
        raise BadBody("`multipart` must be a mapping of field names to values or files")
    for name, part in value.items():
        for each in part if isinstance(part, list) else [part]:
            _part(str(name), each, resolve_path)  # validate before anything is sent

    def create() -> Any:
        form = aiohttp.FormData(default_to_multipart=True, quote_fields=False)  # names in UTF-8, as browsers send them
        for name, part in value.items():
            for each in part if isinstance(part, list) else [part]:
                content, options = _part(str(name), each, resolve_path)
                form.add_field(str(name), content() if callable(content) else content, **options)
        return form

    return create


def _part(name: str, part: Any, resolve_path: Callable[[str], str]) -> tuple[Any, dict[str, Any]]:
    if not isinstance(part, Mapping):
        return text_of(part), {}
    options = {key: str(part[key]) for key in ("filename", "content_type") if part.get(key)}
    if "path" in part:
        path = resolve_path(str(part["path"]))
        create, _ = file_body(path)
        return create, {"filename": path.rpartition("/")[2], **options}
    if "base64" in part:
        return base64_body(part["base64"])[0](), {"filename": name, **options}
    if "content" not in part:
        raise BadBody(f'the multipart field "{name}" is a file without content: set `content`, `base64` or `path`')
    content = part["content"]
    if not isinstance(content, str | bytes):
        options.setdefault("content_type", "application/json")
    data = raw_body(content)[0]()
    return data, {"filename": name, **options}


def pairs(value: Any) -> list[tuple[str, str]]:
    """Query or form parameters; nulls are omitted, lists are repeated."""
    items: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
    result = []
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadBody("parameters must be a mapping, or a list of [name, value]")
        name, given = item
        values = given if isinstance(given, list | tuple) else [given]
        result += [(str(name), text_of(each)) for each in values if each is not None]
    return result


def text_of(value: Any) -> str:
    """A parameter as a string; booleans, mappings and lists as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return msgspec.json.encode(value).decode()
    return str(value)


# ── responses ───────────────────────────────────────────────────────────────────────────


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


def parse(body: bytes, header: str | None, mode: str = "auto") -> tuple[Any, dict[str, Any]]:
    """The data and its `meta`; ValueError if the body does not match its content type."""
    media, charset = split_type(header)
    meta: dict[str, Any] = {"content_type": header or None, "bytes": len(body)}
    if mode == "none":
        return None, meta
    if mode == "bytes":
        return _binary(body, meta)
    if mode == "text":
        return decode_text(body, charset), meta
    if not body.strip() and (not body or mode == "json" or is_json(media)):
        return None, meta
    if mode == "json" or is_json(media):
        return _parse_json(body, charset), meta
    if media in _JSON_LINES_TYPES:
        lines = decode_text(body, charset).splitlines()
        return [_decode_json(line.encode()) for line in lines if line.strip()], meta
    if media == FORM:
        return _parse_form(decode_text(body, charset)), meta
    if media.startswith("text/") or any(media.endswith(("/" + kind, "+" + kind)) for kind in _TEXT_TYPES):
        return decode_text(body, charset), meta
    if media in ("", "application/octet-stream", "binary/octet-stream") and not header:
        return _detect(body, meta)
    return _binary(body, meta)


def decode_text(body: bytes, charset: str | None) -> str:
    """Decode with the declared charset, else UTF-8, else cp1252, which accepts any bytes."""
    for name in (charset, "utf-8-sig"):
        if name:
            try:
                return body.decode("utf-8-sig" if name.lower() in ("utf-8", "utf8") else name)
            except (UnicodeDecodeError, LookupError):
                continue
    return body.decode("cp1252", "replace")


def _parse_json(body: bytes, charset: str | None) -> Any:
    unicode = not charset or charset.lower() in ("utf-8", "utf8", "us-ascii")
    if unicode and body[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return _decode_json(body.removeprefix(b"\xef\xbb\xbf"))
    text = body.decode("utf-16") if body[:2] in (b"\xff\xfe", b"\xfe\xff") else decode_text(body, charset)
    return _decode_json(text.encode())


def _decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValueError(str(wrong) or "nested too deeply") from wrong


def _parse_form(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(text.strip(), keep_blank_values=True):
        before = fields.get(name)
        fields[name] = value if before is None else [*(before if isinstance(before, list) else [before]), value]
    return fields


def _detect(body: bytes, meta: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Decode a body without content type: as JSON if it is valid JSON, else as text, else as binary."""
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return _decode_json(body), meta
        except ValueError:
            return decode_text(body, None), meta
    try:
        return body.decode(), meta
    except UnicodeDecodeError:
        return _binary(body, meta)


def _binary(body: bytes, meta: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return base64.b64encode(body).decode(), {**meta, "encoding": "base64"}
