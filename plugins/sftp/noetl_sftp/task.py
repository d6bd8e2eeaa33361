"""Performs one action of kind `sftp`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncssh

from noetl.tool import (
    BadAuth,
    Outcome,
    PayloadUnavailable,
    Reference,
    SecretUnavailable,
    ToolCall,
    error,
    ok,
    reference_in,
)
from noetl_sftp.connection import connected, explain

INLINE_BYTES = 1024 * 1024
BLOCK = 256 * 1024
NULLS: dict[str, Any] = {"path": None, "size": None, "modified": None}


class BadInput(ValueError):
    """Invalid fields of a task."""


async def run(call: ToolCall) -> Outcome:
    """Perform the action."""
    action = str(call.input.get("action") or "").lower()
    try:
        perform = _ACTIONS.get(action)
        if perform is None:
            raise BadInput(f"action {action!r} is not one of {', '.join(_ACTIONS)}")
        async with (
            asyncio.timeout(call.timeout.total),
            connected(call.input["auth"], call.host, call.timeout, str(call.input["path"])) as client,
        ):
            outcome: Outcome = await perform(call, client, str(call.input["path"]))
            return outcome
    except (BadInput, BadAuth) as wrong:
        return error("schema", str(wrong))
    except SecretUnavailable as missing:
        return error("auth", str(missing))
    except PayloadUnavailable as missing:
        return error(missing.kind, str(missing))
    except TimeoutError:
        return error("timeout", f"sftp {action}: no answer in time")
    except LocalFile as problem:
        return error(problem.kind, str(problem))
    except Exception as failure:
        info = explain(failure)
        if info is None:
            raise
        return Outcome(status="error", error=info, helpers={"sftp": dict(NULLS)})


class LocalFile(Exception):
    """A local file cannot be read or written."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(f"{problem.filename}: {problem.strerror}")
        self.kind = "not_found" if isinstance(problem, FileNotFoundError) else "storage.access"


async def _get(call: ToolCall, client: Any, path: str) -> Outcome:
    attributes = await client.stat(path)
    if attributes.type == asyncssh.FILEXFER_TYPE_DIRECTORY:  # OpenSSH answers only "Failure"
        raise asyncssh.SFTPFileIsADirectory(f"{path} is a folder; use `action: list`")
    facts = _facts(path, attributes)
    if call.input.get("file"):
        local = Path(call.host.resolve_path(str(call.input["file"])))
        try:
            await asyncio.to_thread(local.parent.mkdir, parents=True, exist_ok=True)
            await _download(client, path, local, call.idempotency_key)
        except asyncssh.Error:
            raise
        except OSError as problem:
            raise LocalFile(problem) from problem
        return ok({"file": str(call.input["file"]), **facts}, sftp=facts)
    if (facts["size"] or 0) > int(call.spec.get("inline_bytes") or INLINE_BYTES):
        reference = await call.host.put_result(_blocks(client, path), content_type=_content_type(path))
        return Outcome(status="ok", ref=reference, helpers={"sftp": facts})
    content = b"".join([block async for block in _blocks(client, path)])
    return ok(_decoded(content, path), sftp=facts)


async def _download(client: Any, path: str, local: Path, key: str) -> None:
    """Download to a temporary name; the file has its name when it is complete."""
    part = local.with_name(temporary(local.name, key))
    try:
        await client.get(path, str(part))
        await asyncio.to_thread(part.replace, local)
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)


async def _put(call: ToolCall, client: Any, path: str) -> Outcome:
    await _write(client, path, _content(call), call.idempotency_key)
    facts = _facts(path, await client.stat(path))
    return ok(facts, sftp=facts)


async def _write(client: Any, path: str, blocks: AsyncIterator[bytes], key: str) -> None:
    part = temporary(path, key)
    try:
        async with client.open(part, "wb") as file:
            async for block in blocks:
                await file.write(block)
        await replace(client, part, path)
    except BaseException:
        await discard(client, part)
        raise


def temporary(path: str, key: str) -> str:
    """The name of a file while it is written: the same in every attempt of a task, another for other tasks."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.{digest}.part")


async def replace(client: Any, part: str, path: str) -> None:
    """Rename a file to a name that may exist."""
    try:
        await client.posix_rename(part, path)
    except asyncssh.SFTPOpUnsupported:  # the server has no atomic rename
        await discard(client, path)
        await client.rename(part, path)


async def discard(client: Any, path: str) -> None:
    """Delete a file if it exists."""
    try:
        await client.remove(path)
    except (asyncssh.SFTPError, asyncssh.ConnectionLost):
        return  # it was not created, or the connection is lost


async def _content(call: ToolCall) -> AsyncIterator[bytes]:
    given = call.input
    reference = reference_in(given.get("ref") if given.get("ref") is not None else given.get("data"))
    if isinstance(reference, Reference):
        async for block in call.host.open_result(reference):
            yield block
    elif given.get("file"):
        try:
            file = await asyncio.to_thread(Path(call.host.resolve_path(str(given["file"]))).open, "rb")
            with file:
                while block := await asyncio.to_thread(file.read, BLOCK):
                    yield block
        except OSError as problem:
            raise LocalFile(problem) from problem
    elif given.get("data") is not None:
        data = given["data"]
        yield (data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)).encode()
    else:
        raise BadInput("put requires `data`, `file` or `ref`")


async def _list(call: ToolCall, client: Any, path: str) -> Outcome:
    found = [_facts(name, attributes) for name, attributes in await matching(client, path)]
    return ok({"files": found, "count": len(found)}, sftp=dict(NULLS))


async def matching(client: Any, path: str) -> list[tuple[str, Any]]:
    """The files that match a pattern, or the files of a folder, with their attributes, by name."""
    pattern = path if any(mark in path for mark in "*?[") else posixpath.join(path, "*")
    try:
        names = await client.glob_sftpname([pattern])
    except asyncssh.SFTPNoSuchFile:
        if pattern != path:
            await client.stat(path)  # a folder that does not exist is an error; an empty one is not
        return []
    found = sorted((_text(each.filename), each.attrs) for each in names)
    # As in a shell, a pattern does not match hidden files: such as those that are being written.
    hidden = pattern != path or posixpath.basename(path).startswith(".")
    return [each for each in found if hidden or not posixpath.basename(each[0]).startswith(".")]


async def _stat(call: ToolCall, client: Any, path: str) -> Outcome:
    facts = _facts(path, await client.stat(path))
    return ok(facts, sftp=facts)


async def _exists(call: ToolCall, client: Any, path: str) -> Outcome:
    return ok(bool(await client.exists(path)), sftp=dict(NULLS))


async def _delete(call: ToolCall, client: Any, path: str) -> Outcome:
    pattern = any(mark in path for mark in "*?[")
    names = [name for name, _ in await matching(client, path)] if pattern else [path]
    for name in names:
        try:
            await client.remove(name)
        except asyncssh.SFTPFailure:
            await _refuse_folder(client, name)
            raise
    return ok({"deleted": names, "count": len(names)}, sftp=dict(NULLS))


async def _move(call: ToolCall, client: Any, path: str) -> Outcome:
    to = str(call.input.get("to") or "")
    if not to:
        raise BadInput("move requires `to`")
    try:
        await replace(client, path, to)
    except asyncssh.SFTPFailure:
        await _refuse_folder(client, to)
        raise
    facts = _facts(to, await client.stat(to))
    return ok(facts, sftp=facts)


async def _refuse_folder(client: Any, path: str) -> None:
    """The reason of what OpenSSH answers only with "Failure"."""
    if await client.isdir(path):
        raise asyncssh.SFTPFileIsADirectory(f"{path} is a folder")


async def _mkdir(call: ToolCall, client: Any, path: str) -> Outcome:
    await client.makedirs(path, exist_ok=True)
    return ok({"path": path}, sftp={**NULLS, "path": path})


_ACTIONS: dict[str, Any] = {
    "get": _get, "put": _put, "list": _list, "stat": _stat, "exists": _exists, "delete": _delete, "move": _move,
    "mkdir": _mkdir,
}  # fmt: skip


async def _blocks(client: Any, path: str) -> AsyncIterator[bytes]:
    async with client.open(path, "rb") as file:
        while block := await file.read(BLOCK):
            yield block


def _facts(path: str, attributes: Any) -> dict[str, Any]:
    modified = None if attributes.mtime is None else datetime.fromtimestamp(attributes.mtime, UTC).isoformat()
    return {"path": path, "size": attributes.size, "modified": modified}


def _decoded(content: bytes, path: str) -> Any:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        import base64

        return base64.b64encode(content).decode()
    if path.endswith(".json"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _content_type(path: str) -> str:
    endings = {".json": "application/json", ".csv": "text/csv", ".txt": "text/plain"}
    return endings.get(posixpath.splitext(path)[1], "application/octet-stream")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
