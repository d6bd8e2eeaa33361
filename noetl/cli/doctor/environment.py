"""Checks of `noetl doctor` beside the store: keys and tokens, results, NATS, and the processes of this machine."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from noetl.cli.doctor.findings import FAILED, OK, WARNING, Finding, nearest_folder
from noetl.errors import NoetlError, RequestRefused
from noetl.runtime.process_table import ProcessEntry, ProcessTable, readiness
from noetl.settings import Settings, without_password

if TYPE_CHECKING:
    from noetl.runtime.process_table import Readiness

TIMEOUT = 5.0  # seconds for a service to respond


def secret_files(settings: Settings) -> Iterator[Finding]:
    """Tokens and the master key: readable, valid, and not accessible to other users."""
    from noetl.secrets import master_key
    from noetl.server.http.access import ADMIN_FILE, TOKENS_FILE, Tokens

    valid = True
    for name in (ADMIN_FILE, TOKENS_FILE, master_key.FILE):
        file = settings.home / name
        if not file.exists():
            continue
        if not os.access(file, os.R_OK):
            valid = False
            yield Finding(
                "secrets", FAILED, f"{file} cannot be read by this user; the user who starts the server owns it"
            )
        elif stat.S_IMODE(file.stat().st_mode) & 0o077:
            valid = False
            yield Finding("secrets", WARNING, f"{file} is accessible to other users: chmod 600 {file}")
    try:
        known = Tokens(settings.home).all() if valid else []
        if not os.environ.get(master_key.VARIABLE) and (settings.home / master_key.FILE).exists():
            master_key.open_ring(settings.home, os.environ)
    except NoetlError as problem:
        yield Finding("secrets", FAILED, str(problem))
        return
    if valid:
        detail = (
            f"tokens: {', '.join(token.name for token in known)}"
            if known
            else "no tokens yet (created by the first start of a server)"
        )
        yield Finding("secrets", OK, detail)


def credentials(settings: Settings) -> Iterator[Finding]:
    """Whether each stored credential can be decrypted."""

    async def read() -> tuple[int, list[str]]:
        from noetl.secrets.keychain import open_credentials

        problems = []
        async with open_credentials(settings.home, settings.store) as store:
            known = await store.list()
            for name, _ in known:
                try:
                    await store.get(name)
                except NoetlError as problem:
                    problems.append(str(problem))
        return len(known), problems

    try:
        count, damaged = asyncio.run(read())
    except (NoetlError, OSError) as problem:
        yield Finding("credentials", FAILED, str(problem))
        return
    for each in damaged:
        yield Finding("credentials", FAILED, f"{each}; store it again with `noetl credential set`")
    if not damaged:
        yield Finding("credentials", OK, f"{count} stored credentials can be decrypted")


def results(settings: Settings) -> Iterator[Finding]:
    """Whether each result store can be written."""
    for url in settings.results.split(","):
        yield _result_store(url.strip())


def results_folder(url: str) -> Path | None:
    """The folder of a result store; None if it is another kind of store."""
    if not url.startswith(("blob:", "file:")):
        return None
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path))


def folder_with_results(settings: Settings) -> Path | None:
    """A folder of results that is not empty."""
    folders = filter(None, (results_folder(url.strip()) for url in settings.results.split(",")))
    return next((folder for folder in folders if any(each.is_file() for each in folder.rglob("*"))), None)


def _result_store(url: str) -> Finding:
    """Whether large results can be stored: permissions of a folder are checked, another store is written to."""
    folder = results_folder(url)
    if folder is not None:
        nearest = nearest_folder(folder)
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return Finding("results", OK, url + ("" if folder.exists() else " (created with the first large result)"))
        return Finding("results", FAILED, f"{url}: {nearest} is not writable; set NOETL_RESULTS to another location")

    async def put_and_delete() -> None:
        from noetl.storage.results import open_results

        async def chunks() -> AsyncIterator[bytes]:
            yield b"check of noetl doctor"

        async with asyncio.timeout(TIMEOUT):
            store = open_results(url)
            try:
                await store.delete(await store.put("doctor", chunks(), content_type="text/plain"))
            finally:
                await store.close()

    try:
        asyncio.run(put_and_delete())
        return Finding("results", OK, f"{without_password(url)} is writable")
    except TimeoutError:
        reason = f"no response within {TIMEOUT:g} s"
    except (NoetlError, OSError) as problem:
        reason = str(problem)
    detail = f"{without_password(url)}: {reason}; check that it is running and NOETL_RESULTS is right"
    return Finding("results", FAILED, detail)


def nats(settings: Settings) -> Iterator[Finding]:
    """Whether NATS responds; without it workers use HTTP."""
    if settings.nats_url is None:
        return
    from noetl.connections.nats import connect

    async def connect_once() -> None:
        client = await connect({"url": settings.nats_url}, timeout=TIMEOUT)
        await client.close()

    url = without_password(settings.nats_url)
    try:
        asyncio.run(connect_once())
        yield Finding("nats", OK, f"{url} responds")
    except Exception as problem:  # noqa: BLE001 - its client may raise anything
        reason = str(problem) or type(problem).__name__
        detail = f"{url}: {reason}; workers use HTTP until it is back. Check NOETL_NATS_URL"
        yield Finding("nats", WARNING, detail)


def replica(settings: Settings) -> Iterator[Finding]:
    """Whether the replica can be used; without it servers read from the store."""
    if settings.server_replica is None:
        return
    from noetl.storage.factory import replica_behind

    url = without_password(settings.server_replica)
    try:
        behind = asyncio.run(replica_behind(settings.store, settings.server_replica))
        yield Finding("replica", OK, f"{url} is {behind} bytes of the log behind the store")
    except NoetlError as problem:
        detail = f"{url}: {problem}; servers read lists from the store. Check NOETL_SERVER_REPLICA"
        yield Finding("replica", WARNING, detail)


def processes(settings: Settings) -> Iterator[Finding]:
    """The servers and workers of this machine; without a server, whether one can be started."""
    table = ProcessTable(settings.home)
    servers = [member for prefix in ("server", "cluster-server") for member in table.members(prefix)]
    workers = [member for prefix in ("worker", "cluster-worker") for member in table.members(prefix)]
    configured = (settings.server_url or "").split(",")  # checked as addresses of the settings
    for member in servers:
        if member.url in configured:
            continue
        yield from _server(member, readiness(member.url))
    if servers and not workers:
        detail = "none is running on this machine; unless workers run elsewhere, start one: `noetl worker start`"
        yield Finding("workers", WARNING, detail)
    elif workers:
        yield Finding("workers", OK, f"{len(workers)} on this machine")
    if not servers and settings.server_url is None:
        yield _address(settings)


def _server(member: ProcessEntry, found: Readiness) -> Iterator[Finding]:
    where = f"{member.url} (process {member.pid})"
    log = f"; its log is {member.log}" if member.log else ""
    if not found.ready:
        yield Finding("server", FAILED, f"{where} is not ready: {'; '.join(found.problems)}{log}")
        return
    yield Finding("server", OK, f"{where} is ready")
    for warning in found.warnings:
        yield Finding("server", WARNING, warning)


def _address(settings: Settings) -> Finding:
    from noetl.server.process import take_address

    where = f"{settings.server_host} port {settings.server_port}"
    try:
        take_address(settings).close()
        return Finding("server", OK, f"none is running; `noetl server start` would listen on {where}")
    except RequestRefused as problem:
        return Finding("server", WARNING, f"none is running, and none can be started: {problem}")
