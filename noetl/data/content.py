"""Content of files, objects and messages: conversion between values of tasks and bytes.

Small content is held in memory; large content is streamed from or into a file or a stored result.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.files.formats import TABULAR, format_of
from noetl.data.files.table_files import encode_value
from noetl.data.values import jsonable
from noetl.errors import PayloadUnavailable

BLOCK = 1 << 20
INLINE_BYTES = 16 * 1024 * 1024
_numbers = itertools.count(1)


def reference_in(value: Any) -> Reference | None:
    """The reference in a value (a reference, or an output that has one); None for plain data."""
    if isinstance(value, Reference):
        return value
    if isinstance(value, Mapping) and "locator" not in value and isinstance(value.get("ref"), Mapping):
        value = value["ref"]
    if not isinstance(value, Mapping) or not {"type", "locator"} <= set(value):
        return None
    try:
        return msgspec.convert(dict(value), Reference)
    except msgspec.ValidationError as wrong:
        raise PayloadUnavailable(f"this reference is incomplete: {wrong}") from None


async def blocks_of(data: bytes) -> AsyncGenerator[bytes, None]:
    """Bytes in blocks."""
    view = memoryview(data)
    for start in range(0, len(view), BLOCK):
        yield bytes(view[start : start + BLOCK])


async def file_blocks(path: str) -> AsyncGenerator[bytes, None]:
    """A file in blocks."""
    file = await asyncio.to_thread(Path(path).open, "rb")
    with file:
        while block := await asyncio.to_thread(file.read, BLOCK):
            yield block


def unfinished(path: Path) -> Path:
    """The temporary path of a file until it is complete; concurrent writers of one file have different ones.

    It removes what processes that were killed have left in the folder. Call it in a thread."""
    _remove_abandoned(path.parent)
    return path.with_name(f"{path.name}.{_HOST}-{os.getpid()}-{next(_numbers)}.unfinished")


_HOST = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
_UNFINISHED = re.compile(r"\.(?:(\w+)-)?(\d+)-\d+\.unfinished$")
_ABANDONED_S = 86_400.0  # after which the file of another host is taken for abandoned
_LOOK_AGAIN_S = 60.0
_looked: dict[str, float] = {}


def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished files whose process does not exist any more; a folder is looked at once a minute."""
    now = time.monotonic()
    if now - _looked.get(str(folder), -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
        return
    if len(_looked) > 1000:
        _looked.clear()
    _looked[str(folder)] = now
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            found = _UNFINISHED.search(entry.name)
            if found is None or not _is_abandoned(found[1], int(found[2]), entry):
                continue
            with suppress(OSError):  # another process may have removed it
                if entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                elif Path(folder, entry.name[: found.start()]).exists():  # otherwise it may be the only copy
                    shutil.rmtree(entry.path)


def _is_abandoned(host: str | None, process: int, entry: os.DirEntry[str]) -> bool:
    if host not in (None, _HOST):
        try:
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S
        except FileNotFoundError:
            return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


async def save(blocks: AsyncIterator[bytes], path: str) -> int:
    """Write blocks to a file, which appears when it is complete; return the number of bytes."""
    target = Path(path)
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    aside = await asyncio.to_thread(unfinished, target)
    size = 0
    try:
        file = await asyncio.to_thread(aside.open, "wb")
        with file:
            async for block in blocks:
                size += await asyncio.to_thread(file.write, block)
        await asyncio.to_thread(aside.replace, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return size


async def kept_or_stored(
    call: ToolCall, blocks: AsyncIterator[bytes], content_type: str, *, inline: int = INLINE_BYTES
) -> bytes | Reference:
    """Content in memory if it is small, else in the result store."""
    held = bytearray()
    async for block in blocks:
        held += block
        if len(held) > inline:
            break
    else:
        return bytes(held)

    async def rest() -> AsyncGenerator[bytes, None]:
        yield bytes(held)
        async for block in blocks:
            yield block

    return await call.host.put_result(rest(), content_type=content_type)


def message_bytes(value: Any) -> bytes:
    """A value as a message: text and bytes unchanged, structures as JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else msgspec.json.encode(jsonable(value))


def message_value(data: bytes) -> Any:
    """A message as data: JSON if it is JSON, else text, else base64 of its bytes."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def encoded(data: Any, format: str, key: str) -> bytes:
    """A value as the bytes of a file or object of this name."""
    if format == "bytes" and isinstance(data, str):
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(
                "format bytes needs base64 text, and this is not; for plain text use format: text"
            ) from None
    options = {"delimiter": "\t"} if key.lower().endswith(".tsv") else {}
    return encode_value(data, format, **options)


def check_format(reference: Reference, format: str, key: str) -> None:
    """Raise ValueError if a stored result would be written under the name of another format."""
    stored = format_of(content_type=reference.meta.content_type)
    documents = ("json", *TABULAR)
    if stored in documents and format in documents and stored != format:
        way = "kind: transfer writes it as another, or leave `format` and the ending out"
        raise ValueError(f"the stored result is {stored}, and {key} would be {format}: {way}")


def natural_format(data: Any) -> str:
    """The default format of a value."""
    if isinstance(data, str):
        return "text"
    return "bytes" if isinstance(data, bytes | bytearray) else "json"
