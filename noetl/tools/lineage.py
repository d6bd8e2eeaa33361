"""The datasets that a task has read and written, for the lineage of data.

The record is part of the outcome's `meta` (`lineage: {inputs, outputs}`) and so of the event log. A dataset has a
namespace and a name (`noetl.tools.dataset_names`), and where they are known, columns (`fields`) and rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from noetl.connections.auth import BadAuth
from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import ToolCall
from noetl.errors import NoetlError
from noetl.tools.dataset_names import (
    SQL_KINDS,
    Dataset,
    database_datasets,
    dataset_of,
    dialect_of,
    file_datasets,
    located,
    query_of,
    side_datasets,
    tables_in,
)

KINDS = SQL_KINDS | {"transfer", "object", "s3", "gcs", "azure", "object_store"}
MAX_DATASETS, MAX_FIELDS = 100, 500
_COMMANDS = ("command", "commands", "query", "queries", "sql", "statement", "statements")
_WRITING = frozenset({"insert", "replace", "update", "merge", "copy"})  # their row count is that of rows written


async def with_lineage(call: ToolCall, outcome: Outcome) -> Outcome:
    """The outcome with the datasets of the task in its `meta`."""
    try:
        if call.kind == "transfer":
            inputs, outputs = await _transfer(call, outcome)
        elif call.kind in SQL_KINDS:
            inputs, outputs = await _sql(call, outcome)
        else:
            inputs, outputs = await _object(call)
    except (BadAuth, NoetlError, ValueError):
        inputs, outputs = [], []  # the task itself has failed for the same reason
    meta = {name: value for name, value in outcome.meta.items() if name != "datasets"}
    if inputs or outputs:
        meta["lineage"] = {"inputs": inputs[:MAX_DATASETS], "outputs": outputs[:MAX_DATASETS]}
    return replace(outcome, meta=meta)


async def _transfer(call: ToolCall, outcome: Outcome) -> tuple[list[Dataset], list[Dataset]]:
    """The datasets of a transfer; those of a failed one have neither rows nor columns."""
    given, done = call.input, outcome.meta.get("datasets", {})
    source = given.get("source")
    inputs: list[Dataset] = []
    if isinstance(source, Mapping):
        inputs = await side_datasets(call, source)
        if len(inputs) == 1 and "source" in done and not query_of(source):  # a query has columns of its own
            _add_facts(inputs[0], *done["source"])
    targets = given.get("targets", given.get("target"))
    targets = targets if isinstance(targets, list | tuple) else [targets]
    written = done.get("targets", [])
    outputs: list[Dataset] = []
    for number, target in enumerate(targets):
        if isinstance(target, Mapping):
            outputs += await _written_data(call, target, written[number] if number < len(written) else [])
    return inputs, outputs + await _quarantines(call, done.get("quarantines", []))


async def _written_data(call: ToolCall, target: Mapping[str, Any], written: list[Any]) -> list[Dataset]:
    """The dataset of a target, and those of its child tables or files."""
    found = await side_datasets(call, target)
    for (place, *facts), is_child in zip(written, (False, *[True] * len(written)), strict=False):
        if is_child:
            found += await side_datasets(call, {**target, "table" if target.get("table") else "uri": place})
        if found:
            _add_facts(found[-1], *facts)
    return found


async def _quarantines(call: ToolCall, written: list[Any]) -> list[Dataset]:
    """The tables and files of bad rows."""
    from noetl.tools.transfer.quarantine.bad_rows_plan import quarantine_plans, with_bad_rows
    from noetl.tools.transfer.transfer_plan import read_plan

    found: list[Dataset] = []
    try:
        plans = quarantine_plans(with_bad_rows(call, read_plan(call))).values()
    except ValueError:
        return []  # the task itself has failed for the same reason
    for number, plan in enumerate(plans):
        side = {**plan.quarantine.fields, "kind": plan.quarantine.kind}
        if plan.is_folder:
            side["uri"] = side["uri"].rpartition("/")[0]
        for each in await side_datasets(call, side):
            if number < len(written):
                _add_facts(each, *written[number][1:])
            found.append(each)
    return found


def _add_facts(dataset: Dataset, rows: int, columns: Mapping[str, str]) -> None:
    """Add rows and columns, where they are known."""
    dataset["rows"] = rows
    if columns:
        dataset["fields"] = [{"name": name, "type": type} for name, type in columns.items()][:MAX_FIELDS]


async def _sql(call: ToolCall, outcome: Outcome) -> tuple[list[Dataset], list[Dataset]]:
    text = ";\n".join(_texts(next((call.input[name] for name in _COMMANDS if call.input.get(name)), None)))
    found = tables_in(text, call.kind)
    given = call.input.get("tables") if call.kind == "duckdb" else None
    given = given if isinstance(given, Mapping) else {}
    reads = tuple(name for name in found.reads if name not in given)  # rows, results and files that the task names
    files = (*(each for each in given.values() if isinstance(each, str)), *found.files_read)
    inputs = await database_datasets(call, call.kind, call.input, found._replace(reads=reads), text)
    outputs = await database_datasets(call, call.kind, call.input, found._replace(reads=found.writes), text)
    written = _written_rows(text, call.kind, outcome)
    for name, dataset in outputs:
        if name in written:
            dataset["rows"] = written[name]
    return (
        [dataset for _, dataset in inputs] + await file_datasets(call, files),
        [dataset for _, dataset in outputs] + await file_datasets(call, found.files_written),
    )


def _written_rows(text: str, kind: str, outcome: Outcome) -> dict[str, int]:
    """The rows that statements have written, by table, if the result has one part for each statement."""
    from noetl.data.sql import first_word
    from noetl.data.sql.sql_statements import split

    results = {**outcome.extracts, **(outcome.data if isinstance(outcome.data, Mapping) else {})}
    statements = split(text, dialect_of(kind))
    if outcome.error is not None or f"command_{len(statements)}" in results:
        return {}
    written: dict[str, int] = {}
    for number, statement in enumerate(statements):
        part = results.get(f"command_{number}")
        names = tables_in(statement, kind).writes
        count = part.get("row_count") if isinstance(part, Mapping) else None
        word = first_word(statement)
        if isinstance(count, int) and len(names) == 1 and (word in _WRITING or (word == "create" and count > 0)):
            written[names[0]] = written.get(names[0], 0) + count
    return written


def _texts(command: Any) -> list[str]:
    if isinstance(command, str):
        return [command]
    if isinstance(command, Mapping):
        return _texts(next((command[name] for name in _COMMANDS if command.get(name)), None))
    return [text for item in command for text in _texts(item)] if isinstance(command, list | tuple) else []


async def _object(call: ToolCall) -> tuple[list[Dataset], list[Dataset]]:
    given = call.input
    action = str(given.get("action") or given.get("operation") or given.get("op") or "").removeprefix("object_")
    writes = any(given.get(name) is not None for name in ("data", "body", "content", "value", "rows", "ref"))
    action = action or ("put" if writes else "get")
    if action not in ("put", "write", "upload", "get", "read", "download", "copy", "move", "rename"):
        return [], []
    place = await located(call, given, call.kind)
    if action in ("copy", "move", "rename"):
        return [place], [await _copied(call, place)]
    return ([], [place]) if action in ("put", "write", "upload") else ([place], [])


async def _copied(call: ToolCall, place: Dataset) -> Dataset:
    """Where an object is copied to: an address, or a key in its bucket; one that ends with `/` keeps the name."""
    to = str(next((call.input[name] for name in ("to", "target", "destination") if call.input.get(name)), ""))
    if to.endswith("/"):
        to += place["name"].rpartition("/")[2]
    if "://" in to or place["namespace"] == "file":
        return await located(call, {"uri": to}, "object")
    return dataset_of(place["namespace"], to.lstrip("/"))
