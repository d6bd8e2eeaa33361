"""Locator of a payload that was stored outside the log."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

ReferenceType = Literal["relational", "nats", "object_store", "blob"]


class ReferenceMeta(Struct, frozen=True, omit_defaults=True):
    """What is known of a stored payload without reading it."""

    content_type: str
    bytes: int
    sha256: str
    ttl: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    compression: str | None = None


class Reference(Struct, frozen=True, omit_defaults=True):
    """Where a payload is, which protocol fetches it, and how to know that it is intact."""

    type: ReferenceType
    locator: dict[str, Any]
    meta: ReferenceMeta
    auth_reference: str | None = None
