"""Encodes the output of authors' code as JSON; a value that is not data is an error with its path."""

from __future__ import annotations

from typing import Any


class TaskError(Exception):
    """The code cannot run or its result cannot be encoded: a message for the author, and an error kind."""

    def __init__(self, message: str, kind: str = "python") -> None:
        super().__init__(message)
        self.kind = kind


def convert(value: Any) -> Any:
    """Convert an object that JSON does not support by one level; TypeError if that is not possible."""
    kind = type(value)
    if kind is bytes or kind is bytearray or kind is memoryview:
        import binascii

        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    package = kind.__module__.partition(".")[0]
    if package == "decimal" and kind.__name__ == "Decimal":
        return decimal_value(value)
    if package == "datetime" and kind.__name__ == "timedelta":
        return value.total_seconds()
    for method in ("isoformat", "tolist", "to_pylist", "to_dicts", "model_dump", "_asdict"):
        to_data = getattr(value, method, None)
        if to_data is not None and not isinstance(value, type):
            return to_data()
    if package == "pandas" and hasattr(value, "to_dict"):
        return value.to_dict(orient="records")
    if isinstance(value, type) or callable(value):
        raise TypeError
    fields = getattr(value, "__dataclass_fields__", None) or getattr(value, "__struct_fields__", None)
    if fields:
        return {name: getattr(value, name) for name in fields}
    if package == "enum" or any(base.__module__ == "enum" for base in kind.__mro__):
        return value.value
    if package in ("uuid", "pathlib", "ipaddress", "fractions"):
        return str(value)
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118 - any mapping, not only a dict
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError


def decimal_value(value: Any) -> Any:
    """A Decimal as a number, or as a string if a float cannot represent it exactly."""
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    return number if type(value)(repr(number)) == value else str(value)


def plain(value: Any, path: str = "result", depth: int = 0) -> Any:
    """Convert recursively to JSON data; a TaskError names the path of a value that is not data.

    Slower than `encode`, which is why it runs only after `encode` failed."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None  # NaN and infinities are null
    if depth > 300:
        raise TaskError(f"{path[:80]}... is nested too deeply, or contains itself", "schema")
    if isinstance(value, dict):
        return {plain_key(key, path): plain(each, f"{path}.{key}", depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
    try:
        converted = convert(value)
    except TypeError:
        raise TaskError(
            f"{path} is of type {type(value).__module__}.{type(value).__qualname__}, "
            "which is not data: return strings, numbers, lists and mappings",
            "schema",
        ) from None
    return plain(converted, path, depth + 1)


def plain_key(key: Any, path: str) -> Any:
    """A mapping's key as a string."""
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, (bool, int, float)):
        return "null" if key is None else str(key).lower() if isinstance(key, bool) else str(key)
    if not isinstance(key, tuple):
        try:
            return str(convert(key))
        except TypeError:
            pass
    raise TaskError(f"{path} has the key {key!r}: keys of a result must be strings", "schema")


def create_encoder() -> Any:
    """A function that encodes data as JSON.

    It uses the C encoder directly: importing the json package takes a third of the start-up time of this process."""
    try:
        from _json import encode_basestring, make_encoder

        def encode(value: Any) -> str:
            return "".join(make_encoder({}, convert, encode_basestring, None, ":", ",", False, False, False)(value, 0))

        encode([1.5, "é", None])
    except (ImportError, TypeError):  # a Python version without this C function
        import json

        def encode(value: Any) -> str:
            return json.dumps(value, default=convert, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    return encode


encode = create_encoder()


def encode_result(value: Any) -> bytes:
    """Encode the result as JSON."""
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError):
        text = encode(plain(value))
    try:
        return text.encode()  # type: ignore[no-any-return]
    except UnicodeEncodeError:
        raise TaskError("the result contains a string that is not valid Unicode (lone surrogate)", "schema") from None
