"""Validation of inputs and outputs against JSON Schemas, inline or registered on the server.

A value that does not fit is an error of kind `schema` that lists every failing path (the first hundred, the others are
counted). Rows of a stored payload are checked in a stream, one batch at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.model.reference import Reference
from noetl.core.model.schemas.json_schema import (
    MAX_FAILURES,
    InvalidSchema,
    compile_schema,
    failures_of,
    schema_digest,
    split_reference,
)
from noetl.errors import NotFound, PayloadUnavailable
from noetl.runtime.clock import Clock
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.work_link import WorkLink

CAPACITY = 256
NEWEST_SECONDS = 20.0  # that the newest version of a schema is reused
_encode = msgspec.json.Encoder(order="sorted").encode


class KnownSchema(Struct, frozen=True):
    """A compiled schema, and what the metadata of a checked result says about it."""

    validator: Any
    schema: Any
    meta: dict[str, Any]
    until: float | None = None  # the newest version is looked up again then

    @property
    def label(self) -> str:
        """The schema in a message."""
        name = self.meta.get("name")
        return f"the schema {name}/v{self.meta['version']}" if name else "its schema"


class Schemas:
    """The schemas that the runs of a worker use."""

    def __init__(self, link: WorkLink, results: ResultStore, clock: Clock) -> None:
        self._link = link
        self._results = results
        self._clock = clock
        self._known: OrderedDict[Any, KnownSchema] = OrderedDict()

    async def problem(self, what: str, schema: Any, value: Any) -> ErrorInfo | None:
        """The error of a value that does not fit (or of a schema that does not exist); None if it fits."""
        known = await self._find(schema)
        if isinstance(known, ErrorInfo):
            return known
        return _problem(what, known, *failures_of(known.validator, value))

    async def checked(self, schema: Any, outcome: Outcome) -> Outcome:
        """The outcome with `meta.schema`, or as an error if its data does not fit."""
        known = await self._find(schema)
        if isinstance(known, ErrorInfo):
            return msgspec.structs.replace(outcome, status="error", error=known)
        if outcome.data is None and outcome.ref is not None:
            found = await self._stored_failures(known, outcome.ref)
        else:
            found = failures_of(known.validator, outcome.data)
        if isinstance(found, ErrorInfo):
            return msgspec.structs.replace(outcome, status="error", error=found)
        problem = _problem("output", known, *found)
        if problem is not None:
            return msgspec.structs.replace(outcome, status="error", error=problem)
        return msgspec.structs.replace(
            outcome, meta={**outcome.meta, "schema": known.meta}, ref=_with_schema(outcome.ref, known.meta)
        )

    async def _find(self, schema: Any) -> KnownSchema | ErrorInfo:
        key = schema if isinstance(schema, str) else _encode(schema)
        known = self._known.get(key)
        if known is not None and (known.until is None or known.until > self._clock.monotonic()):
            return known
        try:
            found = await self._registered(schema) if isinstance(schema, str) else _inline(schema)
        except InvalidSchema as problem:
            return error_info("schema", f"the schema is not valid: {problem}")
        except NotFound as problem:
            return error_info("not_found", str(problem))
        self._known[key] = found
        if len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        return found

    async def _registered(self, reference: str) -> KnownSchema:
        document = msgspec.json.decode(await self._link.schema(reference))
        _, version = split_reference(reference)
        until = None if version is not None else self._clock.monotonic() + NEWEST_SECONDS
        meta = {key: document[key] for key in ("name", "version", "digest")}
        return KnownSchema(compile_schema(document["schema"]), document["schema"], meta, until)

    async def _stored_failures(
        self, known: KnownSchema, reference: Reference
    ) -> tuple[list[dict[str, str]], int] | ErrorInfo:
        """The failures of a stored payload; rows are checked one by one if the schema describes a list of them."""
        from noetl.data.row_stream import NotRows, rows_of

        schema = known.schema
        items = schema.get("items") if isinstance(schema, dict) else None
        if not isinstance(items, dict) or set(schema) - {"type", "items", "$schema", "title", "description"}:
            items = None
        found: list[dict[str, str]] = []
        omitted = 0
        try:
            if items is None:
                rows = [row async for row in rows_of(reference, self._results.open)]
                return failures_of(known.validator, rows)
            validator, index = compile_schema(items), 0
            async for row in rows_of(reference, self._results.open):
                if not validator.is_valid(row):
                    listed, more = failures_of(validator, row, MAX_FAILURES - len(found))
                    found += [{**each, "path": f"{index}.{each['path']}".rstrip(".")} for each in listed]
                    omitted += more
                index += 1
        except NotRows as problem:
            return error_info("schema", f"the output cannot be checked against {known.label}: {problem}")
        except PayloadUnavailable as problem:
            return error_info(problem.kind, str(problem))
        return found, omitted


def _with_schema(reference: Reference | None, meta: dict[str, Any]) -> Reference | None:
    if reference is None:
        return None
    return msgspec.structs.replace(reference, meta=msgspec.structs.replace(reference.meta, schema=meta))


def _inline(schema: Any) -> KnownSchema:
    return KnownSchema(compile_schema(schema), schema, {"digest": schema_digest(schema)})


def _problem(what: str, known: KnownSchema, failures: list[dict[str, str]], omitted: int) -> ErrorInfo | None:
    if not failures:
        return None
    first = failures[0]
    where = f"{first['path']}: " if first["path"] else ""
    more = len(failures) + omitted - 1
    rest = f" (and {more} more)" if more else ""
    details: dict[str, Any] = {"failures": failures, "schema": known.meta}
    if omitted:
        details["failures_omitted"] = omitted
    return error_info(
        "schema", f"the {what} does not fit {known.label}: {where}{first['message']}{rest}", details=details
    )
