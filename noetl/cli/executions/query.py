"""`noetl query`: SQL over the results of an execution, and exports of them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from noetl.cli.backend.base import Backend, find_execution
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.playbook_files import STDIN, read_bounded
from noetl.cli.target import Target, with_target

T = TypeVar("T")
FORMATS = ("table", "csv", "json", "parquet")
MAX_STDIN = 1 << 20  # bytes; the query has a smaller limit


@click.command()
@click.argument("execution_id", metavar="ID")
@click.argument("sql", required=False)
@click.option("--format", "format", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write all rows to this file.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Rows of a table.")
@with_target
@json_options
def query(
    execution_id: str, sql: str | None, format: str, output: Path | None, limit: int, target: Target, as_json: bool
) -> None:
    """Query the results of an execution with SQL (`-`: from stdin); without SQL, list its tables.

    The tables are `step.NAME`, and `task."STEP.TASK"` for tasks of a step with several tasks. The SQL is one SELECT of
    DuckDB. It reads these results and nothing else: no files and no network.

    Example: noetl query last "select status, count(*) from step.fetch group by status"
    """
    if sql is None:
        _list(execution_id, target, as_json)
        return
    text = sql if sql != STDIN else _from_stdin()
    if not text.strip():
        raise click.UsageError("the SQL is empty; without SQL the command lists the tables")
    if output is not None and format == "table":
        format = output.suffix.removeprefix(".").lower()
        if format not in FORMATS[1:]:
            raise click.UsageError(f"the format of {output} is not known: use --format {'|'.join(FORMATS[1:])}")
    if format == "table":
        _show(_call(target, execution_id, lambda backend, found: backend.query(found, text, limit)), as_json)
        return
    if format == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("parquet is binary: write it to a file with --output FILE")
    if output is None:
        stream = terminal.binary(is_json=format == "json")
        _export(target, execution_id, text, format, stream)
        stream.flush()
        return
    with _written(output) as file:
        _export(target, execution_id, text, format, file)
    terminal.note(f"{output}: {output.stat().st_size:,} bytes")


def _from_stdin() -> str:
    try:
        return read_bounded(STDIN, MAX_STDIN).decode()
    except UnicodeDecodeError:
        raise click.UsageError("the SQL on stdin is not UTF-8") from None


def _export(target: Target, execution_id: str, sql: str, format: str, file: BinaryIO) -> None:
    _call(target, execution_id, lambda backend, found: backend.export_query(found, sql, format, file))


@contextmanager
def _written(output: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete."""
    if output.exists() and not output.is_file():  # such as /dev/stdout
        with output.open("wb") as file:
            yield file
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(output)
    except OSError as problem:
        raise click.ClickException(f"{output} cannot be written: {problem.strerror or problem}") from None
    finally:
        part.unlink(missing_ok=True)


def _call(target: Target, execution_id: str, function: Callable[[Backend, str], Awaitable[T]]) -> T:
    """Call the backend with the id of an execution; `last` is the newest one."""

    async def call(backend: Backend) -> T:
        return await function(backend, (await find_execution(backend, execution_id)).execution_id)

    return target.call(call)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        terminal.json(found)
        return
    names = [column["name"] for column in found["columns"]]
    terminal.table(names, [[_cell(row[name]) for name in names] for row in found["rows"]])
    if found["truncated"]:
        terminal.note(f"only the first {len(found['rows']):,} rows; use --limit, or --output FILE for all of them")


def _cell(value: Any) -> str:
    import msgspec

    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _list(execution_id: str, target: Target, as_json: bool) -> None:
    found = _call(target, execution_id, lambda backend, found: backend.tables(found))
    if as_json:
        terminal.json(found)
    elif found:
        rows = [(each["sql"], each["rows"], each["bytes"]) for each in found]
        terminal.table(("table", "rows", "bytes"), [["" if cell is None else cell for cell in row] for row in rows])
    else:
        terminal.note("the execution has no results yet")
