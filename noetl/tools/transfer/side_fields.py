"""The fields of the sides of a transfer, by kind; the validator reports what a side does not have. Cheap to import."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.connector import SourceSpec, TargetSpec
from noetl.core.model.durations import DURATION
from noetl.core.model.tool import Field, Members
from noetl.data.files.formats import FORMATS, OTHER_NAMES
from noetl.data.types.type_names import CHOICES, PATTERN
from noetl.tools._common.http_fields import REQUEST_FIELDS
from noetl.tools._common.sql_fields import DATABASE_FILE, POSTGRES_CONNECTION

KINDS = {
    "postgres": "postgres", "postgresql": "postgres", "duckdb": "duckdb", "sqlite": "sqlite",
    "http": "http", "https": "http", "api": "http", "webhook": "http",
    "object": "object", "s3": "object", "gcs": "object", "gs": "object", "azure": "object", "file": "object",
    "object_store": "object", "parquet": "object", "csv": "object", "json": "object",
    "data": "data", "ref": "data", "reference": "data",
}  # fmt: skip
# The kind that a key implies if `kind` is not given, in this order.
IMPLIED_KINDS = {
    "url": "http", "endpoint": "http", "ref": "data", "data": "data", "uri": "object", "table": "", "path": "object",
}  # fmt: skip
MODES = ("append", "replace", "upsert")
COLUMNS = ("evolve", "freeze", "discard_value", "discard_row")  # schema contracts
TYPES = ("evolve", "freeze")
ON_ERROR = ("fail", "continue")
OTHER_ON_ERROR = ("warn", "ignore")  # older spellings of `continue`
NESTED = ("json", "tables")
BAD_ROWS = ("fail", "quarantine")
BAD_ROWS_FIELDS = {
    "bad_rows": Field(
        "string",
        "What happens to a row that cannot be read, converted or written: it fails the transfer, or is written to the "
        "quarantine.",
        choices=BAD_ROWS,
    ),
    "quarantine": Field(
        "mapping",
        "Where bad rows go: `{kind, table|path}` as a target; without `kind`, a table in the database of the target. "
        "Its columns are `row reason source position target execution_id quarantined_at id`.",
    ),
    "max_bad_rows": Field(
        "any",
        "How many rows may be bad: a number, or a share of all rows such as `1%`.",
        accepts=("number", "string"),
        pattern=r"\d+|(100|\d{1,2}(\.\d+)?) ?%",
    ),
}

SCHEMA = Field(
    "any",
    "The schema contract: `{columns: evolve|freeze|discard_value|discard_row, types: evolve|freeze}`, or one word. "
    "What happens to columns that the table does not have, and to values that need a wider type.",
    choices=COLUMNS,
    members=Members(
        fields={
            "columns": Field("string", "New columns: add them, reject them, leave out value or row.", choices=COLUMNS),
            "types": Field("string", "Values of a wider type: change the column, or reject them.", choices=TYPES),
        }
    ),
)
CHUNK = Members(
    fields={
        "size": Field("integer", "Rows per chunk.", least=1),
        "path": Field("string", "The path of the rows in a JSON document."),
    }
)
INCREMENTAL = Members(
    fields={
        "cursor": Field("string", "The column whose greatest loaded value is remembered.", required=True),
        "initial": Field("any", "The value of the cursor at which the first load starts; default: all rows."),
        "lag": Field(
            "any",
            "Reads again what is this much older than the cursor (`5m`, or a number); needs upsert.",
            accepts=("number", "string"),
            pattern=DURATION,
        ),
        "name": Field("string", "The name of this cursor if a task has several, as in a parallel loop."),
        "resume": Field(
            "boolean",
            "`true` (default): pages of an API are committed as they arrive, and a load that was stopped continues "
            "after the last one. `false`: one transaction.",
        ),
    }
)
PAGES = Members(
    fields={
        "link": Field("boolean", "`true`: follow the header `Link` with `rel=next`, as `pages: link`."),
        "next": Field(
            "any",
            "The next page, a template over `page` (`{{ page.data.next_url }}`): a URL, a mapping of query parameters, "
            "or the value of `param`. An empty value ends the pages.",
        ),
        "param": Field("string", "The query parameter with the number of the page, or with the value of `next`."),
        "start": Field("any", "The first value of `param`: 1 without it; an offset starts with 0."),
        "step": Field(
            "integer",
            "What is added to `param` for the next page: 1; for an offset, the rows of a page. It needs `start`.",
            least=1,
        ),
        "size": Field("integer", "The rows of a full page: a shorter one is the last.", least=1),
        "last": Field("integer", "The number of the last page."),
        "until": Field("any", "A template over `page` that is true for the last page."),
        "ahead": Field("integer", "How many numbered pages are requested at a time: 2.", least=1),
    },
    requires=(("link", "next", "param"),),
)
RETRY = Members(
    fields={
        "attempts": Field("integer", "How often a request is sent: 3, and 1 if it is no GET or HEAD.", least=1),
        "delay": Field("number", "Seconds before the second attempt, doubled for each further one: 0.5.", least=0),
    }
)
_SIDE = {
    "kind": Field("string", "The kind of the source or target.", aliases=("type",)),
    "name": Field("string", "A name, for the reader."),
    "desc": Field("string", "What it is for."),
    "auth": Field(
        "any", "The credential: its name, or its fields.", aliases=("credential",), accepts=("string", "mapping")
    ),
    "spec": Field("mapping", "Settings of the connection, such as `timeout`."),
}
_SOURCE = {
    **_SIDE,
    "types": Field(
        "mapping",
        "Column -> type, where the rows do not determine it: `text boolean smallint bigint double numeric "
        "decimal(p, s) date time timestamp timestamptz interval uuid json bytes`, and arrays such as `bigint[]`.",
        each=Field("string", f"types: {CHOICES}", pattern=PATTERN),
    ),
    "chunk": Field("any", "`{size, path}`, as beside `source`.", members=CHUNK),
    "incremental": Field(
        "mapping",
        "Read only rows that are new since the last load: `{cursor, initial, lag, name, resume}`. The cursor is kept "
        "in `state`.",
        members=INCREMENTAL,
    ),
}
_QUERY = {
    "query": Field(
        "string", "The query; with `incremental` it can read `{{ cursor }}`.", aliases=("sql", "command", "statement")
    ),
    "table": Field("string", "The table (`schema.table`), instead of a query."),
    "params": Field("any", "Bind parameters of the query.", accepts=("mapping", "list"), aliases=("parameters",)),
}
_FILE = {"file": replace(DATABASE_FILE, aliases=(*DATABASE_FILE.aliases, "path"))}
_HTTP = {name: declared for name, declared in REQUEST_FIELDS.items() if name != "auth"}
_COMPRESSION = Field(
    "string",
    "`gzip`, `zstd`, `bz2` or `xz` for CSV and JSON (default: by the extension); inside Parquet `zstd` (default), "
    "`gzip`, `snappy` or `none`.",
    choices=("gzip", "zstd", "bz2", "xz", "snappy", "none"),
    also=("gz", "zst", "bzip2", "auto"),
)
_OBJECT = {
    "compression": _COMPRESSION,
    "uri": Field("string", "The address (`s3://bucket/key`) or path.", aliases=("path", "file", "key", "url")),
    "format": Field(
        "string", "The format; default: by the extension, else Parquet.", choices=FORMATS, also=OTHER_NAMES
    ),
    "provider": Field("string", "`s3`, `gcs`, `azure` or `file`, if the address does not contain it."),
    "bucket": Field("string", "The bucket or container, if the address does not contain it.", aliases=("container",)),
    "content_type": Field("string", "Content type of the object."),
}
_DATA = {
    "data": Field("any", "The rows: a list of mappings, or a result of a SQL task."),
    "ref": Field("any", "The reference of a stored result (`output.ref`)."),
}
_OF_SOURCE = ("incremental", "types", "only_new")
_OF_TARGET = ("mode", "key", "schema", "nested", "mapping", "partition_by")
IN_SOURCE = {name: f"`{name}` belongs to the source: `source: {{{name}: ...}}`" for name in _OF_SOURCE}
IN_TARGET = {name: f"`{name}` belongs to a target: `targets: [{{{name}: ...}}]`" for name in _OF_TARGET}
IN_TASK = {name: f"`{name}` belongs beside `source`, or to a target" for name in BAD_ROWS_FIELDS}


def _source(fields: dict[str, Field], *requires: tuple[str, ...]) -> Members:
    alternatives = (("query", "table"),) if "query" in fields else ()
    return Members(
        fields={**_SOURCE, **fields},
        requires=requires,
        alternatives=alternatives,
        elsewhere={**IN_TARGET, **IN_TASK},
    )


MODE_DOCS = {
    "append": "`append` adds rows",
    "replace": "`replace` removes the rows that are there",
    "upsert": "`upsert` updates rows with the same `key` and inserts the others",
}


def _modes(modes: tuple[str, ...]) -> str:
    return f"{'; '.join(MODE_DOCS.get(mode, f'`{mode}`') for mode in modes)}. Default: `{modes[0]}`."


def _target(fields: dict[str, Field], modes: tuple[str, ...], also: tuple[str, ...], location: str) -> Members:
    known = {
        **_SIDE,
        **fields,
        "mode": Field("string", _modes(modes), choices=modes, also=also),
        "key": Field(
            "any",
            "The column, or a list of columns, that identifies a row; `upsert` requires it.",
            accepts=("string", "list"),
            aliases=("keys",),
        ),
        "mapping": Field(
            "mapping",
            "Target column -> source column, a template over `row`, or `{value: ...}`; other columns are left out.",
        ),
        "on_error": Field(
            "string",
            "`fail` (default): an error of this target fails the transfer. `continue`: it is logged and counted, and "
            "the other targets go on.",
            choices=ON_ERROR,
            also=OTHER_ON_ERROR,
        ),
        "create": Field(
            "boolean", "`false`: a table or place that does not exist is an error (default: it is created)."
        ),
        "data": Field("any", "Content that is written once to this target, instead of the source's rows."),
        "schema": SCHEMA,
        **BAD_ROWS_FIELDS,
    }
    if location == "uri":
        known["uri"] = replace(fields["uri"], required=True)
        known.pop("key")
        parts: dict[str, dict[str, tuple[str, ...]]] = {"mode": dict.fromkeys(("append", "insert"), ("partition_by",))}
        return Members(fields=known, required_by=parts, elsewhere=IN_SOURCE)
    if location == "url":
        known.pop("schema")
    known[location] = replace(known[location], required=True)
    return Members(fields=known, required_by={"mode": {"upsert": ("key",)}}, elsewhere=IN_SOURCE)


UNITS = ("year", "month", "week", "day", "hour")
_PARTITIONING = rf"""[^(]*|date_trunc\( ?'({"|".join(UNITS)})' ?, ?("[^"]+"|\w+) ?\)( as \w+)?"""
PARTITION_BY = Field(
    "any",
    "Columns, or expressions `date_trunc('day', column)`, that divide the rows into folders `name=value/`. `mode: "
    "replace` replaces the partitions of the rows, `append` adds files to them.",
    accepts=("string", "list"),
    pattern=_PARTITIONING,
    each=Field(
        "any",
        f"A column, or `date_trunc('day', column)`, `date_trunc('day', column) as name`; units: {', '.join(UNITS)}.",
        accepts=("string",),
        pattern=_PARTITIONING,
    ),
)
_TABLE = {"table": Field("string", "The table (`schema.table`); it is created if it does not exist.")}
_NESTED = {
    "nested": Field(
        "string",
        "Objects and lists in a row: kept as JSON (default), or members as columns (`to__city`) and lists as child "
        "tables (`orders__items`), beside a Parquet or Arrow file as files (`orders__items.parquet`).",
        choices=NESTED,
    )
}
_SOURCES = {
    "postgres": _source({**_QUERY, **POSTGRES_CONNECTION}, ("query", "table")),
    "duckdb": _source({**_QUERY, **_FILE}, ("query", "table")),
    "sqlite": _source({**_QUERY, **_FILE}, ("query", "table")),
    "http": _source(
        {
            **_HTTP,
            "pages": Field(
                "any",
                "How further pages are requested: `link`, `{next}` or `{param, start, step}`; default: one request.",
                choices=("link",),
                members=PAGES,
            ),
            "rows_path": Field(
                "string", "The path of the rows in the response, such as `data.items`.", aliases=("path",)
            ),
            "retry": Field("mapping", "Retries of a request that fails: `{attempts, delay}`.", members=RETRY),
        },
        ("url",),
    ),
    "object": _source(
        {
            **_OBJECT,
            "uri": replace(
                _OBJECT["uri"],
                doc="The address (`s3://bucket/key`) or path; `*`, `**`, `?`, `[ab]` and `{a,b}` match several.",
                aliases=(*_OBJECT["uri"].aliases, "glob"),
            ),
            "format": replace(_OBJECT["format"], choices=(*FORMATS, "excel", "fixed")),
            "rows_path": Field("string", "The path of the rows in a JSON file."),
            "only_new": Field(
                "boolean", "Load only objects, or versions of them, that were not loaded into the target table before."
            ),
            "resume": Field(
                "boolean",
                "With `only_new`: objects are committed in groups, and a load that was interrupted continues with the "
                "others (default). `false`: all objects in one transaction.",
            ),
            "sheet": Field("any", "Excel: the name of the sheet, or its number from 0 (default: the first)."),
            "header_row": Field(
                "integer",
                "Excel: the row with the names, as numbered in the sheet (default: the first that is not "
                "empty); rows before it are not read.",
                least=1,
            ),
            "widths": Field("mapping", "Format `fixed`: column -> number of characters, in the order of the file."),
            "encoding": Field(
                "string",
                "The encoding of CSV, JSON and text of fixed width, such as `latin-1`, `cp1252` or `utf-16` (UTF-8).",
            ),
        },
        ("uri",),
    ),
    "data": _source(_DATA, ("data", "ref")),
}
_TARGETS = {
    "postgres": _target({**_TABLE, **_NESTED, **POSTGRES_CONNECTION}, MODES, ("insert",), "table"),
    "duckdb": _target({**_TABLE, **_NESTED, **_FILE}, MODES, ("insert",), "table"),
    "sqlite": _target({**_TABLE, **_NESTED, **_FILE}, MODES, ("insert",), "table"),
    "http": _target({name: each for name, each in _HTTP.items() if name != "key"}, ("append",), ("insert",), "url"),
    "object": _target({**_OBJECT, **_NESTED, "partition_by": PARTITION_BY}, ("replace", "append"), ("insert",), "uri"),
}
SOURCES = {name: _SOURCES[kind] for name, kind in KINDS.items()}
TARGETS = {name: _TARGETS[kind] for name, kind in KINDS.items() if kind in _TARGETS}


def plugin_source(spec: SourceSpec) -> Members:
    """The members of a source that a plug-in adds."""
    return replace(_source(spec.fields, *spec.requires), required_by=spec.required_by)


def plugin_target(spec: TargetSpec) -> Members:
    """The members of a target that a plug-in adds."""
    also = ("insert",) if "append" in spec.modes else ()
    fields = {"table": _TABLE["table"], **spec.fields} if spec.place == "table" else spec.fields
    members = _target(fields, spec.modes, also, spec.place)
    if spec.nests:
        members = replace(members, fields={**members.fields, **_NESTED})
    if not spec.evolves:
        own = {"schema": spec.fields["schema"]} if "schema" in spec.fields else {}
        others = {name: each for name, each in members.fields.items() if name != "schema"}
        members = replace(members, fields={**others, **own})
    return members if "upsert" in spec.modes else replace(members, required_by={})
