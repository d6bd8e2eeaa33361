"""Reads and validates the fields of a transfer before any row is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

from noetl.core.model.connector import SourceSpec, TargetSpec
from noetl.core.model.outcome import elements_of
from noetl.core.model.tool import Members, ToolCall, install_hint
from noetl.core.templates.deferred import DeferredTemplate, Rendered
from noetl.data.files import compression, formats
from noetl.tools import connectors
from noetl.tools._common.sql_task import BadInput, flag
from noetl.tools.transfer import side_fields
from noetl.tools.transfer.quarantine.bad_rows import RowError
from noetl.tools.transfer.schema_contract import SchemaContract, read_contract
from noetl.tools.transfer.side_fields import (
    BAD_ROWS_FIELDS,
    IMPLIED_KINDS,
    KINDS,
    NESTED,
    ON_ERROR,
    OTHER_ON_ERROR,
)

DATABASES = ("postgres", "duckdb", "sqlite")
MODES = ("append", "insert", "replace", "upsert")
HTTP_ROWS = 1000  # chunk size for web hooks
SMALL_ROWS = 10_000  # chunk size for sources that yield Python objects
BULK_ROWS = 40_960
_PROVIDERS = {"s3": "s3", "gcs": "gcs", "gs": "gcs", "azure": "azure", "file": "file"}
# Keys of sources and targets; an unknown key that is similar to one of these is reported as a typo.
_KEYS = frozenset({
    "kind", "table", "path", "file", "uri", "url", "endpoint", "key", "keys", "mode", "mapping", "on_error",
    "create", "data", "format", "auth", "credential", "bucket", "provider", "container", "database", "db_path",
    "dsn", "host", "port", "user", "password", "sslmode", "schema", "method", "headers", "json", "form", "body",
    "params", "payload", "verify", "ca", "cert", "proxy", "query", "sql", "command", "statement", "types", "pages",
    "retry", "chunk", "ref", "rows_path", "name", "content_type", "spec", "timeout", "multipart", "redirects",
    "type", "locator", "meta", "auth_reference", "partition_by", "compression", "only_new", "glob", "sheet", "widths",
    "encoding", "incremental", "bad_rows", "quarantine", "max_bad_rows", "nested", "resume",
})  # fmt: skip
_FORMAT_KINDS = ("parquet", "csv", "json")


class SourcePlan(NamedTuple):
    """The source of a transfer."""

    kind: str
    fields: dict[str, Any]
    plugin: SourceSpec | None = None


class StaticData(NamedTuple):
    """Data that a target receives once, instead of the source's rows."""

    data: Any


class TargetPlan(NamedTuple):
    """One target of a transfer."""

    number: int
    kind: str
    fields: dict[str, Any]
    mode: str = "append"
    key: tuple[str, ...] = ()
    mapping: dict[str, Any] | None = None
    warn_on_error: bool = False
    create_table: bool = True
    static: StaticData | None = None
    plugin: TargetSpec | None = None
    schema: SchemaContract | None = None
    nested: str = "json"
    own_bad_rows: Mapping[str, Any] = MappingProxyType({})  # as the target has them
    bad_rows: BadRowsPlan | None = None
    must_exist: str = ""  # why a table is not created

    @property
    def commits(self) -> bool:
        """Whether the rows can be rolled back until the target commits."""
        return self.kind in DATABASES if self.plugin is None else self.plugin.transactional

    @property
    def place(self) -> str:
        """The field with the table, path or URL."""
        names = ("table", "uri", "url") if self.plugin is None else (self.plugin.place,)
        return next((name for name in names if self.fields.get(name)), names[0])

    @property
    def location(self) -> str:
        """The table, path or URL, as in the playbook."""
        return str(self.fields.get(self.place) or "")

    @property
    def quote(self) -> str:
        """Around names in the name of the table."""
        return '"' if self.plugin is None else self.plugin.quote

    @property
    def label(self) -> str:
        """The name of the target in messages."""
        return f"target {self.number} ({self.kind} {self.location})"

    def check_key(self, columns: Sequence[str]) -> None:
        """BadInput if the rows have no column for the key."""
        missing = [name for name in self.key if name not in columns]
        if missing:
            raise BadInput(
                f"{self.label}: the key {missing[0]!r} is not a column of the rows; columns: {', '.join(columns)}"
            )

    def missing_table_error(self) -> BadInput:
        """The error for a table that does not exist and may not be created."""
        return BadInput(f"{self.label}: the table does not exist, and {self.must_exist or '`create` is false'}")

    def missing_key_error(self) -> RowError:
        """The error for a row whose key is null: null equals nothing, so the row could not be matched."""
        return RowError(
            f"{self.label}: a row has no value for the key ({', '.join(self.key)}); upsert requires one in every row"
        )


class BadRowsPlan(NamedTuple):
    """Where bad rows are written (`bad_rows: quarantine`), and how many or which share of all rows may be bad."""

    quarantine: TargetPlan
    most: int | None = None
    share: Fraction | None = None
    is_folder: bool = False


class Plan(NamedTuple):
    """A transfer; without a source all targets have static data."""

    source: SourcePlan | None
    targets: tuple[TargetPlan, ...]
    size: int
    path: str | None
    bad_rows: BadRowsPlan | None = None  # of the source
    sized: bool = False  # whether the playbook sets the size of a chunk

    @property
    def evolves(self) -> bool:
        """Whether later rows may have columns and types that the first ones do not have."""
        return any(target.schema is not None or target.nested == "tables" for target in self.targets)


def read_plan(call: ToolCall) -> Plan:
    """The transfer that a task's fields describe; BadInput if they are invalid."""
    given = call.input
    targets = given.get("targets")
    if isinstance(targets, Mapping):
        targets = [targets]
    if not isinstance(targets, list | tuple) or not targets:
        raise BadInput("no targets: `targets` is a list of {kind, table|path|url, ...}")
    if given.get("mode"):  # of the task: the default of its targets
        targets = [{"mode": given["mode"], **each} if isinstance(each, Mapping) else each for each in targets]
    if isinstance(given.get("incremental"), Mapping):  # other names may be values that templates read
        raise BadInput(side_fields.IN_SOURCE["incremental"])
    planned = tuple(read_target(number, target) for number, target in enumerate(targets))
    if given.get("source") is None and given.get("data") is None and all(target.static for target in planned):
        return Plan(None, planned, SMALL_ROWS, None)
    source = _source(given)
    chunk = given.get("chunk") or source.fields.get("chunk") or {}
    if not isinstance(chunk, Mapping):
        chunk = {"size": chunk}
    if given.get("chunk_size") is not None:
        chunk = {"size": given["chunk_size"], **chunk}
    if any(target.kind == "http" for target in planned):
        default = HTTP_ROWS
    else:
        default = SMALL_ROWS if source.kind in ("http", "data", "sqlite") else BULK_ROWS
    path = (
        chunk.get("path")
        or source.fields.get("rows_path")
        or (source.fields.get("path") if source.kind == "http" else None)
    )
    size = chunk.get("size")
    return Plan(source, planned, _chunk_size(size, default), str(path) if path else None, sized=size not in (None, ""))


def _source(given: Mapping[str, Any]) -> SourcePlan:
    source, data = given.get("source"), given.get("data")
    if source is None and data is not None:
        return SourcePlan("data", {"data": data})
    if isinstance(source, list) or elements_of(source) is not source:
        return SourcePlan("data", {"data": source})
    if not isinstance(source, Mapping):
        raise BadInput("no source: set `source` to {kind, ...}, or `data` to a list of rows")
    fields = {name: plain_strings(each) for name, each in source.items()}
    if {"type", "locator"} <= set(fields):
        return SourcePlan("data", {"data": fields})
    kind = _written_kind(fields) or _infer_kind(fields)
    plugin = connectors.sources().get(str(kind or "").lower())
    if plugin is not None:
        return SourcePlan(plugin.kind, _plugin_fields(fields, side_fields.plugin_source(plugin), "source"), plugin)
    _reject_typos(source, "the source")
    _reject_misplaced(side_fields.SOURCES.get(str(kind or "").lower()), fields, "the source")
    return SourcePlan(_normalize(kind, "source", fields), fields)


def _key(what: str, fields: dict[str, Any]) -> tuple[str, ...]:
    """The columns that identify a row."""
    key = fields.pop("key", None) or fields.pop("keys", None) or ()
    if not isinstance(key, str | list | tuple):
        raise BadInput(f"{what}: `key` must be a column or a list of columns, not {key!r}")
    return (key,) if isinstance(key, str) else tuple(str(name) for name in key)


def read_target(number: int, target: Any, what: str = "") -> TargetPlan:
    """One target of a transfer; BadInput if its fields are invalid."""
    what = what or f"target {number}"
    if not isinstance(target, Mapping):
        raise BadInput(f"{what} must be a mapping {{kind, table|path|url, mode, ...}}, not {type(target).__name__}")
    fields = {
        name: each if name == "mapping" else plain_strings(each)
        for name, each in target.items()
        if name not in BAD_ROWS_FIELDS
    }
    written = _written_kind(fields) or _infer_kind(fields)
    plugin = connectors.targets().get(str(written or "").lower())
    if plugin is not None:
        fields = _plugin_fields(fields, side_fields.plugin_target(plugin), what)
        kind = plugin.kind
    else:
        _reject_typos(target, what)
        _reject_misplaced(side_fields.TARGETS.get(str(written or "").lower()), fields, what)
        kind = _normalize(written, what, fields)
    if kind == "data":
        raise BadInput(f"{what}: {target.get('kind')!r} cannot be a target")
    default_mode = plugin.modes[0] if plugin is not None else "replace" if kind == "object" else "append"
    mode = str(fields.pop("mode", None) or default_mode).lower()
    if mode not in MODES:
        raise BadInput(f"{what}: mode {mode!r} is not one of {', '.join(MODES)}")
    key = _key(what, fields)
    _check_mode(what, kind, mode, key, plugin, partitioned=bool(fields.get("partition_by")))
    mapping = fields.pop("mapping", None)
    if mapping is not None and not isinstance(mapping, Mapping):
        raise BadInput(f"{what}: `mapping` must map target columns to source columns or to templates over `row`")
    on_error = str(fields.pop("on_error", None) or "fail").lower()
    if on_error not in (*ON_ERROR, *OTHER_ON_ERROR):
        raise BadInput(f"{what}: on_error {on_error!r} is not one of {', '.join(ON_ERROR)}")
    create_table = flag(fields.pop("create", None), True)
    static = StaticData(fields.pop("data")) if "data" in fields else None
    if static is not None and is_deferred(static.data):
        raise BadInput(f"{what}: `data` is written once and cannot read `chunk` or `row`")
    schema = _contract(what, kind, plugin, fields)
    columns = dict(mapping) if mapping else None
    warns = on_error != "fail"
    own = plain_strings({name: target[name] for name in BAD_ROWS_FIELDS if target.get(name) is not None})
    nested = _nested(what, kind, plugin, fields)
    plan = TargetPlan(
        number, kind, fields, mode, key, columns, warns, create_table, static, plugin, schema, nested, own
    )
    if nested == "tables" and warns:
        raise BadInput(f"{what}: `nested: tables` writes all tables in one transaction; remove `on_error: continue`")
    if not plan.location:
        place = plugin.place if plugin is not None else _LOCATION_KEYS.get(kind, "table")
        raise BadInput(f"{what}: {kind} requires `{place}`")
    return plan


def _nested(what: str, kind: str, plugin: TargetSpec | None, fields: dict[str, Any]) -> str:
    if plugin is not None and not plugin.nests:
        return "json"  # `nested` is a field of its own, or an unknown one
    nested = str(fields.pop("nested", None) or "json").lower()
    if nested not in NESTED:
        raise BadInput(f"{what}: nested {nested!r} is not one of {', '.join(NESTED)}")
    is_file = kind == "object" and formats.format_of(path=str(fields.get("uri"))) in compression.COLUMNAR
    is_table = kind in DATABASES or plugin is not None
    if nested == "tables" and not (is_table or (is_file and not is_deferred(fields))):
        raise BadInput(
            f"{what}: `nested: tables` is for tables of {', '.join(DATABASES)}, of plug-ins that support it, and for "
            "single files NAME.parquet and NAME.arrow"
        )
    if nested == "tables" and fields.get("partition_by"):
        raise BadInput(f"{what}: `nested: tables` cannot be combined with `partition_by`")
    return nested


def _plugin_fields(fields: dict[str, Any], members: Members, what: str) -> dict[str, Any]:
    """The fields of a side of a plug-in under their declared names; BadInput for one that is not declared."""
    _reject_misplaced(members, fields, what)
    named = connectors.named_fields(members.fields, fields)
    for key in named:
        if key not in members.fields:
            similar = get_close_matches(str(key), members.fields, 1, 0.7)
            hint = f"did you mean `{similar[0]}`?" if similar else f"it has {', '.join(sorted(members.fields))}"
            raise BadInput(f"{what} has no `{key}`: {hint}")
    return named


def _contract(what: str, kind: str, plugin: TargetSpec | None, fields: dict[str, Any]) -> SchemaContract | None:
    if plugin is not None and not plugin.evolves:
        return None  # `schema` is a field of its own, or an unknown one
    contract = read_contract(fields.pop("schema", None), what)
    if contract is not None and kind == "http":
        raise BadInput(f"{what}: {kind} has no columns; `schema` is for tables and files")
    return contract


def _check_mode(
    what: str, kind: str, mode: str, key: tuple[str, ...], plugin: TargetSpec | None, *, partitioned: bool
) -> None:
    if plugin is not None:
        if ("append" if mode == "insert" else mode) not in plugin.modes:
            raise BadInput(f"{what}: {kind} has no mode {mode!r}; its modes are {', '.join(plugin.modes)}")
    elif mode == "upsert" and kind not in DATABASES:
        raise BadInput(f"{what}: mode upsert is supported only by databases")
    elif partitioned and kind != "object":
        raise BadInput(f"{what}: `partition_by` is for files and objects")
    if mode in ("append", "insert") and kind == "object" and not partitioned:
        raise BadInput(
            f"{what}: a file is written as a whole, its only mode is replace; for one file per chunk put "
            "{{ chunk.index }} in the path, for files that are added to a folder use `partition_by`"
        )
    if mode == "replace" and kind == "http":
        raise BadInput(f"{what}: mode replace is not supported by http; use append")
    if mode == "upsert" and not key:
        raise BadInput(f"{what}: mode upsert requires `key`, the column (or columns) that identify a row")


def _reject_misplaced(members: Members | None, given: Mapping[str, Any], what: str) -> None:
    """BadInput for a field that means something at another place: it would have no effect."""
    if members is None:
        return
    aliases = {alias for each in members.fields.values() for alias in each.aliases}
    for key in given:
        if key in members.elsewhere and key not in members.fields and key not in aliases:
            raise BadInput(f"{what} has no `{key}`: {members.elsewhere[key]}")


def _reject_typos(given: Mapping[str, Any], what: str) -> None:
    for key in given:
        similar = get_close_matches(str(key), _KEYS, 1, 0.85) if key not in _KEYS else []
        if similar:
            raise BadInput(f"{what} has no `{key}`: did you mean `{similar[0]}`?")


_LOCATION_KEYS = {"object": "path", "http": "url"}
_ALIASES = {  # kind -> (key, its aliases)
    "object": ("uri", ("path", "file", "key", "glob")),
    "http": ("url", ("endpoint", "uri")),
    "duckdb": ("file", ("database", "db_path", "path")),
    "sqlite": ("file", ("database", "db_path", "path")),
}


def _normalize(kind: Any, what: str, fields: dict[str, Any]) -> str:
    """The kind without aliases; renames aliased keys in `fields`."""
    name = str(kind or "").lower()
    normalized = KINDS.get(name)
    if normalized is None:
        broken = connectors.problems().get(name)
        if broken is not None:
            raise BadInput(f"{what}: {broken.message}")
        if install_hint(name):
            raise BadInput(f"{what}: kind {name!r} requires a plug-in that is not installed: {install_hint(name)}")
        plugged = {**connectors.sources(), **connectors.targets()}
        choices = ", ".join(["postgres, duckdb, sqlite, http, object (s3, gcs, azure, file)", *sorted(plugged)])
        raise BadInput(f"{what}: kind {kind!r} is not one of {choices}")
    if name in _PROVIDERS:
        fields.setdefault("provider", _PROVIDERS[name])
    if name in _FORMAT_KINDS:
        fields.setdefault("format", name)
    if normalized in _ALIASES:
        key, aliases = _ALIASES[normalized]
        for alias in aliases:
            if key not in fields and isinstance(fields.get(alias), str):
                fields[key] = fields.pop(alias)
    for alias, key in (("credential", "auth"), ("sql", "query"), ("command", "query"), ("statement", "query")):
        if alias in fields:
            fields.setdefault(key, fields.pop(alias))
    return normalized


def _written_kind(fields: dict[str, Any]) -> Any:
    """The kind of a side; `type` is its older name."""
    kind, older = fields.pop("kind", None), fields.pop("type", None)
    return kind or older


def _infer_kind(fields: Mapping[str, Any]) -> str | None:
    """The kind that the keys imply, if `kind` is not set."""
    return next((kind or None for key, kind in IMPLIED_KINDS.items() if fields.get(key)), None)


def plain_strings(value: Any) -> Any:
    """The value with strings rendered by templates as ordinary strings."""
    if isinstance(value, Rendered):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain_strings(each) for key, each in value.items()}
    return [plain_strings(each) for each in value] if isinstance(value, list | tuple) else value


def _chunk_size(value: Any, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = 0
    if size < 1:
        raise BadInput(f"chunk.size must be a positive number of rows, not {value!r}")
    return size


def is_deferred(value: Any) -> bool:
    """Whether a value contains a template that is evaluated for each chunk or row."""
    if isinstance(value, DeferredTemplate):
        return True
    if isinstance(value, Mapping):
        return any(is_deferred(each) for each in value.values())
    return isinstance(value, list | tuple) and any(is_deferred(each) for each in value)
