"""Request bodies: what JSON they accept, and how an invalid one is reported."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Body(BaseModel):
    """Base of request bodies: unknown fields and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, data: Any) -> Any:
        """Reject what Python's JSON parser accepts although it cannot be stored."""
        try:
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as problem:
            surrogate = f"\\u{ord(problem.object[problem.start]):04x}"
            raise ValueError(f"{surrogate} is an unpaired surrogate, not a character") from None
        except ValueError:
            raise ValueError("JSON has no NaN, no Infinity and no number as large as 1e309") from None
        except TypeError:
            pass  # bytes, because the content type is not JSON: pydantic reports that it is no object
        return whole_numbers(data)


def whole_numbers(data: Any) -> Any:
    """The object with 3.0 read as 3, because JSON does not distinguish them."""
    if not isinstance(data, dict):
        return data
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in data.items()
    }


def one_of(*names: str) -> dict[str, Any]:
    """JSON Schema of a body that has exactly one of these text fields."""
    return {
        "oneOf": [
            {"required": [name], "properties": {each: {"type": "string" if each == name else "null"} for each in names}}
            for name in names
        ]
    }
