"""The ports of credentials and the keychain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from noetl.core.model.playbook import KeychainEntry


class CredentialStore(Protocol):
    """This installation's encrypted credentials; values are write-only over the API."""

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep (encrypted)."""

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Fields of a credential, decrypted, for the worker that needs it."""

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""

    async def delete(self, name: str) -> bool:
        """Forget it; False when there was none."""


class Keychain(Protocol):
    """Values of a playbook's keychain entries, from wherever each kind keeps them.

    A value is text (one-value entries, tokens) or a mapping of fields. Tokens that expire are renewed
    by this port when they are asked for, so ask when a value is needed and keep it no longer than a run."""

    async def resolve(
        self,
        entries: Sequence[KeychainEntry],
        names: Sequence[str],
        *,
        workload: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> dict[str, Any]:
        """The values of these names: declared entries, else stored credentials.

        `file` is the playbook's: relative paths of entries start from its folder.
        SecretUnavailable names every one that cannot be had, and why."""

    async def close(self) -> None:
        """Let go."""
