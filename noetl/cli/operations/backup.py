"""`noetl backup` and `noetl restore`: a consistent copy of an installation in one file, and back.

A backup has the event log, catalog, triggers, credentials (encrypted), tokens and stored results on the local disk.
The master key is not part of it unless asked for: a file with both reveals the credentials.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from noetl import __version__
from noetl.cli.doctor.environment import results_folder
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import load_settings, store_option
from noetl.core.model.bundle import file_and_folder, is_inner_path
from noetl.errors import Conflict, RequestRefused

if TYPE_CHECKING:
    from noetl.settings import Settings
    from noetl.storage.backup.archive import BackupReader, BackupWriter, Manifest

DATABASE = "noetl.db"
CREDENTIALS = "credentials.db"
RESULTS = "results/"
HOME = "home/"
HOME_FILES = ("tokens.json",)
KEY = "master.key"


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--results/--no-results", default=True, help="Include stored results on the local disk.")
@click.option("--with-key", is_flag=True, help="Include the master key of credentials; keep the file secret.")
@store_option
@json_options
def backup(file: Path, results: bool, with_key: bool, store: str | None, as_json: bool) -> None:
    """Write a consistent copy of this installation to FILE; servers and workers may be running.

    The file is read again and verified. Results in an object store or NATS are not copied.
    """
    from noetl.storage.backup.archive import BackupReader, BackupWriter

    settings = load_settings(store=store).settings
    began = time.monotonic()
    with BackupWriter(file) as writer:
        manifest = _write(settings, writer, results=results, with_key=with_key)
        writer.finish(manifest)
    reader = BackupReader(file)
    try:
        size, entries = reader.verify(), len(reader.manifest.entries)
    finally:
        reader.close()
    took = time.monotonic() - began
    if as_json:
        document = {"file": str(file), "executions": manifest.executions, "bytes": size, "entries": entries}
        terminal.json({**document, "versions": manifest.versions})
        return
    terminal.data(f"{file}: {manifest.executions} executions, {_megabytes(size)}, verified in {took:.1f} s")
    if not with_key and (settings.home / KEY).exists():
        terminal.note(f"the master key {settings.home / KEY} is not in the backup; keep a copy of it in another place")


def _write(settings: Settings, writer: BackupWriter, *, results: bool, with_key: bool) -> Manifest:
    from noetl.storage.backup.archive import Manifest

    created = datetime.now(UTC).isoformat(timespec="seconds")
    if _is_postgres(settings.store):
        from noetl.storage.backup.postgres_copy import copy_tables

        tables, versions, executions = asyncio.run(copy_tables(_postgres_url(settings.store), writer))
        manifest = Manifest("postgres", __version__, created, versions, tables=tables, executions=executions)
    else:
        versions, executions = _copy_sqlite(settings, writer)
        manifest = Manifest("sqlite", __version__, created, versions, executions=executions)
    folder = results_folder(settings.results)
    if results and folder is not None and folder.is_dir():
        # After the database: what its events refer to was stored before them.
        for each in sorted(folder.rglob("*")):
            if each.is_file() and not each.name.startswith("."):
                _add_present(writer, RESULTS + each.relative_to(folder).as_posix(), each)
    for name in (*HOME_FILES, *((KEY,) if with_key else ())):
        if (settings.home / name).is_file():
            writer.add_file(HOME + name, settings.home / name)
    return manifest


def _add_present(writer: BackupWriter, name: str, file: Path) -> None:
    """Add a result, unless retention deletes it meanwhile."""
    try:
        writer.add_file(name, file)
    except FileNotFoundError:
        return


def _copy_sqlite(settings: Settings, writer: BackupWriter) -> tuple[dict[str, int], int]:
    from noetl.storage.backup.sqlite_copy import copy_database, count_executions, schema_versions

    source = _sqlite_file(settings)
    if not source.exists():
        raise RequestRefused(f"{source} does not exist yet: there is nothing to back up")
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".backup-") as folder:
        copy = Path(folder) / DATABASE
        copy_database(source, copy)
        writer.add_file(DATABASE, copy)
        credentials = settings.home / CREDENTIALS
        if credentials.exists():
            copy_database(credentials, Path(folder) / CREDENTIALS)
            writer.add_file(CREDENTIALS, Path(folder) / CREDENTIALS)
        return schema_versions(copy), count_executions(copy)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing store; an SQLite file is kept under another name.")
@store_option
@json_options
def restore(file: Path, force: bool, store: str | None, as_json: bool) -> int:
    """Restore an installation from a backup; stop its servers and workers first.

    The store must be empty or --force be given. Every log is verified afterwards. A backup of an older version is
    migrated. Exit code 1 if a log is damaged.
    """
    from noetl.runtime.process_table import ProcessTable
    from noetl.server.http.access import ADMIN_FILE, RESTORED_ADMIN, Tokens
    from noetl.storage.backup.archive import BackupReader, StagedFiles

    settings = load_settings(store=store).settings
    running = [member.name for member in ProcessTable(settings.home).members("server")]
    if running:
        raise Conflict(f"{', '.join(running)} is running; stop it first: `noetl worker stop; noetl server stop`")
    reader = BackupReader(file)
    try:
        reader.verify()
        _check_kind(reader.manifest, settings)
        _check_entries(reader.manifest)
        with StagedFiles(reader) as staged:
            databases = {} if reader.manifest.kind == "postgres" else _databases(settings, reader.manifest)
            _refuse_existing(databases.values(), force=force)
            for name, target in {**databases, **_files(settings, reader)}.items():
                staged.add(name, target)
            if reader.manifest.kind == "postgres":
                _restore_postgres(settings, reader, force=force)
            for target in databases.values():
                _put_aside(target)
            staged.publish()
    finally:
        reader.close()
    executions, events, damaged = asyncio.run(_verify(settings))
    lost = reader.manifest.executions - executions
    if lost > 0:
        damaged.append(f"{lost} executions of the backup are missing")
    for problem in damaged:
        terminal.error(problem)
    if as_json:
        terminal.json({"executions": executions, "events": events, "problems": damaged})
    else:
        terminal.data(f"{executions} executions with {events} events are restored and verified")
    if any((settings.home / name).exists() for name in HOME_FILES) and Tokens(settings.home).ensure_admin_file():
        terminal.note(
            f"{settings.home / ADMIN_FILE} has a new token, {RESTORED_ADMIN}: backups have no texts of tokens"
        )
    if not (settings.home / KEY).exists() and (settings.home / CREDENTIALS).exists():
        terminal.note(f"copy the master key to {settings.home / KEY} (or set NOETL_SECRET_KEY) to use the credentials")
    return 1 if damaged else 0


def _check_kind(manifest: Manifest, settings: Settings) -> None:
    target = "postgres" if _is_postgres(settings.store) else "sqlite"
    if settings.store.startswith("memory:"):
        raise RequestRefused("a store in memory cannot be restored; set --store")
    if manifest.kind != target:
        raise RequestRefused(f"the backup is one of {manifest.kind}, and the store is {target}; set --store")
    from noetl.cli.operations.schema_parts import schema_parts

    supported = schema_parts("postgres" if target == "postgres" else "sqlite")
    for part, version in manifest.versions.items():
        if part not in supported or version < 0:
            raise RequestRefused(f"the backup has tables of an unknown part, {part} (version {version})")
        if version > len(supported[part]):
            raise RequestRefused(
                f"the backup was made by NoETL {manifest.noetl}, whose {part} tables are newer; use that version"
            )


def _restore_postgres(settings: Settings, reader: BackupReader, *, force: bool) -> None:
    from noetl.cli.operations.schema_parts import schema_parts
    from noetl.storage.backup.postgres_copy import restore_tables

    asyncio.run(restore_tables(_postgres_url(settings.store), reader, schema_parts("postgres"), force=force))


def _databases(settings: Settings, manifest: Manifest) -> dict[str, Path]:
    """The places of the databases in a backup."""
    places = {DATABASE: _sqlite_file(settings), CREDENTIALS: settings.home / CREDENTIALS}
    return {name: target for name, target in places.items() if name in manifest.entries}


def _refuse_existing(databases: Iterable[Path], *, force: bool) -> None:
    for target in databases:
        if target.exists() and not force:
            raise Conflict(f"{target} exists; restore into another NOETL_HOME, or use --force")


def _put_aside(target: Path) -> None:
    """Keep a database under another name, with its write-ahead log; the files beside it belong to it."""
    aside = target.with_name(f"{target.name}.before-restore-{int(time.time())}")
    if target.exists():
        for suffix in ("-wal", ""):  # the log first: without it, the database is recognized as incomplete
            with suppress(FileNotFoundError):
                target.with_name(target.name + suffix).rename(aside.with_name(aside.name + suffix))
        terminal.note(f"the previous file is kept as {aside}")
    for suffix in ("-wal", "-shm", ".lost", ".mark"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)


def _files(settings: Settings, reader: BackupReader) -> dict[str, Path]:
    """The places of the other files in a backup."""
    folder = results_folder(settings.results)
    results = reader.names(RESULTS)
    if results and folder is None:
        raise RequestRefused("the backup has results, but the setting results is not a folder; set NOETL_RESULTS")
    places = {name: _inside(folder, name.removeprefix(RESULTS)) for name in results if folder is not None}
    return {**places, **{name: _inside(settings.home, name.removeprefix(HOME)) for name in reader.names(HOME)}}


def _check_entries(manifest: Manifest) -> None:
    """Refuse entries that no backup has, before anything is written."""
    from noetl.storage.backup.postgres_copy import entry_of

    known = {DATABASE, CREDENTIALS, *(HOME + name for name in (*HOME_FILES, KEY))}
    known |= {entry_of(table.name) for table in manifest.tables}
    for name in manifest.entries:
        if name not in known and not (name.startswith(RESULTS) and is_inner_path(name.removeprefix(RESULTS))):
            raise RequestRefused(f"the backup has an entry that no backup has: {name!r}; it is not restored")
    both = file_and_folder(manifest.entries)
    if both is not None:
        raise RequestRefused(f"the backup has {both!r} as a file and as a folder; it is not restored")


def _inside(folder: Path, name: str) -> Path:
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise RequestRefused(f"the backup has an entry outside of its folder: {name}")
    return target


async def _verify(settings: Settings) -> tuple[int, int, list[str]]:
    from noetl.server.lifecycle.log_verifier import verify
    from noetl.storage.factory import open_stores

    events, _ = open_stores(settings.store)
    try:
        return await verify(events)
    finally:
        await events.close()


def _is_postgres(store: str) -> bool:
    return store.startswith(("postgres:", "postgresql:"))


def _postgres_url(store: str) -> str:
    return f"postgresql:{store.partition(':')[2]}"


def _sqlite_file(settings: Settings) -> Path:
    from noetl.storage.factory import sqlite_path

    if settings.store.startswith("memory:"):
        raise RequestRefused("a store in memory cannot be backed up")
    return Path(sqlite_path(settings.store)).absolute()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
