"""The ports of credentials and the keychain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from noetl.core.model.playbook import KeychainEntry


class CredentialStore(Protocol):
    """The encrypted credentials of an installation; values are write-only over the API."""

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Encrypt and store a credential."""

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """The decrypted fields of a credential; None if it does not exist."""

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""

    async def delete(self, name: str) -> bool:
        """Delete it; False if it does not exist."""


class Keychain(Protocol):
    """The values of keychain entries.

    A value is text (a single value or a token) or a mapping of fields. `resolve` renews expired tokens,
    so callers resolve a value when they need it and do not store it beyond a run."""

    async def resolve(
        self,
        entries: Sequence[KeychainEntry],
        names: Sequence[str],
        *,
        workload: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> dict[str, Any]:
        """The values of these names: declared entries, else stored credentials.

        `file` is the file of the playbook; its folder is the base of relative paths.
        SecretUnavailable lists every name without a value, and the reasons."""

    async def close(self) -> None:
        """Close the keychain."""
