"""`noetl upgrade`: migrates the tables of a store to this version, or shows what it would do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from noetl import __version__
from noetl.cli.operations.schema_parts import schema_parts
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import load_settings, store_option
from noetl.errors import RequestRefused
from noetl.settings import without_password

if TYPE_CHECKING:
    from noetl.settings import Settings

NEEDED, TOO_NEW = 1, 2


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if migrations are pending.")
@store_option
@json_options
def upgrade(check: bool, store: str | None, as_json: bool) -> int:
    """Migrate the tables of the store to this version of NoETL.

    A server does the same when it starts. Run it before a rolling upgrade, once, and make a backup first: an older
    version cannot open migrated tables again. Exit code 2 if the tables are newer than this version.
    """
    settings = load_settings(store=store).settings
    if settings.store.startswith("memory:"):
        raise RequestRefused("a store in memory has no tables; set --store")
    dialect = "postgres" if settings.store.startswith(("postgres:", "postgresql:")) else "sqlite"
    found = _versions(settings, dialect)
    parts = schema_parts("postgres" if dialect == "postgres" else "sqlite")
    rows = [
        {"part": part, "version": found.get(part, 0), "supported": len(scripts)}
        for part, scripts in sorted(parts.items())
    ]
    newer = [row for row in rows if row["version"] > row["supported"]]  # type: ignore[operator]
    absent = [row for row in rows if row["version"] == 0]
    pending = [row for row in rows if row["version"] < row["supported"] and (not found or row not in absent)]  # type: ignore[operator]
    migrated = bool(pending or absent) and not newer and not check
    if migrated:
        asyncio.run(_migrate(settings))
    if as_json:
        terminal.json(
            {"noetl": __version__, "store": without_password(settings.store), "parts": rows, "migrated": migrated}
        )
    else:
        terminal.table(("part", "version", "supported"), [tuple(row.values()) for row in rows])
        if newer:
            terminal.note(f"the tables were written by a newer NoETL than {__version__}; use that version")
        elif not found:
            terminal.note(
                "the store has no tables yet; the first start creates them" if check else "the tables are created"
            )
        else:
            terminal.note(_summary(len(pending), len(absent), check))
    return TOO_NEW if newer else NEEDED if pending and check else 0


def _summary(pending: int, absent: int, check: bool) -> str:
    """What was or would be done to a store that has tables; those of a part that was never used may be absent."""
    notes = []
    if pending:
        advice = "; make a backup (`noetl backup FILE`), then run `noetl upgrade`"
        notes.append(f"parts to migrate: {pending}{advice}" if check else f"parts migrated: {pending}")
    if absent:
        advice = "; `noetl upgrade` or their first use creates them"
        notes.append(f"parts without tables: {absent}{advice}" if check else f"parts created: {absent}")
    return "\n".join(notes) or f"the store is up to date with NoETL {__version__}"


def _versions(settings: Settings, dialect: str) -> dict[str, int]:
    if dialect == "postgres":
        from noetl.storage.backup import postgres_copy

        return asyncio.run(postgres_copy.schema_versions(f"postgresql:{settings.store.partition(':')[2]}"))
    from noetl.storage.backup import sqlite_copy
    from noetl.storage.factory import sqlite_path

    file = Path(sqlite_path(settings.store)).absolute()
    return sqlite_copy.schema_versions(file) if file.exists() else {}


async def _migrate(settings: Settings) -> None:
    """Open every store once, which migrates its tables."""
    from noetl.secrets.keychain import InstalledCredentials
    from noetl.storage.factory import (
        open_deliveries,
        open_load_samples,
        open_quotas,
        open_server_stores,
        open_task_logs,
        open_triggers,
    )

    stores = open_server_stores(settings.store)
    open_triggers(stores.events)
    open_deliveries(stores.events)
    open_task_logs(stores.events)
    open_load_samples(stores.events)
    open_quotas(stores.events)
    database = getattr(stores.events, "database", None)
    credentials = InstalledCredentials(settings.home, database=database)
    try:
        await stores.events.by_key("upgrade")
    finally:
        await credentials.close()
        await stores.events.close()
