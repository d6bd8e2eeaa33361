"""The result store port: payloads too large for the event log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from noetl.core.model.reference import Reference


class ResultStore(Protocol):
    """Payloads too large for the log, streamed both ways and verified by checksum."""

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        rows: int | None = None,
        columns: Sequence[str] | None = None,
        ttl: str | None = None,
    ) -> Reference:
        """Store; the reference is returned after the payload is durable."""

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream it back; PayloadUnavailable when it is missing or corrupt."""

    async def delete(self, reference: Reference) -> None:
        """Forget it."""

    async def collect(self, now: float) -> int:
        """Delete what has outlived its ttl; how many."""

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete what these executions stored without a ttl; how many."""

    async def close(self) -> None:
        """Let go."""


@runtime_checkable
class ResultStores(Protocol):
    """Several stores behind one: where a playbook's wish (`output: {store: {kind}}`) is granted."""

    def of(self, kind: str | None) -> ResultStore:
        """The store of that kind; RequestRefused when this installation has none."""
