"""References: locators of payloads in a result store."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

ReferenceType = Literal["relational", "nats", "object_store", "blob"]


class ReferenceMeta(Struct, frozen=True, omit_defaults=True):
    """The metadata of a stored payload."""

    content_type: str
    bytes: int
    sha256: str
    ttl: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    compression: str | None = None


class Reference(Struct, frozen=True, omit_defaults=True):
    """The location of a payload, the protocol that fetches it, and the checksum that verifies it."""

    type: ReferenceType
    locator: dict[str, Any]
    meta: ReferenceMeta
    auth_reference: str | None = None
