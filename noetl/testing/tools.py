"""Runs one tool without an engine; public as `noetl.testing.run_tool`, `tool_call` and `ToolHost`.

`ToolHost` replaces the worker. It supplies credentials and records log lines, progress and stored results.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import Timeout, ToolCall
from noetl.errors import PayloadUnavailable, SecretUnavailable
from noetl.runtime.masking import Masker
from noetl.runtime.resources import close_loop_resources
from noetl.tools.registry import load


class ToolHost:
    """A host in memory: given credentials, recorded log lines (`lines`), progress (`counts`) and `results`."""

    def __init__(
        self,
        *,
        credentials: Mapping[str, Any] | None = None,
        folder: str | Path = ".",
        denied: tuple[str, ...] = (),
    ) -> None:
        self.credentials = dict(credentials or {})
        self.folder = Path(folder)
        self.denied = denied  # addresses that the policy forbids
        self.lines: list[tuple[str, str]] = []
        self.counts: list[dict[str, float]] = []
        self.results: dict[str, bytes] = {}

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Record the line."""
        self.lines.append((stream, line))

    def mask(self, text: str) -> str:
        """The text without the given credentials."""
        for value in self.credentials.values():
            for secret in value.values() if isinstance(value, Mapping) else (value,):
                text = text.replace(secret, "***") if isinstance(secret, str) and secret else text
        return text

    def secrets_in(self, text: str) -> list[str]:
        """The given credentials that occur in a text."""
        return Masker(self.credentials.values()).found_in(text)

    def progress(self, **counts: float) -> None:
        """Record the counts."""
        self.counts.append(counts)

    async def credential(self, name: str) -> Mapping[str, Any]:
        """A given credential; a one-value entry has the field `value`."""
        if name not in self.credentials:
            raise SecretUnavailable({name: "no such credential"})
        value = self.credentials[name]
        return value if isinstance(value, Mapping) else {"value": value}

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Store the payload in memory."""
        payload = b"".join([chunk async for chunk in chunks])
        digest = hashlib.sha256(payload).hexdigest()
        self.results[digest] = payload
        meta = ReferenceMeta(content_type=content_type, bytes=len(payload), sha256=digest, rows=rows)
        return Reference(type="blob", locator={"name": digest}, meta=meta)

    async def open_result(
        self, reference: Reference, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        """A stored payload."""
        name = reference.locator["name"]
        if name not in self.results:
            raise PayloadUnavailable(f"no stored payload {name}")
        end = None if length is None else offset + length
        yield self.results[name][offset:end]

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of a file in the folder."""
        return (self.folder / uri.removeprefix("file://")).read_bytes()

    def log_full(self) -> bool:
        """False: lines are never delayed."""
        return False

    async def log_room(self) -> None:
        """Return at once."""

    def resolve_path(self, path: str) -> str:
        """A path in the folder."""
        return str((self.folder / path).resolve())

    def allows_address(self, address: str) -> bool:
        """Whether the address is not denied."""
        return address not in self.denied

    def address_check(self, *places: Any) -> Callable[[str], bool] | None:
        """`allows_address` if addresses are denied."""
        return self.allows_address if self.denied else None


def tool_call(
    kind: str,
    input: Mapping[str, Any],
    *,
    spec: Mapping[str, Any] | None = None,
    host: Any = None,
    timeout: Timeout | float | None = None,
    attempt: int = 1,
    execution_id: str = "1",
    **others: Any,
) -> ToolCall:
    """The call that a worker makes for task `t` in step `s`."""
    task_run = f"{execution_id}:s:1:t:1:{attempt}"
    return ToolCall(
        kind=kind,
        input=dict(input),
        spec=dict(spec or {}),
        host=host or ToolHost(),
        execution_id=execution_id,
        step="s",
        task="t",
        task_run_id=task_run,
        attempt=attempt,
        timeout=timeout if isinstance(timeout, Timeout) else Timeout(total=timeout),
        **others,
    )


def run_tool(kind: str, input: Mapping[str, Any] | None = None, **others: Any) -> Outcome:
    """Run a tool once in its own event loop and close the resources that it has opened."""

    async def once() -> Outcome:
        try:
            return await load(kind)(tool_call(kind, input or {}, **others))
        finally:
            await close_loop_resources()

    return asyncio.run(once())
