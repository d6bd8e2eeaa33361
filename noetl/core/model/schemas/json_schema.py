"""JSON Schema: whether a schema is valid, and where a value does not fit it. Other documents are not read."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from noetl.core.model.schemas.schema_cost import MOST_STEPS, is_affordable

_encode = msgspec.json.Encoder(order="sorted").encode
TOO_MANY_STEPS = f"to check this value needs more than {MOST_STEPS:,} steps; refer to other schemas less often"
MAX_LISTED = 20  # problems of one value that are listed
MAX_FAILURES = 100  # failing paths of a result that its error lists


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
    if not is_affordable(schema, value):
        raise InvalidSchema(TOO_MANY_STEPS)
    found: list[str] = []
    for problem in _validator(schema).iter_errors(value):
        path = ".".join(map(str, problem.instance_path))
        found.append(f"{path}: {problem.message}" if path else problem.message)
        if len(found) == MAX_LISTED:
            break
    return found


def compile_schema(schema: Any) -> Any:
    """The validator of a schema, for many values; InvalidSchema if it is not one."""
    return _validator(schema)


def failures_of(validator: Any, value: Any, most: int = MAX_FAILURES) -> tuple[list[dict[str, str]], int]:
    """Every place where a value does not fit, as `{path, message}`, up to `most`, and how many more there are."""
    if validator.is_valid(value):
        return [], 0
    found: list[dict[str, str]] = []
    omitted = 0
    for problem in validator.iter_errors(value):
        if len(found) < most:
            found.append({"path": ".".join(map(str, problem.instance_path)), "message": problem.message})
        else:
            omitted += 1
    return found, omitted


def schema_digest(schema: Any) -> str:
    """The SHA-256 of a schema in hexadecimal, independent of the order of its keys."""
    return sha256(_encode(schema)).hexdigest()


def split_reference(reference: str) -> tuple[str, int | None]:
    """Name and version of a registered schema: `orders/v2`, or `orders` for the newest version."""
    name, _, last = reference.rpartition("/")
    if name and last[:1] == "v" and last[1:].isdigit():
        return name, int(last[1:])
    return reference, None


def _validator(schema: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_no_document, validate_formats=True)
    except ValueError as problem:
        raise InvalidSchema(str(problem).partition("\n")[0]) from None


def _no_document(uri: str) -> Any:
    raise ValueError(f"the schema refers to another document ({uri}); write its definitions into the schema")
