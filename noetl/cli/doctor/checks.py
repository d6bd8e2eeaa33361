"""What `noetl doctor` looks at: each check says how one thing is, and what to do when it is not well."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from noetl import __version__
from noetl.cli.doctor import environment as around
from noetl.cli.doctor.findings import FAILED, OK, WARNING, Finding, nearest_folder
from noetl.errors import AccessRefused, NoetlError
from noetl.settings import BadSetting, Loaded, Settings, load, without_password

MIN_FREE = 1 << 30
FULL = 32 << 20
SAFE_SQLITE = (3, 51, 3)  # older ones can damage a WAL that two processes write at the same moment
DRIVERS = {"postgres": "psycopg", "nats": "nats", "server": "fastapi", "data": "adbc_driver_postgresql"}


def checkup(flags: Mapping[str, Any] | None = None, *, verify: bool = False) -> list[Finding]:
    """All checks, in the order in which things depend on each other; `verify` reads every log."""
    findings = [Finding("noetl", OK, f"{__version__}, Python {platform.python_version()}, {platform.platform()}")]
    try:
        loaded = load(flags)
    except BadSetting as problem:
        return [*findings, Finding("settings", FAILED, str(problem))]
    settings = loaded.settings
    findings += [*_settings(loaded), *_home(settings), *around.secret_files(settings), _sqlite(), *_store(settings)]
    findings += [around.results(settings), *_tools(), *around.nats(settings)]
    findings += [*around.processes(settings), *_server(settings)]
    if verify:
        findings += _verified(settings)
    return findings


def _settings(loaded: Loaded) -> Iterator[Finding]:
    if not loaded.warnings:
        given = [f"{name} from {origin}" for name, origin in loaded.origins.items() if origin != "default"]
        yield Finding("settings", OK, ", ".join(given) or "all defaults")
    for warning in loaded.warnings:
        yield Finding("settings", WARNING, warning)


def _home(settings: Settings) -> Iterator[Finding]:
    nearest = nearest_folder(settings.home)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        detail = f"{settings.home} cannot be written: {nearest} does not let us; set NOETL_HOME to another folder"
        yield Finding("home", FAILED, detail)
        return
    yield Finding("home", OK, f"{settings.home}" + ("" if settings.home.exists() else " (made at the first run)"))
    free = shutil.disk_usage(nearest).free
    mend = "" if free >= MIN_FREE else f"; make room at {nearest}; `noetl retention` forgets old executions"
    status = OK if free >= MIN_FREE else WARNING if free >= FULL else FAILED
    yield Finding("disk", status, f"{free / (1 << 30):.2f} GB free{mend}")


def _sqlite() -> Finding:
    if sqlite3.sqlite_version_info >= SAFE_SQLITE:
        return Finding("sqlite", OK, sqlite3.sqlite_version)
    return Finding("sqlite", OK, f"{sqlite3.sqlite_version}; processes that share a store take turns by a lock of ours")


def _store(settings: Settings) -> Iterator[Finding]:
    async def look() -> tuple[list[str], bool]:
        from noetl.embedded import open_local

        async with await open_local(settings, work=False) as engine:
            return await engine.orchestrator.store.unfinished(), bool(await engine.orchestrator.executions())

    if settings.store.startswith("sqlite:") and not Path(settings.store.removeprefix("sqlite://")).exists():
        yield Finding("store", OK, f"{settings.store} (made at the first run)")
        return
    shown = without_password(settings.store)
    try:
        unfinished, some = asyncio.run(look())
        left = _left(settings, unfinished)
    except (NoetlError, OSError) as problem:
        mend = "; is it running, and is NOETL_STORE right?" if settings.store.startswith("postgres") else ""
        yield Finding("store", FAILED, f"{shown}: {problem}{mend}")
        return
    told = f"{shown}, {'some' if some else 'no'} executions, {len(unfinished)} unfinished"
    yield Finding("store", OK, told)
    if left:
        ways = f"`noetl resume {left[0]}` goes on with one of them, the next start of a server with all"
        yield Finding("store", WARNING, f"{len(left)} unfinished executions wait: their process is gone; {ways}")


def _left(settings: Settings, unfinished: list[str]) -> list[str]:
    """Unfinished executions whose process is gone, where that can be known."""
    from noetl.storage.factory import open_process_locks

    owners = open_process_locks(settings.store) if unfinished else None
    if owners is None:
        return []
    try:
        return owners.acquire_orphans(unfinished)
    finally:
        owners.close()


def _verified(settings: Settings) -> Iterator[Finding]:
    async def look() -> tuple[int, int, list[str]]:
        from noetl.server.lifecycle.log_verifier import verify
        from noetl.storage.factory import open_stores

        events, _ = open_stores(settings.store)
        try:
            return await verify(events)
        finally:
            await events.close()

    try:
        executions, count, damaged = asyncio.run(look())
    except (NoetlError, OSError) as problem:
        yield Finding("checksums", FAILED, f"{without_password(settings.store)}: {problem}")
        return
    if not damaged:
        yield Finding("checksums", OK, f"{count} events of {executions} executions are as they were written")
    for words in damaged:
        yield Finding("checksums", FAILED, words)


def _tools() -> Iterator[Finding]:
    from noetl.tools import registry as tools

    missing = sorted(
        {
            spec.extra
            for spec in tools.kinds().values()
            if spec.extra and find_spec(DRIVERS.get(spec.extra, spec.extra)) is None
        }
    )
    yield Finding("tools", OK, ", ".join(tools.kinds()))
    for extra in missing:
        kinds = [kind for kind, spec in tools.kinds().items() if spec.extra == extra]
        yield Finding("tools", WARNING, f"{', '.join(kinds)}: not installed; pip install 'noetl[{extra}]'")
    for problem in tools.problems():
        yield Finding("plug-in", WARNING, problem.message)


def _server(settings: Settings) -> Iterator[Finding]:
    """Every address of the server, and whether it lets us in."""
    if settings.server_url is None:
        return
    from noetl.client import Client, found_server
    from noetl.runtime.process_table import readiness

    for url in filter(None, (each.strip() for each in settings.server_url.split(","))):
        found = readiness(url)
        if not found.ready:
            words = "; ".join(found.problems) or "it does not say why"
            yield Finding("server", FAILED, f"{url} is not ready: {words}; is it running, and is this its address?")
            continue
        url, token = found_server(url, settings.token)
        try:
            with Client(url, token or "", timeout=5.0) as client:
                role = client.line.ask("GET", "/api/session")["role"]
            yield Finding("server", OK, f"{url} is ready, and knows this token (role {role})")
        except AccessRefused as problem:
            # A worker's token opens the work routes and nothing else, and that is how it should be.
            known = "role worker" in str(problem)
            detail = f"{url} is ready, and knows this token (role worker)" if known else str(problem)
            yield Finding("server", OK if known else FAILED, detail)
        except NoetlError as problem:
            yield Finding("server", FAILED, f"{url}: {problem}")
