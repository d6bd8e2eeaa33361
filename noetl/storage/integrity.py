"""Checks of a whole database: every table and index, and the texts that are stored under their digests.

The checksums of the logs and summaries are checked by `server.lifecycle.log_verifier`. What is derived can be rebuilt:
indexes with `rebuild_indexes`, snapshots and summaries from the logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from noetl.errors import NoetlError
from noetl.storage.ports.sql import SqlDatabase

MAX_PROBLEMS = 100


async def database_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Everything that is wrong in the files of a database."""
    check = _sqlite_problems if database.dialect == "sqlite" else _postgres_problems
    try:
        async for problem in check(database):
            yield problem
        async for problem in _text_problems(database):
            yield problem
    except NoetlError as problem:
        yield f"the database cannot be read completely: {problem}"


async def rebuild_indexes(database: SqlDatabase) -> None:
    """Rebuild every index from its table."""
    if database.dialect == "sqlite":
        await database.execute("REINDEX")
        return
    for (table,) in await database.fetch(_TABLES):
        await database.row(f'REINDEX TABLE "{table}"')  # not `execute`: it has no number of rows


async def _sqlite_problems(database: SqlDatabase) -> AsyncIterator[str]:
    for (message,) in await database.fetch(f"PRAGMA integrity_check({MAX_PROBLEMS})"):
        if message != "ok":
            yield f"SQLite: {message}"


_TABLES = (
    "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'r' AND c.relname LIKE 'noetl\\_%' AND n.nspname = ANY (current_schemas(false)) ORDER BY 1"
)
_INDEXES = (
    "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
    "JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am a ON a.oid = x.relam "
    "JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname LIKE 'noetl\\_%' AND c.relkind = 'r' AND a.amname = 'btree' "
    "AND n.nspname = ANY (current_schemas(false)) ORDER BY 1"
)


async def _postgres_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Read every row of every table, and compare every index with its table if the extension amcheck is installed."""
    for (table,) in await database.fetch(_TABLES):
        try:
            await database.row(f'SELECT count(*), sum(length(t::text)) FROM "{table}" t')
        except NoetlError as problem:
            yield f"table {table}: {problem}"
    if await database.row("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'") is None:
        return
    for (index,) in await database.fetch(_INDEXES):
        try:
            await database.row(f"SELECT bt_index_check('{index}'::regclass, true)")
        except NoetlError as problem:
            yield f"index {index}: {problem}"


async def _text_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Texts and files that do not match their digests, and versions of the catalog without a text."""
    prefix = database.prefix
    for digest, text, file in await database.fetch(f"SELECT digest, text, file FROM {prefix}playbook_texts"):
        if not isinstance(text, str) or not isinstance(file, str) or _digest(f"{file}\0{text}") != digest:
            yield f"the text of playbook {digest} ({file}) does not match its digest"
    missing = (
        f"SELECT c.path, c.version FROM {prefix}catalogue c "
        f"LEFT JOIN {prefix}playbook_texts t ON t.digest = c.digest WHERE t.digest IS NULL"
    )
    for path, version in await database.fetch(missing):
        yield f"version {version} of playbook {path} in the catalog has no text"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
