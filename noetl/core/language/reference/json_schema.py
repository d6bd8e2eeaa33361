"""The JSON Schema of a playbook, generated from the grammar and the tool specs.

Editors with JSON Schema support (such as yaml-language-server) use it for completion and checks. It omits what a schema
cannot express (names, positions, templates), so that a valid playbook never violates it. Keys of v10 and other accepted
spellings are marked as deprecated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.language.syntax.grammar import KEYCHAIN_ALIASES, KEYCHAIN_KINDS, SCOPES, SHAPES, Key, Shape
from noetl.core.model.tool import PLUGIN_KINDS, PLUGIN_SIDES, Field, Members, ToolSpec

DRAFT = "http://json-schema.org/draft-07/schema#"
NAME = "^[A-Za-z_\\u0080-\\uffff][A-Za-z0-9_\\u0080-\\uffff-]*$"  # letters of any alphabet, roughly
TEMPLATE = {"type": "string", "pattern": r"\{\{|\{%"}

Schema = dict[str, Any]


def json_schema(specs: Mapping[str, ToolSpec]) -> Schema:
    """The schema of a whole playbook, with the parameters of every known tool kind."""
    kinds = {spec.kind: spec for spec in specs.values()}
    definitions = {name: _shape(shape) for name, shape in SHAPES.items() if name != "playbook"}
    definitions["task"] = _task(kinds)
    definitions["keychain"] = _keychain()
    definitions["item"] = {"anyOf": [_ref("task"), _ref("choose"), _ref("while"), _ref("until"), _labelled()]}
    definitions["tasks"] = {"anyOf": [_ref("task"), {"type": "array", "items": _ref("item")}]}
    definitions["set"] = _set()
    definitions["blocks"] = _blocks()
    return {
        "$schema": DRAFT,
        "$id": "https://noetl.io/schema/playbook.json",
        "title": "NoETL playbook",
        **_shape(SHAPES["playbook"]),
        "definitions": definitions,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _shape(shape: Shape) -> Schema:
    schema: Schema = {
        "type": "object",
        "description": shape.doc,
        "properties": {key: _described(known, _value(known, shape.name)) for key, known in shape.keys.items()},
        "additionalProperties": shape.open or shape.lenient,
    }
    if shape.lenient:  # control flow belongs to a task's rules
        schema["properties"].update({key: False for key in ("do", "rules") if key not in shape.keys})
    required = [key for key, known in shape.keys.items() if known.required]
    if required:
        schema["required"] = required
    return schema


def _described(known: Key, value: Schema) -> Schema:
    doc = known.doc
    if known.state in ("v10", "accepted"):
        doc = f"Deprecated; write `{known.instead}`."
    elif known.state == "reserved":
        doc = "Reserved: accepted and ignored."
    if not doc and known.state == "canonical":
        return value
    # Draft 7 ignores everything beside `$ref`, so the description wraps it.
    described: Schema = {"allOf": [value], "description": doc} if "$ref" in value else {**value, "description": doc}
    if known.state != "canonical":
        described["deprecated"] = True
        described["deprecationMessage"] = doc
    return described


def _value(known: Key, owner: str) -> Schema:
    kind = known.type
    if kind == "shape":
        return _ref(known.shape)
    if kind == "shapes" or (kind == "list" and known.shape):
        return {"type": "array", "items": _ref(known.shape)}
    if kind in ("tasks", "set", "blocks"):
        return _ref(kind)
    if kind == "else":
        then = SHAPES[owner].keys["then"]
        return {"anyOf": [{"type": "object", "properties": {"then": _value(then, owner)}}, {"type": ["null", "array"]}]}
    if known.choices and kind == "text":
        return {"enum": list(known.choices)}
    simple: dict[str, Schema] = {
        "any": {"$ref": f"#/definitions/{known.shape}"} if known.shape and known.shape != "task.policy" else {},
        "text": {"type": ["string", "number", "boolean"]},
        "name": {"type": "string", "pattern": NAME},
        "template": {"type": ["string", "boolean", "number"]},
        "boolean": {"type": "boolean"},
        "mapping": {"type": ["object", "null"]},
        "list": {"type": "array"},
        "texts": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number", "boolean"]}}]},
    }
    if kind in simple:
        if known.shape == "task.policy":
            return _ref("task.policy")
        if known.shape == "retry":
            return {"anyOf": [_ref("retry"), {"type": "integer"}]}
        return simple[kind]
    number: Schema = {"type": "integer" if kind == "count" else "number"}
    if known.least is not None:
        number["minimum"] = known.least
    if known.most is not None:
        number["maximum"] = known.most
    return {"anyOf": [number, TEMPLATE]} if known.templated else number


def _set() -> Schema:
    scopes = "|".join(SCOPES)
    return {
        "type": "object",
        "description": "Assignments: `ctx.name: value`.",
        "patternProperties": {rf"^({scopes})\..+": {}},
        "properties": {scope: {"type": "object"} for scope in SCOPES},
    }


def _blocks() -> Schema:
    block = {"anyOf": [_ref("block"), _ref("task")]}
    return {"anyOf": [{"type": ["object", "null"], "additionalProperties": block}, {"type": "array", "items": block}]}


def _labelled() -> Schema:
    """v10's task under a label, a mapping with one key."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "not": {"anyOf": [{"required": [word]} for word in ("kind", "name", "choose", "while", "until")]},
        "additionalProperties": _ref("task"),
        "deprecated": True,
    }


# --- tool kinds ---------------------------------------------------------------------------------


def _task(kinds: Mapping[str, ToolSpec]) -> Schema:
    schema = _shape(SHAPES["task"])
    names = sorted({*kinds, *(alias for spec in kinds.values() for alias in spec.aliases), *PLUGIN_KINDS})
    schema["properties"]["kind"] = {
        "description": SHAPES["task"].keys["kind"].doc,
        "enum": names,
    }
    schema["allOf"] = [_kind(spec) for _, spec in sorted(kinds.items())]
    return schema


def _kind(spec: ToolSpec) -> Schema:
    """The parameters of this kind beside `kind`, under `input` and under `spec`."""
    fields = {name: _parameter(field) for name, field in spec.fields.items()}
    for name, field in spec.fields.items():
        for alias in field.aliases:
            if alias not in SHAPES["task"].keys:
                fields[alias] = {**_parameter(field), "description": f"Deprecated; write `{name}`.", "deprecated": True}
    beside = {name: schema for name, schema in fields.items() if name not in SHAPES["task"].keys}
    then: Schema = {"properties": {**beside, "input": {"properties": fields}}}
    if spec.spec_keys:
        then["properties"]["spec"] = {"properties": {key: {"description": doc} for key, doc in spec.spec_keys.items()}}
    return {"if": {"properties": {"kind": {"enum": [spec.kind, *spec.aliases]}}, "required": ["kind"]}, "then": then}


def _parameter(field: Field) -> Schema:
    types: dict[str, Any] = {
        "string": ["string", "number", "boolean", "null"],
        "code": ["string", "null"],
        "number": "number",
        "integer": "integer",
        "boolean": "boolean",
        "mapping": ["object", "null"],
        "list": ["array", "null"],
    }
    schema: Schema = {}
    if field.type in types:
        schema["type"] = types[field.type]
        if field.type not in ("string", "code"):
            schema = {"anyOf": [schema, TEMPLATE]}
    if field.choices:
        schema = {"anyOf": [{"enum": list(field.choices)}, {"type": "string"}]}
    if field.doc:
        schema["description"] = field.doc
    if field.members is not None:
        schema["properties"] = _members(field.members)
    elif field.variants:
        sides = _variants(field.variants)
        schema |= {"allOf": sides, "items": {"allOf": sides}}
    return schema


def _variants(variants: Mapping[str, Members]) -> list[Schema]:
    """Completion of a mapping by its `kind`: kinds with the same members share one condition."""
    kinds: dict[int, list[str]] = {}
    for kind, members in variants.items():
        kinds.setdefault(id(members), []).append(kind)
    # Case does not matter here; a kind of a plug-in that is not installed is only a warning.
    names: Schema = {"anyOf": [{"enum": sorted({*variants, *PLUGIN_SIDES})}, TEMPLATE, {"pattern": "[A-Z]"}]}
    by_kind: list[Schema] = [
        {
            "if": {"properties": {"kind": {"enum": sorted(same)}}, "required": ["kind"]},
            "then": {"properties": _members(variants[same[0]])},
        }
        for same in kinds.values()
    ]
    return [{"properties": {"kind": names}}, *by_kind]


def _members(members: Members) -> dict[str, Schema]:
    return {name: _parameter(field) for name, field in members.fields.items() if name != "kind"}


# --- keychain -----------------------------------------------------------------------------------


def _keychain() -> Schema:
    schema = _shape(SHAPES["keychain"])
    names = [*KEYCHAIN_KINDS, *KEYCHAIN_ALIASES]
    schema["properties"]["kind"] = {
        "description": SHAPES["keychain"].keys["kind"].doc,
        "anyOf": [{"enum": names}, {"type": "string", "pattern": "_credential$"}],
    }
    schema["allOf"] = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"properties": {key: _described(known, _value(known, "keychain")) for key, known in keys.items()}},
        }
        for kind, keys in KEYCHAIN_KINDS.items()
    ]
    return schema
