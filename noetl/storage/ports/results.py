"""The result store port: payloads too large for the event log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from noetl.core.model.reference import Reference


class ResultStore(Protocol):
    """Payloads too large for the event log, streamed in both directions and verified by checksum."""

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
        """Store a payload; returns its reference after the payload is durable."""

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a payload; PayloadUnavailable if it is missing or corrupt."""

    async def delete(self, reference: Reference) -> None:
        """Delete a payload."""

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""

    async def close(self) -> None:
        """Close the store."""


@runtime_checkable
class ResultStores(Protocol):
    """Several result stores, selected by `output: {store: {kind, bucket?}}` of a playbook."""

    def of(self, store: Mapping[str, Any]) -> ResultStore | None:
        """The store that a playbook selects; None if this installation has none of that kind."""
