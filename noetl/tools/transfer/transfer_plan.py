"""What a transfer asks for, read and checked before anything moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate, Rendered
from noetl.tools._common.sql_task import BadInput, flag

DATABASES = ("postgres", "duckdb", "sqlite")
MODES = ("append", "insert", "replace", "upsert")
HTTP_ROWS = 1000  # to a web hook
SMALL_ROWS = 10_000  # from sources that give Python objects
BULK_ROWS = 40_960
_KINDS = {
    "postgres": "postgres", "postgresql": "postgres", "duckdb": "duckdb", "sqlite": "sqlite",
    "http": "http", "https": "http", "api": "http", "webhook": "http",
    "object": "object", "s3": "object", "gcs": "object", "gs": "object", "azure": "object", "file": "object",
    "object_store": "object", "parquet": "object", "csv": "object", "json": "object",
    "data": "data", "ref": "data", "reference": "data",
}  # fmt: skip
_PROVIDERS = {"s3": "s3", "gcs": "gcs", "gs": "gcs", "azure": "azure", "file": "file"}
# Words of sources and targets; of others, those that look like one of these are taken for a slip.
_WORDS = frozenset({
    "kind", "table", "path", "file", "uri", "url", "endpoint", "key", "keys", "mode", "mapping", "on_error",
    "create", "data", "format", "auth", "credential", "bucket", "provider", "container", "database", "db_path",
    "dsn", "host", "port", "user", "password", "sslmode", "schema", "method", "headers", "json", "form", "body",
    "params", "payload", "verify", "ca", "cert", "proxy", "query", "sql", "command", "statement", "types", "pages",
    "retry", "chunk", "ref", "rows_path", "name", "content_type", "spec", "timeout", "multipart", "redirects",
    "type", "locator", "meta", "auth_reference",
})  # fmt: skip
_FORMAT_KINDS = ("parquet", "csv", "json")


class SourcePlan(NamedTuple):
    """Where rows come from."""

    kind: str
    fields: dict[str, Any]


class Own(NamedTuple):
    """What a target gets instead of the source's rows, once."""

    data: Any


class TargetPlan(NamedTuple):
    """Where rows go, and how."""

    number: int
    kind: str
    fields: dict[str, Any]
    mode: str = "append"
    key: tuple[str, ...] = ()
    mapping: dict[str, Any] | None = None
    warns: bool = False
    creates: bool = True
    own: Own | None = None

    @property
    def place(self) -> str:
        """The table, path or URL, as it was written."""
        for name in ("table", "uri", "url"):
            if self.fields.get(name):
                return str(self.fields[name])
        return ""

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"target {self.number} ({self.kind} {self.place})"

    def check_key(self, columns: Sequence[str]) -> None:
        """BadInput when rows to merge have no column for the key."""
        missing = [name for name in self.key if self.mode == "upsert" and name not in columns]
        if missing:
            raise BadInput(
                f"{self.label}: the key {missing[0]!r} is no column of the rows; they have {', '.join(columns)}"
            )

    def no_key(self) -> BadInput:
        """What is said of a row whose key is null: nothing is the same as null, so it could not be found again."""
        return BadInput(
            f"{self.label}: a row has no value for its key ({', '.join(self.key)}); upsert needs one in every row"
        )


class Plan(NamedTuple):
    """A whole transfer; without a source all its targets have their own data."""

    source: SourcePlan | None
    targets: tuple[TargetPlan, ...]
    size: int
    path: str | None


def plan_of(call: ToolCall) -> Plan:
    """The transfer that a task's parameters describe; BadInput when they do not make sense."""
    given = call.input
    targets = given.get("targets")
    if isinstance(targets, Mapping):
        targets = [targets]
    if not isinstance(targets, list | tuple) or not targets:
        raise BadInput("there is nowhere to move rows to: give `targets` a list of {kind, table|path|url, ...}")
    planned = tuple(_target(number, target) for number, target in enumerate(targets))
    if given.get("source") is None and given.get("data") is None and all(target.own for target in planned):
        return Plan(None, planned, SMALL_ROWS, None)
    source = _source(given)
    chunk = given.get("chunk") or source.fields.get("chunk") or {}
    if not isinstance(chunk, Mapping):
        chunk = {"size": chunk}
    if any(target.kind == "http" for target in planned):
        default = HTTP_ROWS
    else:
        default = SMALL_ROWS if source.kind in ("http", "data", "sqlite") else BULK_ROWS
    path = (
        chunk.get("path")
        or source.fields.get("rows_path")
        or (source.fields.get("path") if source.kind == "http" else None)
    )
    return Plan(source, planned, _size(chunk.get("size"), default), str(path) if path else None)


def _source(given: Mapping[str, Any]) -> SourcePlan:
    source, data = given.get("source"), given.get("data")
    if source is None and data is not None:
        return SourcePlan("data", {"data": data})
    if isinstance(source, list):
        return SourcePlan("data", {"data": source})
    if not isinstance(source, Mapping):
        raise BadInput("there is nothing to move: give `source` {kind, ...}, or `data` a list of rows")
    _no_slips(source, "the source")
    fields = {name: _plain(each) for name, each in source.items()}
    if {"type", "locator"} <= set(fields):
        return SourcePlan("data", {"data": fields})
    kind = fields.pop("kind", None) or _guessed(fields)
    return SourcePlan(_known(kind, "source", fields), fields)


def _target(number: int, target: Any) -> TargetPlan:
    what = f"target {number}"
    if not isinstance(target, Mapping):
        raise BadInput(f"{what} is a mapping {{kind, table|path|url, mode, ...}}, not {type(target).__name__}")
    _no_slips(target, what)
    fields = {name: each if name == "mapping" else _plain(each) for name, each in target.items()}
    kind = _known(fields.pop("kind", None) or _guessed(fields), what, fields)
    if kind == "data":
        raise BadInput(f"{what}: rows cannot be moved to {target.get('kind')!r}")
    mode = str(fields.pop("mode", None) or ("replace" if kind == "object" else "append")).lower()
    if mode not in MODES:
        raise BadInput(f"{what}: mode {mode!r} is not one of {', '.join(MODES)}")
    key = fields.pop("key", None) or fields.pop("keys", None) or ()
    key = (key,) if isinstance(key, str) else tuple(str(name) for name in key)
    if mode == "upsert" and kind not in DATABASES:
        raise BadInput(f"{what}: only databases have the mode upsert")
    if mode in ("append", "insert") and kind == "object":
        raise BadInput(
            f"{what}: a file is written whole, its only mode is replace; "
            "for a file of each chunk put {{ chunk.index }} into the path"
        )
    if mode == "replace" and kind == "http":
        raise BadInput(f"{what}: what was sent cannot be replaced; the mode of http is append")
    if mode == "upsert" and not key:
        raise BadInput(f"{what}: mode upsert needs `key`, the column (or columns) that tell rows apart")
    mapping = fields.pop("mapping", None)
    if mapping is not None and not isinstance(mapping, Mapping):
        raise BadInput(f"{what}: `mapping` is a map: target column -> source column, or a template over `row`")
    on_error = str(fields.pop("on_error", None) or "fail").lower()
    if on_error not in ("fail", "warn", "continue", "ignore"):
        raise BadInput(f"{what}: on_error {on_error!r} is not one of fail, warn")
    creates = flag(fields.pop("create", None), True)
    own = Own(fields.pop("data")) if "data" in fields else None
    if own is not None and is_late(own.data):
        raise BadInput(f"{what}: `data` is written once and cannot read `chunk` or `row`")
    chosen = dict(mapping) if mapping else None
    plan = TargetPlan(number, kind, fields, mode, key, chosen, on_error != "fail", creates, own)
    if not plan.place:
        needed = {"object": "path", "http": "url"}.get(kind, "table")
        raise BadInput(f"{what}: {kind} needs `{needed}`")
    return plan


def _no_slips(given: Mapping[str, Any], what: str) -> None:
    for word in given:
        meant = get_close_matches(str(word), _WORDS, 1, 0.85) if word not in _WORDS else []
        if meant:
            raise BadInput(f"{what} has no `{word}`: did you mean `{meant[0]}`?")


def _known(kind: Any, what: str, fields: dict[str, Any]) -> str:
    name = str(kind or "").lower()
    known = _KINDS.get(name)
    if known is None:
        choices = "postgres, duckdb, sqlite, http, object (s3, gcs, azure, file)"
        raise BadInput(f"{what}: kind {kind!r} is not one of {choices}")
    if known == "object":
        if name in _PROVIDERS:
            fields.setdefault("provider", _PROVIDERS[name])
        if name in _FORMAT_KINDS:
            fields.setdefault("format", name)
        for spelling in ("path", "file", "key"):
            if "uri" not in fields and isinstance(fields.get(spelling), str):
                fields["uri"] = fields.pop(spelling)
    if known == "http":
        for spelling in ("endpoint", "uri"):
            if "url" not in fields and isinstance(fields.get(spelling), str):
                fields["url"] = fields.pop(spelling)
    if known in ("duckdb", "sqlite") and "file" not in fields:
        for spelling in ("database", "db_path", "path"):
            if isinstance(fields.get(spelling), str):
                fields["file"] = fields.pop(spelling)
                break
    for spelling in ("credential",):
        if spelling in fields:
            fields.setdefault("auth", fields.pop(spelling))
    for spelling in ("sql", "command", "statement"):
        if spelling in fields:
            fields.setdefault("query", fields.pop(spelling))
    return known


def _guessed(fields: Mapping[str, Any]) -> str | None:
    """The kind that fields speak of, when none is named."""
    if fields.get("url") or fields.get("endpoint"):
        return "http"
    if fields.get("ref") or fields.get("data"):
        return "data"
    if fields.get("uri") or (fields.get("path") and not fields.get("table")):
        return "object"
    return None


def _plain(value: Any) -> Any:
    """The value with text that templates made as ordinary text."""
    if isinstance(value, Rendered):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _size(value: Any, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = 0
    if size < 1:
        raise BadInput(f"chunk.size is a number of rows from 1, not {value!r}")
    return size


def is_late(value: Any) -> bool:
    """Whether a value has a template in it that is evaluated for each chunk or row."""
    if isinstance(value, DeferredTemplate):
        return True
    if isinstance(value, Mapping):
        return any(is_late(each) for each in value.values())
    return isinstance(value, list | tuple) and any(is_late(each) for each in value)
