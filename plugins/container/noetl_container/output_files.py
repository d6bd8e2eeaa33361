"""Files into and out of containers, as tar archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from typing import IO, Any

from noetl.tool import Host, Reference

BLOCK = 256 * 1024


async def contents(files: Mapping[str, bytes | Reference], host: Host) -> dict[str, bytes]:
    """The bytes of the files; references are read from the result store."""
    found = {}
    for path, content in files.items():
        if isinstance(content, Reference):
            content = b"".join([chunk async for chunk in host.open_result(content)])
        found[path] = content
    return found


def archive_of(files: Mapping[str, bytes], user: str | None) -> bytes:
    """A tar archive for the root folder; the files are owned by a user that is given by its number."""
    owner, _, group = (user or "").partition(":")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o644
            entry.uid = int(owner) if owner.isdecimal() else 0
            entry.gid = int(group) if group.isdecimal() else 0
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


async def read_archive(file: IO[bytes], output: str, host: Host, inline_bytes: int) -> dict[str, Any]:
    """The regular files of an archive of `output` (its names begin with the last part of the path): text, or a
    reference for a file that is large or not text. Links are not followed."""
    found: dict[str, Any] = {}
    parent = output.rpartition("/")[0]
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for entry in archive:
            stream = archive.extractfile(entry) if entry.isreg() else None
            if stream is not None:
                path = f"{parent}/{entry.name.removeprefix('./').lstrip('/')}"
                found[path] = await _value(stream, entry.size, host, inline_bytes)
    return found


async def _value(stream: IO[bytes], size: int, host: Host, inline_bytes: int) -> Any:
    if size <= inline_bytes:
        content = stream.read()
        try:
            return content.decode()
        except UnicodeDecodeError:
            return await host.put_result(_blocks(io.BytesIO(content)), content_type="application/octet-stream")
    return await host.put_result(_blocks(stream), content_type="application/octet-stream")


async def _blocks(stream: IO[bytes]) -> AsyncIterator[bytes]:
    while block := stream.read(BLOCK):
        yield block
