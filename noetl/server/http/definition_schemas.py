"""JSON Schemas of definitions (triggers, notification rules) for the OpenAPI document, from their structs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_PREFIX = "#/$defs/"
_DURATION = {"anyOf": [{"type": "number"}, {"type": "string", "description": "a duration such as 90s, 15m or 2h"}]}


def definition_body(*types: type[Any], lists: Iterable[str] = (), durations: Iterable[str] = ()) -> dict[str, Any]:
    """The request body of a route that stores a definition of one of these types.

    Fields that the server sets (`INTERNAL`) are not part of it. Those in `lists` may be a single value; those in
    `DURATIONS` of the type, or in `durations`, may be text."""
    _, known = msgspec.json.schema_components(types, ref_template=_PREFIX + "{name}")
    schemas = []
    for each in types:
        schema = _inlined(known[each.__name__], known)
        internal = each.INTERNAL
        properties = {name: field for name, field in schema["properties"].items() if name not in internal}
        for name in (*durations, *getattr(each, "DURATIONS", ())):
            if name in properties:
                properties[name] = _DURATION
        for name in lists:
            properties[name] = {"anyOf": [properties[name], properties[name]["items"]]}
        required = [name for name in schema["required"] if name not in internal]
        schemas.append({**schema, "properties": properties, "required": required, "additionalProperties": False})
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inlined(schema: Any, known: dict[str, Any]) -> Any:
    """A schema with the schemas that it refers to in place of the references."""
    if isinstance(schema, list):
        return [_inlined(each, known) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("$ref", "")).startswith(_PREFIX):
        return _inlined(known[schema["$ref"].removeprefix(_PREFIX)], known)
    return {key: _inlined(each, known) for key, each in schema.items() if key != "discriminator"}
