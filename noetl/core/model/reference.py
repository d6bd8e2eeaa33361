"""References: locators of payloads in a result store."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, to_builtins

ReferenceType = Literal["relational", "nats", "object_store", "blob"]

# Values of `store: {kind}` in playbooks, and the types of store that they mean.
STORE_KINDS: dict[str, ReferenceType] = {
    "blob": "blob", "disk": "blob", "local": "blob", "file": "blob",
    "relational": "relational", "postgres": "relational", "postgresql": "relational", "sqlite": "relational",
    "db": "relational", "database": "relational",
    "object_store": "object_store", "object": "object_store", "s3": "object_store", "gcs": "object_store",
    "gs": "object_store", "azure": "object_store", "az": "object_store",
    "nats": "nats", "nats_object": "nats", "nats_objects": "nats", "nats_kv": "nats", "kv": "nats",
}  # fmt: skip
# Values of `store: {kind}` that mean: inline, and the default store when it is large.
INLINE_STORES = frozenset({"auto", "default", "inline", "event", "events", "eventlog", "memory", ""})


class ReferenceMeta(Struct, frozen=True, omit_defaults=True):
    """The metadata of a stored payload."""

    content_type: str
    bytes: int
    sha256: str
    ttl: str | None = None
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    compression: str | None = None
    schema: dict[str, Any] | None = None  # that the payload was checked against: name, version, digest
    types: tuple[str, ...] | None = None  # of the columns of an Arrow or Parquet payload


class Reference(Struct, frozen=True, omit_defaults=True):
    """The location of a payload, the protocol that fetches it, and the checksum that verifies it."""

    type: ReferenceType
    locator: dict[str, Any]
    meta: ReferenceMeta
    auth_reference: str | None = None


STORED = "$stored"  # the only key of the marker of a stored value


def stored_marker(reference: Reference) -> dict[str, Any]:
    """What a scope or an event has instead of a value that is too large for the log."""
    return {STORED: to_builtins(reference)}


def is_stored(value: Any) -> bool:
    """Whether a value is the marker of a stored one; a user's own key of that name is data."""
    if not isinstance(value, dict) or len(value) != 1 or STORED not in value:
        return False
    reference = value[STORED]
    return isinstance(reference, dict) and {"type", "locator", "meta"} <= reference.keys()
