"""JSON Schema: whether a schema is valid, and where a value does not fit it. Other documents are not read."""

from __future__ import annotations

from typing import Any

MAX_LISTED = 20  # problems of one value that are listed


class InvalidSchema(ValueError):
    """A schema that is not a JSON Schema."""


def schema_problem(schema: Any) -> str | None:
    """Why this is not a JSON Schema; None if it is one."""
    try:
        _validator(schema)
    except InvalidSchema as problem:
        return str(problem)
    return None


def problems_of(schema: Any, value: Any) -> list[str]:
    """Every place where a value does not fit a schema, as `path: reason`; InvalidSchema if the schema is not one."""
    found: list[str] = []
    for problem in _validator(schema).iter_errors(value):
        path = ".".join(map(str, problem.instance_path))
        found.append(f"{path}: {problem.message}" if path else problem.message)
        if len(found) == MAX_LISTED:
            break
    return found


def _validator(schema: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_no_document)
    except ValueError as problem:
        raise InvalidSchema(str(problem).partition("\n")[0]) from None


def _no_document(uri: str) -> Any:
    raise ValueError(f"the schema refers to another document ({uri}); write its definitions into the schema")
