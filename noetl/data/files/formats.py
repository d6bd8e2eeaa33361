"""Formats of content: their names, their content types, and how the format of a file is determined."""

from __future__ import annotations

from typing import Any

from noetl.data.files.compression import without_ending

JSON = "application/json"
JSONL = "application/x-ndjson"
CSV = "text/csv"
TEXT = "text/plain"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"

CONTENT_TYPES = {
    "json": JSON,
    "jsonl": JSONL,
    "csv": CSV,
    "text": TEXT,
    "parquet": PARQUET,
    "arrow": ARROW,
    "bytes": BYTES,
}
TABULAR = ("jsonl", "csv", "parquet", "arrow")
_BY_TYPE = {
    JSON: "json", "text/json": "json",
    JSONL: "jsonl", "application/jsonl": "jsonl", "application/json-lines": "jsonl", "application/jsonlines": "jsonl",
    CSV: "csv", "application/csv": "csv", PARQUET: "parquet", "application/x-parquet": "parquet", ARROW: "arrow",
    "application/vnd.apache.arrow.file": "arrow",
}  # fmt: skip
_BY_ENDING = {
    "json": "json", "geojson": "json", "jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "tsv": "csv",
    "parquet": "parquet", "pq": "parquet", "arrow": "arrow", "arrows": "arrow", "feather": "arrow",
    "txt": "text", "md": "text", "sql": "text", "html": "text", "xml": "text", "yaml": "text", "yml": "text",
    "log": "text",
}  # fmt: skip
ALIASES = {
    "ndjson": "jsonl",
    "json_lines": "jsonl",
    "jsonlines": "jsonl",
    "binary": "bytes",
    "raw": "bytes",
    "txt": "text",
}
FORMATS = tuple(CONTENT_TYPES)
OTHER_NAMES = (*ALIASES, "auto")  # accepted beside FORMATS


def format_of(
    *, given: Any = None, content_type: str | None = None, path: str | None = None, default: str = "bytes"
) -> str:
    """The given format, else that of a file's extension, else that of a content type."""
    if given not in (None, "", "auto"):
        named = ALIASES.get(str(given).lower(), str(given).lower())
        if named not in CONTENT_TYPES:
            raise ValueError(f"format {given!r} is not one of {', '.join(FORMATS)}")
        return named
    if path:
        ending = without_ending(path).rpartition(".")[2].lower()
        if ending in _BY_ENDING:
            return _BY_ENDING[ending]
    if content_type:
        bare = content_type.partition(";")[0].strip().lower()
        if bare in _BY_TYPE:
            return _BY_TYPE[bare]
        if bare.endswith("+json"):
            return "json"
        if bare.startswith("text/"):
            return "text"
    return default
