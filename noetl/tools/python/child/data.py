"""The output of authors' code as JSON, or words about what in it is not data."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """The task cannot run or its result cannot travel: words for the author, and an error kind."""

    def __init__(self, message: str, kind: str = "python") -> None:
        super().__init__(message)
        self.kind = kind


def converted(value: Any) -> Any:
    """One object that JSON does not know, one level closer to data; TypeError when it cannot be."""
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
        return number_of(value)
    if package == "datetime" and kind.__name__ == "timedelta":
        return value.total_seconds()
    for method in ("isoformat", "tolist", "to_pylist", "to_dicts", "model_dump", "_asdict"):
        convert = getattr(value, method, None)
        if convert is not None and not isinstance(value, type):
            return convert()
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


def number_of(value: Any) -> Any:
    """A Decimal as the number it is, or as text when a float would change it."""
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if type(value)(repr(near)) == value else str(value)


def plain(value: Any, path: str = "result", depth: int = 0) -> Any:
    """The slow, thorough way: pure JSON data, or a Refused that says where it is not."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None  # NaN and infinities are null
    if depth > 300:
        raise Refused(f"{path[:80]}... is nested too deeply, or contains itself", "schema")
    if isinstance(value, dict):
        return {key_of(key, path): plain(each, f"{path}.{key}", depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, f"{path}[{place}]", depth + 1) for place, each in enumerate(value)]
    try:
        closer = converted(value)
    except TypeError:
        raise Refused(
            f"{path} is of type {type(value).__module__}.{type(value).__qualname__}, "
            "which is not data: return text, numbers, lists and mappings",
            "schema",
        ) from None
    return plain(closer, path, depth + 1)


def key_of(key: Any, path: str) -> Any:
    """A mapping's key as text."""
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, (bool, int, float)):
        return "null" if key is None else str(key).lower() if isinstance(key, bool) else str(key)
    if isinstance(key, tuple):
        raise Refused(f"{path} has the key {key!r}: keys of a result are text", "schema")
    try:
        return str(converted(key))
    except TypeError:
        raise Refused(f"{path} has the key {key!r}: keys of a result are text", "schema") from None


def make_encoder() -> Any:
    """A function from data to JSON text.

    The encoder's C part alone: importing the json package would be a third of this process's start."""
    try:
        from _json import encode_basestring, make_encoder

        def encode(value: Any) -> str:
            return "".join(
                make_encoder({}, converted, encode_basestring, None, ":", ",", False, False, False)(value, 0)
            )

        encode([1.5, "é", None])
    except (ImportError, TypeError):  # another Python, another inside
        import json

        def encode(value: Any) -> str:
            return json.dumps(value, default=converted, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    return encode


encode = make_encoder()


def encoded(value: Any) -> bytes:
    """The result as JSON."""
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError):
        text = encode(plain(value))
    try:
        return text.encode()  # type: ignore[no-any-return]
    except UnicodeEncodeError:
        raise Refused("the result contains text that is not valid Unicode (a lone surrogate)", "schema") from None
