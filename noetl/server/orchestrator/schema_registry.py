"""The registry of result schemas: named JSON Schemas with versions, in the database of the catalog.

A name has one row with all its versions; the revision of the row orders concurrent registrations. A version never
changes. Registering the same schema again gives the same version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import instant
from noetl.core.model.schemas.compatibility import incompatibilities
from noetl.core.model.schemas.json_schema import schema_digest, schema_problem, split_reference
from noetl.errors import Conflict, NotFound, RequestRefused, unknown
from noetl.runtime.clock import Clock
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

KIND = "schema"
MAX_ATTEMPTS = 20
MAX_BYTES = 256 * 1024  # of one schema
MODES = ("backward", "none")
_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)*")


class SchemaVersion(Struct, frozen=True, omit_defaults=True):
    """One version of a schema."""

    version: int
    digest: str
    schema: Any
    registered_at: float = 0.0
    registered_by: str = ""
    compatible: str = "backward"


class RegisteredSchema(Struct, frozen=True):
    """A version of a schema with its name."""

    name: str
    version: int
    digest: str
    schema: Any
    registered_at: float
    registered_by: str
    compatible: str


class _Row(Struct, frozen=True):
    versions: tuple[SchemaVersion, ...] = field(default_factory=tuple)


class SchemaRegistry(Struct, eq=False):
    """Registers and finds schemas."""

    _rows: TriggerStore
    _clock: Clock

    async def register(self, name: str, schema: Any, *, compatible: str = "backward", by: str = "") -> RegisteredSchema:
        """Add a version; with `backward` it must accept everything that the newest version accepts."""
        _check(name, schema, compatible)
        digest = schema_digest(schema)
        for _ in range(MAX_ATTEMPTS):
            stored = await self._rows.get(KIND, name)
            row = _Row() if stored is None else _decode(stored)
            newest = row.versions[-1] if row.versions else None
            if newest is not None and newest.digest == digest:
                return _named(name, newest)
            if newest is not None and compatible == "backward":
                problems = list(incompatibilities(newest.schema, schema))
                if problems:
                    raise Conflict(
                        f"the schema is not backward compatible with {name}/v{newest.version}: "
                        f"{'; '.join(problems[:10])}; register it with `--compatible none`, or under another name"
                    )
            number = 1 if newest is None else newest.version + 1
            version = SchemaVersion(number, digest, schema, self._clock.now(), by, compatible)
            if await self._save(name, stored, _Row((*row.versions, version))):
                return _named(name, version)
        raise Conflict(f"the schema {name} was changed at the same time by other requests; try again")

    async def _save(self, name: str, stored: StoredTrigger | None, row: _Row) -> bool:
        data = msgspec.json.encode(row)
        if stored is not None:
            return await self._rows.save(StoredTrigger(KIND, name, data, stored.revision + 1))
        try:
            await self._rows.add(StoredTrigger(KIND, name, data))
        except Conflict:
            return False
        return True

    async def find(self, reference: str) -> RegisteredSchema:
        """`orders/v2`, or `orders` for the newest version; NotFound if it does not exist."""
        name, version = split_reference(reference)
        versions = await self.versions(name)
        for each in versions:
            if version in (None, each.version):
                return each
        raise NotFound(f"the schema {name} has no version {version}; it has 1 to {versions[0].version}")

    async def versions(self, name: str) -> list[RegisteredSchema]:
        """All versions of a name, newest first; NotFound if there is none."""
        stored = await self._rows.get(KIND, name)
        if stored is None:
            known = [each.name for each in await self._rows.list(KIND, limit=1000)]
            raise unknown("schema", name, known, "`noetl schema list` shows all schemas")
        return [_named(name, each) for each in reversed(_decode(stored).versions)]

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[RegisteredSchema]:
        """The newest version of each name, by name."""
        rows = await self._rows.list(KIND, after=after, limit=limit)
        return [_named(row.name, _decode(row).versions[-1]) for row in rows]


def document(found: RegisteredSchema) -> Mapping[str, Any]:
    """A schema as a JSON document."""
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "registered_at": instant(found.registered_at)}


def _check(name: str, schema: Any, compatible: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 200 or split_reference(name)[1] is not None:
        raise RequestRefused(
            f"{name!r} is not a valid schema name: use letters, digits, dots, dashes and slashes, without a version"
        )
    if compatible not in MODES:
        raise RequestRefused(f"the compatibility is one of {', '.join(MODES)}, not {compatible!r}")
    if len(msgspec.json.encode(schema)) > MAX_BYTES:
        raise RequestRefused(f"a schema can have up to {MAX_BYTES // 1024} KiB")
    if isinstance(schema, dict) and {"apiVersion", "kind"} <= schema.keys():
        raise RequestRefused(
            f"this is not a JSON Schema, but a document of kind {schema['kind']} (it has apiVersion and kind); "
            "`noetl register` registers playbooks, and `noetl apply` resources"
        )
    problem = schema_problem(schema) if isinstance(schema, dict) else "a schema is a mapping"
    if problem is not None:
        raise RequestRefused(f"this is not a JSON Schema: {problem}")


def _decode(stored: StoredTrigger) -> _Row:
    return msgspec.json.decode(stored.data, type=_Row)


def _named(name: str, each: SchemaVersion) -> RegisteredSchema:
    return RegisteredSchema(
        name, each.version, each.digest, each.schema, each.registered_at, each.registered_by, each.compatible
    )
