"""What a running tool may ask of its worker (`model.tool.Host`): one object per call.

Nothing a tool says leaves here unmasked. Logs and progress go to the worker's `Watcher`, which
a process sets to whatever shows them to people.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from noetl.core.model.reference import Reference
from noetl.core.model.tool import Timeout
from noetl.errors import SecretUnavailable, StoreUnavailable
from noetl.runtime.masking import Masker
from noetl.runtime.network_policy import AddressPolicy
from noetl.storage.ports.results import ResultStore
from noetl.worker.cache import Secrets

LONGEST_LINE = 16 * 1024
LONGEST_SOURCE = 16 << 20
SOURCE_SECONDS = 30.0

_log = logging.getLogger("noetl.task")


class TaskLine(Struct, frozen=True):
    """A line of a tool's own output."""

    execution_id: str
    step: str
    task: str
    task_run_id: str
    stream: str
    line: str


class TaskCounts(Struct, frozen=True):
    """How far a task says it is."""

    execution_id: str
    step: str
    task: str
    task_run_id: str
    counts: dict[str, float]


class Watcher:
    """Where lines and counts go: to Python's logging, unless a process wants them elsewhere."""

    def line(self, line: TaskLine) -> None:
        """A line of a tool's own output, masked."""
        ids = {"execution_id": line.execution_id, "step": line.step, "task": line.task, "stream": line.stream}
        ids["run_id"] = line.task_run_id.rsplit(":", 3)[0]  # before task, visit and attempt
        _log.info("%s %s: %s", line.task_run_id, line.stream, line.line, extra=ids)

    def counts(self, counts: TaskCounts) -> None:
        """How far a task is."""


class Surroundings(Struct, frozen=True):
    """What all tool calls of a worker have around them."""

    results: ResultStore
    policy: AddressPolicy
    watcher: Watcher


class TaskHost:
    """The worker's side of one tool call."""

    __slots__ = ("_around", "_counted", "_facts", "_file", "_secrets")

    def __init__(
        self,
        facts: tuple[str, str, str, str],  # execution id, step, task, task run id
        file: str,
        secrets: Secrets,
        around: Surroundings,
        counted: Callable[[dict[str, float]], None],
    ) -> None:
        self._facts = facts
        self._file = file
        self._secrets = secrets
        self._around = around
        self._counted = counted

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Keep a line of the tool's own output (masked) for people to read."""
        masked = self._secrets.masker.mask(line)
        if len(masked) > LONGEST_LINE:
            masked = masked[:LONGEST_LINE] + "... (cut)"
        self._around.watcher.line(TaskLine(*self._facts, stream, masked))

    def mask(self, text: str) -> str:
        """The text without secret values."""
        return self._secrets.masker.mask(text)

    def progress(self, **counts: float) -> None:
        """Say how far the work is: rows, bytes, pages."""
        self._around.watcher.counts(TaskCounts(*self._facts, counts))
        self._counted(counts)

    async def credential(self, name: str) -> Mapping[str, Any]:
        """The fields of a keychain entry or stored credential; a one-value entry has the field `value`."""
        name = name.removeprefix("keychain/").removeprefix("keychain.")
        value = (await self._secrets.get([name]))[name]
        return value if isinstance(value, Mapping) else {"value": value}

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Stream a payload into the result store of this run."""
        masker = self._secrets.masker
        execution_id, step, _, task_run = self._facts
        name = f"{execution_id}/{step}/{task_run.partition(':')[2]}"
        return await self._around.results.put(
            name, _masked(masker, chunks, content_type) if masker else chunks, content_type=content_type, rows=rows
        )

    def open_result(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a stored payload."""
        return self._around.results.open(reference, offset=offset, length=length)

    def resolve_path(self, path: str) -> str:
        """A path of the playbook made absolute against the folder it lives in."""
        given = Path(path).expanduser()
        if given.is_absolute():
            return str(given)
        folder = Path(self._file).parent if self._file else Path()
        return str((folder / given).absolute())

    def allows_address(self, address: str) -> bool:
        """Whether the installation's policy lets tools reach this IP address."""
        return self._around.policy.allows(address)

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of `script: {uri}`: beside the playbook, http, or an object store."""
        scheme = urlsplit(uri).scheme.lower()
        kind = str((source or {}).get("type") or (source or {}).get("kind") or "").lower()
        if scheme in ("http", "https") or kind in ("http", "https"):
            return await self._over_http(uri, source or {})
        if scheme in ("", "file") or (len(scheme) == 1 and os.sep == "\\"):
            return self._beside(uri.removeprefix("file://"))
        return await self._from_objects(uri, source or {})

    def _beside(self, path: str) -> bytes:
        found = Path(self.resolve_path(path))
        if found.stat().st_size > LONGEST_SOURCE:
            raise StoreUnavailable(f"{path} is larger than {LONGEST_SOURCE:,} bytes", kind="storage.quota")
        return found.read_bytes()

    async def _over_http(self, uri: str, source: Mapping[str, Any]) -> bytes:
        from noetl.connections.http.client import Request, exchange

        request = Request("GET", uri, headers=await self._headers(source), timeout=Timeout(total=SOURCE_SECONDS))
        async with exchange(request, self.allows_address) as answer:
            if answer.status >= 300:
                raise StoreUnavailable(f"{uri} answered {answer.status}", kind="not_found")
            size = 0
            chunks: list[bytes] = []
            async for chunk in answer.chunks():
                size += len(chunk)
                if size > LONGEST_SOURCE:
                    raise StoreUnavailable(f"{uri} is larger than {LONGEST_SOURCE:,} bytes", kind="storage.quota")
                chunks.append(chunk)
            return b"".join(chunks)

    async def _headers(self, source: Mapping[str, Any]) -> dict[str, str]:
        headers = {str(name): str(value) for name, value in dict(source.get("headers") or {}).items()}
        auth = source.get("auth") or source.get("credential")
        if auth:
            fields = await self.credential(str(auth))
            token = fields.get("token") or fields.get("access_token") or fields.get("value")
            if not token:
                raise SecretUnavailable({str(auth): "it has no token to fetch a source with"})
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _from_objects(self, uri: str, source: Mapping[str, Any]) -> bytes:
        from noetl.connections.objects import download, parse_location, shared_store, to_error_info

        auth = source.get("auth") or source.get("credential")
        fields = await self.credential(str(auth)) if auth else {}
        try:
            place = parse_location(uri)
            content = b"".join([part async for part in download(shared_store(place, fields), place.key)])
        except Exception as failure:  # noqa: BLE001 - the driver's exceptions have no common base; all are told
            told = to_error_info(failure, uri)
            raise StoreUnavailable(told.message, kind=told.kind) from None
        if len(content) > LONGEST_SOURCE:
            raise StoreUnavailable(f"{uri} is larger than {LONGEST_SOURCE:,} bytes", kind="storage.quota")
        return content


def _masked(masker: Masker, chunks: AsyncIterator[bytes], content_type: str) -> AsyncIterator[bytes]:
    """A payload without secrets; where offsets count, they are written over and nothing moves."""
    text = content_type.startswith("text/") or any(word in content_type for word in ("json", "xml", "yaml", "csv"))
    return masker.mask_chunks(chunks, same_length=not text)
