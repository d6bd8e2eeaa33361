"""Shared code of the kinds that read and write payloads: error mapping, content to upload, parts to read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import DecodeError

from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.tool import ToolCall
from noetl.data.content import blocks_of, check_format, file_blocks, reference_in
from noetl.data.payload_reader import Part, PartNotFound, TooLarge
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable


def explain(failure: Exception, what: str) -> ErrorInfo | None:
    """The error for an exception of a payload, a credential or a decoder; None for other exceptions."""
    if isinstance(failure, PayloadUnavailable | StoreUnavailable | SecretUnavailable):
        return error_info(failure.kind, str(failure))
    if isinstance(failure, TooLarge):
        return error_info("limit", str(failure))
    if isinstance(failure, PartNotFound):
        return error_info("not_found", str(failure.args[0]))
    if isinstance(failure, DecodeError | UnicodeDecodeError):
        return error_info("parse", f"{what}: the content does not match its format: {failure}")
    return None


def upload_blocks(call: ToolCall, key: str, format: str, encode: Callable[[Any], bytes]) -> tuple[Any, str | None]:
    """The content to put, in blocks: a stored result (`ref` or `data`), `data`, or a local `file`; its content type."""
    data, file = call.input.get("data"), call.input.get("file")
    reference = reference_in(call.input.get("ref")) or reference_in(data)
    if reference is not None:
        check_format(reference, format, key)
        return call.host.open_result(reference), reference.meta.content_type
    if data is not None:
        return blocks_of(encode(data)), None
    if file:
        path = call.host.resolve_path(str(file))
        if not Path(path).exists():
            raise FileNotFoundError(errno.ENOENT, f"the file {file} was not found")
        return file_blocks(path), None
    raise ValueError("nothing to put: set `data`, `file` or `ref`")


def read_part_fields(fields: Mapping[str, Any]) -> Part:
    """The part of a payload that `select`, `limit` and `offset` describe."""
    select = fields.get("select")
    if select is not None and not isinstance(select, str | list | tuple):
        raise ValueError("`select` must be a dotted path or a list of columns")
    return Part(select or None, read_count(fields, "limit"), read_count(fields, "offset") or 0)


def read_count(fields: Mapping[str, Any], name: str) -> int | None:
    """A number of rows or keys; None if it is not set."""
    value = fields.get(name)
    if value in (None, ""):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ValueError(f"`{name}` must be a number that is 0 or greater, not {value!r}")
    return number
