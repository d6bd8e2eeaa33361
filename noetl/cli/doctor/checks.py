"""The checks of `noetl doctor`; each yields findings with a status, details and what to do about a problem."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from noetl import __version__
from noetl.cli.doctor import environment
from noetl.cli.doctor.findings import FAILED, OK, WARNING, Finding, nearest_folder
from noetl.errors import AccessRefused, NoetlError, StoreUnavailable
from noetl.settings import BadSetting, Loaded, Settings, load, without_password

LOW_DISK_BYTES = 1 << 30
FULL_DISK_BYTES = 32 << 20
SAFE_SQLITE = (3, 51, 3)  # older versions can corrupt a WAL that two processes write at the same time


def run_checks(flags: Mapping[str, Any] | None = None, *, verify: bool = False, repair: bool = False) -> list[Finding]:
    """Run all checks, in the order of their dependencies; `verify` reads every table, index and log.

    `repair` then rebuilds what is derived: indexes, and summaries that do not match their logs."""
    findings = [
        Finding("noetl", OK, f"{__version__}, Python {platform.python_version()}, {platform.platform()}"),
        *_packages(),
    ]
    try:
        loaded = load(flags)
    except BadSetting as problem:
        return [*findings, Finding("settings", FAILED, str(problem))]
    settings = loaded.settings
    findings += [
        *_settings(loaded),
        *_home(settings),
        *environment.secret_files(settings),
        _sqlite(),
        *_empty_file(settings),
        *(_repaired(settings) if repair else ()),
        *_store(settings),
    ]
    findings += [*environment.replica(settings), *environment.results(settings), *_tools(), *environment.nats(settings)]
    findings += [*environment.processes(settings), *_server(settings)]
    if verify or repair:
        findings += [*_verified(settings), *environment.credentials(settings)]
    return findings


def _empty_file(settings: Settings) -> Iterator[Finding]:
    if not settings.store.startswith("sqlite:"):
        return
    file = Path(settings.store.removeprefix("sqlite://"))
    if file.is_file() and not file.stat().st_size:
        yield Finding(
            "store",
            FAILED,
            f"{file} is empty, which no database is: its content is lost; restore a backup, or delete the file to "
            "begin again",
        )


def _repaired(settings: Settings) -> Iterator[Finding]:
    async def rebuild() -> tuple[int, int, list[str]]:
        from noetl.cli.operations.schema_parts import schema_parts
        from noetl.server.lifecycle.log_verifier import repair
        from noetl.server.orchestrator.catalog import Catalog
        from noetl.storage.factory import open_stores
        from noetl.storage.integrity import rebuild_derived
        from noetl.tools.registry import specs

        events, playbooks = open_stores(settings.store)
        try:
            database = getattr(events, "sql", None)
            rows = 0 if database is None else await rebuild_derived(database, schema_parts(database.dialect))
            return rows, *await repair(events, Catalog(playbooks, specs).load)
        finally:
            await events.close()

    if settings.store.startswith("sqlite:"):
        from noetl.storage.sqlite.commit_mark import accept_older
        from noetl.storage.sqlite.wal_check import accept_loss

        file = settings.store.removeprefix("sqlite://")
        lost = accept_loss(file)
        if lost:
            yield Finding("repair", WARNING, f"{lost} committed pages of the write-ahead log are lost for good")
        if accept_older(file):
            yield Finding("repair", WARNING, "the commits that the database lacks are lost for good")
    try:
        rows, count, left = asyncio.run(rebuild())
    except (NoetlError, OSError) as problem:
        yield Finding("repair", FAILED, f"{without_password(settings.store)}: {problem}")
        return
    yield Finding("repair", OK, f"indexes rebuilt, {count} summaries and {rows} derived rows rewritten")
    for finding in left:
        yield Finding("repair", FAILED, f"cannot be repaired, restore a backup: {finding}")


def _packages() -> Iterator[Finding]:
    """The packages of the plain install, and which extras are installed."""
    from noetl.runtime.requirements import install_command, requirements

    missing: dict[str, list[str]] = {}
    for each in requirements():
        missing.setdefault(each.extra, []).extend([] if each.installed else [each.package])
    absent = missing.pop("", [])
    if absent:
        yield Finding("packages", FAILED, f"not installed: {', '.join(absent)}; {install_command()}")
    else:
        yield Finding("packages", OK, "all packages of the plain install are installed")
    if missing:
        have = [extra for extra, packages in missing.items() if not packages]
        lacking = [extra for extra, packages in missing.items() if packages]
        advice = f"; `{install_command(','.join(lacking))}` installs the others" if lacking else ""
        yield Finding("extras", OK, f"{', '.join(have) or 'none'}{advice}")


def _settings(loaded: Loaded) -> Iterator[Finding]:
    if not loaded.warnings:
        given = [f"{name} from {origin}" for name, origin in loaded.origins.items() if origin != "default"]
        yield Finding("settings", OK, ", ".join(given) or "all defaults")
    for warning in loaded.warnings:
        yield Finding("settings", WARNING, warning)


def _home(settings: Settings) -> Iterator[Finding]:
    nearest = nearest_folder(settings.home)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        detail = f"{settings.home} cannot be written: no permission for {nearest}; set NOETL_HOME to another folder"
        yield Finding("home", FAILED, detail)
        return
    yield Finding("home", OK, f"{settings.home}" + ("" if settings.home.exists() else " (created by the first run)"))
    free = shutil.disk_usage(nearest).free
    advice = "" if free >= LOW_DISK_BYTES else f"; free space on {nearest}; `noetl retention` deletes old executions"
    status = OK if free >= LOW_DISK_BYTES else WARNING if free >= FULL_DISK_BYTES else FAILED
    yield Finding("disk", status, f"{free / (1 << 30):.2f} GB free{advice}")


def _sqlite() -> Finding:
    if sqlite3.sqlite_version_info >= SAFE_SQLITE:
        return Finding("sqlite", OK, sqlite3.sqlite_version)
    return Finding(
        "sqlite", OK, f"{sqlite3.sqlite_version}; processes that share a store are synchronized with an additional lock"
    )


def _store(settings: Settings) -> Iterator[Finding]:
    async def read() -> tuple[list[str], bool]:
        from noetl.embedded import open_local
        from noetl.storage.ports.events import ExecutionFilter

        async with await open_local(settings, work=False) as engine:
            store = engine.orchestrator.store
            return await store.unfinished(), bool(await store.executions(ExecutionFilter(limit=1)))

    if settings.store.startswith("sqlite:") and not Path(settings.store.removeprefix("sqlite://")).exists():
        yield Finding("store", OK, f"{settings.store} (created by the first run)")
        return
    shown = without_password(settings.store)
    try:
        unfinished, any_execution = asyncio.run(read())
        orphans = _orphans(settings, unfinished)
    except (NoetlError, OSError) as problem:
        unreachable = settings.store.startswith("postgres") and isinstance(problem, StoreUnavailable)
        advice = "; check that it is running and NOETL_STORE is right" if unreachable else ""
        yield Finding("store", FAILED, f"{shown}: {problem}{advice}")
        return
    detail = f"{shown}, {'some' if any_execution else 'no'} executions, {len(unfinished)} unfinished"
    yield Finding("store", OK, detail)
    if orphans:
        advice = f"`noetl resume {orphans[0]}` continues one of them, the next start of a server all of them"
        yield Finding("store", WARNING, f"{len(orphans)} unfinished executions have no process; {advice}")


def _orphans(settings: Settings, unfinished: list[str]) -> list[str]:
    """Unfinished executions whose process has ended, where that is known."""
    from noetl.storage.factory import open_process_locks

    owners = open_process_locks(settings.store) if unfinished else None
    if owners is None:
        return []
    try:
        return owners.acquire_orphans(unfinished)
    finally:
        owners.close()


def _verified(settings: Settings) -> Iterator[Finding]:
    async def read() -> tuple[int, int, list[str], list[str], list[str], int, list[str]]:
        from noetl.cli.operations.schema_parts import schema_parts
        from noetl.server.lifecycle.log_verifier import verify
        from noetl.server.lifecycle.result_verifier import verify_results
        from noetl.storage.factory import open_stores
        from noetl.storage.integrity import database_problems, unchecked
        from noetl.storage.results import open_results

        events, _ = open_stores(settings.store)
        results = open_results(settings.results)
        try:
            database = getattr(events, "sql", None)
            problems, notes = list[str](), list[str]()
            if database is not None:
                parts = schema_parts(database.dialect)
                problems = [str(each) async for each in database_problems(database, parts)]
                notes = await unchecked(database)
            try:
                found = await verify(events)
            except StoreUnavailable as problem:  # what was found before is reported
                found = (0, 0, [str(problem)])
            try:
                stored = await verify_results(events, results)
            except StoreUnavailable as problem:
                stored = (0, [str(problem)])
            return *found, problems, notes, *stored
        finally:
            await results.close()
            await events.close()

    try:
        executions, count, damaged, problems, notes, stored, unreadable = asyncio.run(read())
    except (NoetlError, OSError) as problem:
        yield Finding("checksums", FAILED, f"{without_password(settings.store)}: {problem}")
        return
    for found in problems:
        yield Finding("integrity", FAILED, found)
    for note in notes:
        yield Finding("integrity", WARNING, note)
    if not problems:
        yield Finding("integrity", OK, f"all tables, {'' if notes else 'indexes, '}rows and texts are intact")
    folder = None if executions else environment.folder_with_results(settings)
    if folder is not None:
        yield Finding(
            "store",
            WARNING,
            f"{without_password(settings.store)} has no executions, but {folder} has results of some; if the "
            "database was deleted or replaced, restore a backup",
        )
    if not damaged:
        yield Finding("checksums", OK, f"{count} events of {executions} executions have valid checksums")
    for finding in damaged:
        yield Finding("checksums", FAILED, finding)
    for finding in unreadable:
        yield Finding("results", FAILED, finding)
    if not unreadable:
        yield Finding("results", OK, f"{stored} stored results have valid checksums")


def _tools() -> Iterator[Finding]:
    from noetl.tools import registry as tools

    yield Finding("tools", OK, ", ".join(tools.kinds()))
    for problem in tools.problems():
        yield Finding("plug-in", WARNING, problem.message)


def _server(settings: Settings) -> Iterator[Finding]:
    """Every address of the server: whether it is ready, and whether it accepts the token."""
    if settings.server_url is None:
        return
    from noetl.client import Client, server_settings
    from noetl.runtime.process_table import readiness

    for url in filter(None, (each.strip() for each in settings.server_url.split(","))):
        found = readiness(url)
        if not found.ready:
            reason = "; ".join(found.problems) or "no reason given"
            yield Finding("server", FAILED, f"{url} is not ready: {reason}; check that it is running at this address")
            continue
        yield from (Finding("server", WARNING, f"{url}: {warning}") for warning in found.warnings)
        url, token = server_settings(url, settings.token)
        try:
            with Client(url, token or "", timeout=5.0) as client:
                role = client.session()["role"]
            yield Finding("server", OK, f"{url} is ready and accepts this token (role {role})")
        except AccessRefused as problem:
            # A worker's token is valid for the worker routes only.
            known = "role worker" in str(problem)
            detail = f"{url} is ready and accepts this token (role worker)" if known else str(problem)
            yield Finding("server", OK if known else FAILED, detail)
        except NoetlError as problem:
            yield Finding("server", FAILED, f"{url}: {problem}")
