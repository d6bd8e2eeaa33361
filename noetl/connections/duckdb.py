"""DuckDB: one instance per database and process, a cursor for each call, one writer at a time.

A file is open only while calls use it, and for `LINGER` seconds after that, because DuckDB lets only one process
write a file: a worker that finds it locked waits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from noetl.connections.duckdb_memory import scan_options, set_options
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.data.duckdb_results import exact_parts
from noetl.data.files.duckdb_files import literal
from noetl.data.sql import Bound, quote_column, tokens
from noetl.runtime.resources import per_loop
from noetl.runtime.threads import in_thread, open_in_thread

MEMORY = ":memory:"
LINGER = 0.3  # seconds a file stays open after its last call
WAIT_FOR_FILE = 10.0
BATCH, BATCH_VALUES = 10_000, 1_000_000  # rows of a batch of a result, and values of a wide one
UTC = "SET TimeZone = 'UTC'"  # a setting of each cursor: instants are given in UTC, whatever the machine's zone


class Database:
    """A database file (or a private one in memory) and the calls that use it."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.writing = asyncio.Lock()
        self._instance: Any = None
        self._users = 0
        self._turn = asyncio.Lock()  # of the calls that wait for the database, in order
        self._unused = asyncio.Event()
        self._unused.set()
        self._shared: Any = None  # what the calls of the open instance have in common
        self.row_group: int | None = None  # of the open instance
        self._timer: asyncio.TimerHandle | None = None
        self._limits: list[str] = []  # settings that the only call has changed

    @asynccontextmanager
    async def cursor(
        self, *, writes: bool, wait: float = WAIT_FOR_FILE, shared: Any = None, row_group: int | None = None
    ) -> AsyncIterator[Any]:
        """Provide a cursor for exclusive use; only one writer of a database has one at a time.

        Attached databases, secrets and settings belong to an instance. Calls use one together only if what they change
        in it is the same (`shared`); others wait until it is unused, and get a new one. `row_group` is the number of
        rows that are written together, unless other calls have the instance open."""
        async with self.writing if writes and self.path != MEMORY else nullcontext():
            async with self._turn:
                if shared != self._shared:
                    await self._unused.wait()
                    self.close()
                    self._shared = shared
                elif row_group is not None and not self._users:
                    self.close()
                await self._open(wait, row_group)
                self._users += 1
                self._unused.clear()
                self._lift_limits()
            try:
                cursor = self._instance.cursor()
                try:
                    cursor.execute(UTC)
                    if self.row_group is not None:
                        cursor.execute(f"USE {_catalog(self.path)}.main")
                    yield cursor
                finally:
                    cursor.close()
            finally:
                if self._users == 1:
                    self._lift_limits()
                self._users -= 1
                if not self._users:
                    self._unused.set()
                self._close_later()

    def limit_memory(self, cursor: Any, bound: Bound) -> None:
        """Let a query that only reads rows need little memory, unless and until other calls use the database."""
        if self._users == 1:
            self._limits = set_options(cursor, scan_options(cursor, bound))

    def _lift_limits(self) -> None:
        while self._limits:
            self._instance.execute(f"RESET {self._limits.pop()}")

    def close(self) -> None:
        """Close the file."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._instance is not None:
            self._instance.close()
            self._instance = None

    def close_if_unused(self) -> None:
        """Close the file if no call uses it, so that it can be attached elsewhere."""
        if not self._users and not self._turn.locked():
            self.close()

    async def _open(self, wait: float, row_group: int | None = None) -> None:
        import duckdb

        deadline = asyncio.get_running_loop().time() + wait
        while self._instance is None:
            try:
                if row_group is not None:
                    self._instance = await open_in_thread(lambda: _attached(self.path, row_group), _close)
                self.row_group = None if self._instance is None else row_group
                if self._instance is None:
                    self._instance = await open_in_thread(lambda: connect(self.path, self.read_only), _close)
            except duckdb.Error as problem:
                if not _is_locked(problem) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.05)  # another process has locked it, and DuckDB has no notification

    def _close_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._users:
            return
        if self.path == MEMORY:
            self.close()
            return

        def unused() -> None:
            self._timer = None
            if not self._users:
                self.close()

        self._timer = asyncio.get_running_loop().call_later(LINGER, unused)


def connect(path: str, read_only: bool = False) -> Any:
    """Open a database."""
    import duckdb

    if path != MEMORY:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(path, read_only=read_only)


def _attached(path: str, row_group: int) -> Any:
    """Open a database with row groups of another size, which is an option of ATTACH; None if that is not possible."""
    import duckdb

    if Path(path).stem.lower() in ("memory", "temp", "system"):
        return None
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    instance = connect(MEMORY)
    try:
        instance.execute(f"ATTACH {literal(path)} AS {_catalog(path)} (ROW_GROUP_SIZE {row_group})")
    except duckdb.BinderException:  # a version without this option
        instance.close()
        return None
    except BaseException:
        instance.close()
        raise
    return instance


def _close(instance: Any) -> None:
    if instance is not None:
        instance.close()


def _catalog(path: str) -> str:
    """The name that DuckDB gives a database file."""
    return quote_column(Path(path).stem)


def database(path: str, *, read_only: bool = False) -> Database:
    """This loop's one object for a file; memory is private to each caller."""
    if path == MEMORY:
        return Database(path)
    return per_loop(("duckdb", path, read_only), lambda: Database(path, read_only=read_only))


def _is_locked(problem: Exception) -> bool:
    """Whether a file is locked by another process, or by another database of this one."""
    return re.search(r"\block|already attached|handle conflict", str(problem), re.IGNORECASE) is not None


async def attach(cursor: Any, statement: str, path: str, wait: float) -> None:
    """Attach a file to a database; wait until no other task has it open."""
    import duckdb

    deadline = asyncio.get_running_loop().time() + wait
    while True:
        for read_only in (False, True):
            database(path, read_only=read_only).close_if_unused()
        try:
            await in_thread(lambda: cursor.execute(statement), interrupt=cursor.interrupt)
            return
        except duckdb.Error as problem:
            if not _is_locked(problem) or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.05)


def run_statement(cursor: Any, bound: Bound, *, batch: int = BATCH) -> tuple[list[str], Iterator[Any], int | None]:
    """Run one statement; return its columns, its rows as Arrow batches, and the number of changed rows if known.

    Called in a thread; the batches are computed on demand, in that thread too."""
    relation = cursor.sql(bound.text, params=bound.values) if bound.values else cursor.sql(bound.text)
    if relation is None:
        return [], iter(()), None
    columns = list(relation.columns)
    schema, parts = exact_parts(relation, max(min(batch, BATCH_VALUES // max(len(columns), 1)), 1))
    if columns in (["Count"], ["Success"]) and not _returns(bound.text):
        changed = [value for part in parts for value in part.column(0).to_pylist()]
        return [], iter(()), int(changed[0]) if columns == ["Count"] and changed else 0
    if not columns:
        return [], iter(()), None
    return columns, _never_none(parts, schema), None


def _never_none(reader: Any, schema: Any) -> Iterator[Any]:
    """The batches; an empty one if there are none, which still has the columns."""
    import pyarrow as pa

    empty = True
    for part in reader:
        empty = False
        yield part
    if empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


_READS = {
    "select", "with", "from", "values", "table", "pivot", "unpivot",
    "show", "describe", "explain", "summarize", "pragma",
}  # fmt: skip
_CHANGES = {"insert", "update", "delete", "merge", "create", "drop", "alter", "copy"}


def may_write(statements: list[str]) -> bool:
    """Whether some statement may change the database."""
    for statement in statements:
        words = [token.text.lower() for token in tokens(statement, "duckdb") if token.kind == "word"]
        if not words or words[0] not in _READS or _CHANGES & set(words):
            return True
    return False


def _returns(text: str) -> bool:
    words = {token.text.lower() for token in tokens(text, "duckdb") if token.kind == "word"}
    return "returning" in words or not _CHANGES & words


async def batches(cursor: Any, parts: Iterator[Any]) -> AsyncGenerator[Any, None]:
    """The batches of a result, each computed in a thread when it is wanted."""
    while True:
        try:
            part = await in_thread(lambda: next(parts, None), interrupt=cursor.interrupt)
        except OSError as failure:
            raise _original(failure) from None
        if part is None:
            return
        yield part


def _original(failure: OSError) -> Exception:
    """The exception of DuckDB that an Arrow reader reports as OSError: its message begins with its name."""
    import duckdb

    found = re.match(r"((?:[A-Z]\w*[ /]?)+) Error: ", str(failure))
    name = re.sub(r"\W", "", found[1]) + "Exception" if found else ""
    kind = getattr(duckdb, name, None)
    if found is None or not isinstance(kind, type):
        return failure
    original: Exception = kind(str(failure)[found.end() :])
    return original


_WRITTEN_AFTER = {
    "copy": {"to", "from"},
    "export": {"database"},
    "import": {"database"},
    "attach": {"attach", "database", "exists"},
}


def with_paths(statement: str, resolve: Callable[[str], str]) -> str:
    """The statement with the relative path that it writes to (or attaches) made absolute.

    Files that queries read are found through DuckDB's search path; for these there is none."""
    found = list(tokens(statement, "duckdb"))
    words = [token.text.lower() for token in found if token.kind == "word"]
    before = _WRITTEN_AFTER.get(words[0] if words else "")
    if not before:
        return statement
    pieces = []
    last = ""
    for token in found:
        text = token.text
        if token.kind == "string" and text.startswith("'") and last in before:
            path = text[1:-1].replace("''", "'")
            if "://" not in path and path and path != MEMORY and not path.startswith(("/", "md:")):
                text = "'" + resolve(path).replace("'", "''") + "'"
        if text.strip():
            last = text.lower() if token.kind == "word" else ""
        pieces.append(text)
    return "".join(pieces)


def attach_statement(name: str, target: str, options: Mapping[str, Any]) -> str:
    """`ATTACH` of another database under a name."""
    extras = [f"TYPE {re.sub(r'[^A-Za-z_]', '', str(options['type']))}"] if options.get("type") else []
    if options.get("read_only"):
        extras.append("READ_ONLY")
    escaped = target.replace("'", "''")
    suffix = f" ({', '.join(extras)})" if extras else ""
    return f"ATTACH IF NOT EXISTS '{escaped}' AS {quote_column(name)}{suffix}"


def to_error_info(failure: Exception) -> ErrorInfo:
    """Convert an exception of DuckDB to one of the error kinds."""
    text = re.sub(r"^[\w ]+ Error: ", "", str(failure)).strip()
    details = {"exception_type": type(failure).__name__}
    missing = re.search(r"required extension '(\w+)|Extension \"?(\w+)\"? (?:not found|is an existing extension)", text)
    if missing and "extension" in text.lower():
        name = missing[1] or missing[2]
        message = f"DuckDB needs its extension {name} for this, and it is not installed (INSTALL {name}). "
        message += "Files of object stores can be read without it: kind transfer, or kind object with `file`."
        return error_info("client_error", message, details=details)

    text = re.sub(r"(Malformed JSON .* in line )(\d+):", _line_of_json, text)
    return error_info(_error_kind(failure, text), text, details=details)


def _line_of_json(found: re.Match[str]) -> str:
    """The line of malformed JSON: DuckDB counts from 2 and leaves out empty lines."""
    return f"{found[1]}{int(found[2]) - 1} (without empty lines):"


# Error kinds by the names of DuckDB's exceptions, in the order they are tried; a newer DuckDB may lack some of them.
_KINDS = (
    ("db.constraint", ("ConstraintException",)),
    ("db.timeout", ("InterruptException",)),
    ("limit", ("OutOfMemoryException",)),
    ("connection", ("HTTPException",)),
    ("auth", ("PermissionException",)),
    ("schema", ("ConversionException", "OutOfRangeException", "TypeMismatchException", "SequenceException")),
    ("db.syntax", ("ParserException", "SyntaxException", "BinderException", "CatalogException")),
    ("db.syntax", ("NotImplementedException",)),
    ("schema", ("InvalidInputException", "InvalidTypeException")),
    ("server_error", ("InternalException", "FatalException")),
)


_MALFORMED = re.compile(r"Malformed JSON|: line [\d,]+ is not (a )?(JSON|UTF-8)")
_DISK = re.compile(r"Could not (write|read|sync|fsync|truncate) |No space left on device|Input/output error")


def _error_kind(failure: Exception, text: str) -> str:
    if _is_instance(failure, "TransactionException"):
        if _DISK.search(text):
            return _io_error_kind(text.lower())
        return "db.deadlock" if "onflict" in text else "db.syntax"
    if _is_locked(failure):
        return "db.connection"
    if _MALFORMED.search(text):
        return "parse"
    if _is_instance(failure, "IOException", "ConnectionException") and not _is_instance(failure, "HTTPException"):
        return _io_error_kind(text.lower())
    return next((kind for kind, names in _KINDS if _is_instance(failure, *names)), "unknown")


def _io_error_kind(text: str) -> str:
    if re.search(r"\block", text) or "different configuration" in text:
        return "db.connection"
    if any(part in text for part in ("no files found", "no such file", "does not exist", "cannot open file")):
        return "not_found"
    if "no space" in text or "disk is full" in text:
        return "storage.quota"
    return "storage.access"


def _is_instance(failure: Exception, *names: str) -> bool:
    import duckdb

    return isinstance(failure, tuple(kind for name in names if (kind := getattr(duckdb, name, None)) is not None))
