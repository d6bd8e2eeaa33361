"""The interface of a worker to a running tool (`core.model.tool.Host`): one object per call.

All text of a tool is masked here. Log lines and progress go to the worker's `TaskObserver`, which a process sets.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from noetl.core.model.reference import Reference
from noetl.core.model.tool import Timeout
from noetl.errors import SecretUnavailable, StoreUnavailable
from noetl.runtime.masking import Masker
from noetl.runtime.network_policy import AddressPolicy
from noetl.storage.ports.results import ResultStore
from noetl.worker.bundles import BundleFolders
from noetl.worker.cache import Secrets

MAX_LINE = 16 * 1024
LONG_LINE = 32 * 1024  # characters; tools cut lines at 64 KiB
MAX_SOURCE = 16 << 20
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
    """Progress of a task."""

    execution_id: str
    step: str
    task: str
    task_run_id: str
    counts: dict[str, float]


class TaskObserver:
    """Receives output lines and progress of tasks; writes lines to Python's logging unless overridden."""

    def line(self, line: TaskLine) -> None:
        """A masked output line."""
        ids = {"execution_id": line.execution_id, "step": line.step, "task": line.task, "stream": line.stream}
        ids["run_id"] = line.task_run_id.rsplit(":", 3)[0]  # without task, visit and attempt
        _log.info("%s %s: %s", line.task_run_id, line.stream, line.line, extra=ids)

    def counts(self, counts: TaskCounts) -> None:
        """Progress of a task."""

    @property
    def full(self) -> bool:
        """Whether lines arrive faster than they can be processed."""
        return False

    async def wait_for_room(self) -> None:
        """Wait until that is no longer so, for a limited time."""

    async def close(self) -> None:
        """Process what has arrived; called when the worker stops."""


class HostServices(Struct, frozen=True):
    """What all tool calls of a worker share."""

    results: ResultStore
    policy: AddressPolicy = AddressPolicy()
    observer: TaskObserver = TaskObserver()
    record_inputs: bool = True  # in the events of tasks
    bundles: BundleFolders = field(default_factory=BundleFolders)


@lru_cache(maxsize=1000)  # every call of a python task asks for it
def _folder_of(file: str) -> str:
    return str(Path(file).parent.absolute())


class TaskHost(Struct, eq=False):
    """The `Host` of one tool call."""

    _ids: tuple[str, str, str, str]  # execution id, step, task, task run id
    _file: str
    _secrets: Secrets
    _services: HostServices
    _on_progress: Callable[[dict[str, float]], None]

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Pass a line of the tool's output on, masked."""
        masker = self._secrets.masker
        masked = masker.mask(line)
        if len(line) > LONG_LINE:
            # The tool may have cut it inside of a secret, whose beginning is then at the end of the text.
            masked = masked[: max(0, len(masked) - masker.longest)]
        if len(masked) > MAX_LINE:
            masked = masked[:MAX_LINE] + "... (cut)"
        self._services.observer.line(TaskLine(*self._ids, stream, masked))

    def log_full(self) -> bool:
        """Whether lines are printed faster than they are sent; then wait for `log_room` before the next ones."""
        return self._services.observer.full

    async def log_room(self) -> None:
        """Wait while lines are printed faster than they are sent."""
        await self._services.observer.wait_for_room()

    def mask(self, text: str) -> str:
        """The text with secret values replaced."""
        return self._secrets.masker.mask(text)

    def secrets_in(self, text: str) -> list[str]:
        """The secret values that occur in a text."""
        return self._secrets.masker.found_in(text)

    def progress(self, **counts: float) -> None:
        """Report progress: rows, bytes, pages."""
        self._services.observer.counts(TaskCounts(*self._ids, counts))
        self._on_progress(counts)

    async def credential(self, name: str) -> Mapping[str, Any]:
        """The fields of a keychain entry or stored credential; a one-value entry has the field `value`."""
        name = name.removeprefix("keychain/").removeprefix("keychain.")
        value = (await self._secrets.get([name]))[name]
        return value if isinstance(value, Mapping) else {"value": value}

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Write a stream to the result store."""
        masker = self._secrets.masker
        execution_id, step, _, task_run = self._ids
        name = f"{execution_id}/{step}/{task_run.partition(':')[2]}"
        return await self._services.results.put(
            name, _masked(masker, chunks, content_type) if masker else chunks, content_type=content_type, rows=rows
        )

    def open_result(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Read a stored payload as a stream."""
        return self._services.results.open(reference, offset=offset, length=length)

    def resolve_path(self, path: str) -> str:
        """The absolute path; relative paths start at the playbook's folder."""
        if path == ".":
            return _folder_of(self._file) if self._file else os.getcwd()
        given = Path(path).expanduser()
        if given.is_absolute():
            return str(given)
        folder = Path(self._file).parent if self._file else Path()
        return str((folder / given).absolute())

    def allows_address(self, address: str) -> bool:
        """Whether the network policy allows this IP address."""
        return self._services.policy.allows(address)

    def address_check(self, *places: Any) -> Callable[[str], bool] | None:
        """`allows_address`; None without a policy, and if stored credentials of this execution have these places."""
        if self._services.policy.private or (places and all(map(self._secrets.is_stored, places))):
            return None
        return self.allows_address

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of `script: {uri}`: a file (relative to the playbook, then to the working folder), HTTP, or an
        object store."""
        scheme = urlsplit(uri).scheme.lower()
        kind = str((source or {}).get("type") or (source or {}).get("kind") or "").lower()
        if scheme in ("http", "https") or kind in ("http", "https"):
            return await self._fetch_http(uri, source or {})
        if scheme in ("", "file") or kind == "file" or (len(scheme) == 1 and os.sep == "\\"):
            return self._read_file(uri.removeprefix("file://"))
        return await self._fetch_object(uri, source or {})

    def _read_file(self, path: str) -> bytes:
        found = Path(self.resolve_path(path))
        if not found.exists() and Path(path).exists():
            found = Path(path)  # relative to the working folder
        if found.stat().st_size > MAX_SOURCE:
            raise StoreUnavailable(f"{path} is larger than {MAX_SOURCE:,} bytes", kind="storage.quota")
        return found.read_bytes()

    async def _fetch_http(self, uri: str, source: Mapping[str, Any]) -> bytes:
        from noetl.connections.http.client import Request, exchange

        request = Request("GET", uri, headers=await self._headers(source), timeout=Timeout(total=SOURCE_SECONDS))
        async with exchange(request, self.allows_address) as response:
            if response.status >= 300:
                raise StoreUnavailable(f"{uri}: HTTP status {response.status}", kind="not_found")
            size = 0
            chunks: list[bytes] = []
            async for chunk in response.chunks():
                size += len(chunk)
                if size > MAX_SOURCE:
                    raise StoreUnavailable(f"{uri} is larger than {MAX_SOURCE:,} bytes", kind="storage.quota")
                chunks.append(chunk)
            return b"".join(chunks)

    async def _headers(self, source: Mapping[str, Any]) -> dict[str, str]:
        headers = {str(name): str(value) for name, value in dict(source.get("headers") or {}).items()}
        auth = source.get("auth") or source.get("credential")
        if auth:
            fields = await self.credential(str(auth))
            token = fields.get("token") or fields.get("access_token") or fields.get("value")
            if not token:
                raise SecretUnavailable({str(auth): "the credential has no token field"})
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _fetch_object(self, uri: str, source: Mapping[str, Any]) -> bytes:
        from noetl.connections.objects import (
            checked_store,
            download,
            errors,
            parse_location,
            to_error_info,
        )

        auth = source.get("auth") or source.get("credential")
        fields = await self.credential(str(auth)) if auth else {}
        try:
            place = parse_location(uri)
        except ValueError as wrong:
            raise StoreUnavailable(str(wrong), kind="client_error") from None
        try:
            store = await checked_store(place, fields, self.address_check)
            content = b"".join([part async for part in download(store, place.key)])
        except errors() as failure:
            problem = to_error_info(failure, uri)
            raise StoreUnavailable(problem.message, kind=problem.kind) from None
        if len(content) > MAX_SOURCE:
            raise StoreUnavailable(f"{uri} is larger than {MAX_SOURCE:,} bytes", kind="storage.quota")
        return content


def _masked(masker: Masker, chunks: AsyncIterator[bytes], content_type: str) -> AsyncIterator[bytes]:
    """The payload with secrets masked; binary formats keep their length."""
    text = content_type.startswith("text/") or any(word in content_type for word in ("json", "xml", "yaml", "csv"))
    return masker.mask_chunks(chunks, same_length=not text)
