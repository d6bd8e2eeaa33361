"""`script: {uri, source}`: code that a task loads from a file, from a URL, from an object store, or from its own text.

`source.type` is `file`, `http`, `gcs`, `s3` or `inline`; without it the scheme of `uri` decides. An `http` source may
have the address in `endpoint`, an object store the `bucket`; `inline` has the text itself in `code`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from noetl.core.model.tool import ToolCall
from noetl.errors import NoetlError
from noetl.tools._common.script_fields import SOURCE_TYPES

_TEXT_KEYS = ("code", "content", "text", "script")
_BUCKETS = {"gcs": "gs", "gs": "gs", "s3": "s3"}


class ScriptUnavailable(NoetlError):
    """A script cannot be read; `kind` is the kind of the task's error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def read_script(call: ToolCall, script: Mapping[str, Any]) -> str:
    """The text of a script."""
    source = script.get("source")
    if isinstance(source, str):
        source = {"type": source}
    source = source if isinstance(source, Mapping) else {}
    kind = str(source.get("type") or source.get("kind") or "").lower()
    if kind == "inline":
        return _inline(script, source)
    try:
        uri = _address(str(script.get("uri") or ""), kind, source)
        urlsplit(uri)
    except ValueError as wrong:
        raise ScriptUnavailable("schema", f"script: the address is not valid: {wrong}") from None
    try:
        return (await call.host.fetch_source(uri, source=source)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScriptUnavailable("parse", f"script {uri} is not valid UTF-8") from None
    except OSError as failure:
        raise ScriptUnavailable("not_found", f"cannot read script {uri}: {failure.strerror or failure}") from None


def _inline(script: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    found = [holder[key] for holder in (source, script) for key in _TEXT_KEYS if isinstance(holder.get(key), str)]
    if not found:
        raise ScriptUnavailable("schema", "script: a source of type `inline` requires its text in `code`")
    return str(found[0])


def _address(uri: str, kind: str, source: Mapping[str, Any]) -> str:
    """The address of a script: a path, or a URL with its scheme."""
    if kind not in ("", "https", "gs", *SOURCE_TYPES):
        known = ", ".join(SOURCE_TYPES)
        raise ScriptUnavailable("schema", f"script: unknown source type `{kind}`; the types are {known}")
    uri = uri or str(source.get("uri") or source.get("path") or "")
    endpoint = source.get("endpoint") or source.get("url")
    if kind in ("http", "https") and endpoint and urlsplit(uri).scheme not in ("http", "https"):
        base = str(endpoint)
        return urljoin(f"{base.rstrip('/')}/", uri.lstrip("/")) if uri else base
    if not uri:
        raise ScriptUnavailable("schema", "script requires `uri`: the file, URL or object with the code")
    if kind in _BUCKETS and "://" not in uri:
        bucket = source.get("bucket")
        if not bucket:
            message = f"script {uri}: a source of type `{kind}` requires `bucket`, or a full URI"
            raise ScriptUnavailable("schema", message)
        return f"{_BUCKETS[kind]}://{bucket}/{uri.lstrip('/')}"
    return uri
