"""What `noetl doctor` looks at around the store: keys and tokens, results, NATS, and the processes of this machine."""

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

PATIENCE = 5.0  # seconds that a service gets to answer


def secret_files(settings: Settings) -> Iterator[Finding]:
    """Tokens and the master key: there, whole, and nobody else's."""
    from noetl.secrets import master_key
    from noetl.server.http.access import ADMIN_FILE, TOKENS_FILE, Tokens

    well = True
    for name in (ADMIN_FILE, TOKENS_FILE, master_key.FILE):
        file = settings.home / name
        if not file.exists():
            continue
        if not os.access(file, os.R_OK):
            well = False
            yield Finding("secrets", FAILED, f"{file} cannot be read by this user; it belongs to who starts the server")
        elif stat.S_IMODE(file.stat().st_mode) & 0o077:
            well = False
            yield Finding("secrets", WARNING, f"{file} is open to other users: chmod 600 {file}")
    try:
        known = Tokens(settings.home).all() if well else []
        if not os.environ.get(master_key.VARIABLE) and (settings.home / master_key.FILE).exists():
            master_key.open_ring(settings.home, os.environ)
    except NoetlError as problem:
        yield Finding("secrets", FAILED, str(problem))
        return
    if well:
        told = (
            f"tokens: {', '.join(token.name for token in known)}"
            if known
            else "no tokens yet (made at the server's first start)"
        )
        yield Finding("secrets", OK, told)


def results(settings: Settings) -> Finding:
    """Whether large results can be kept: a folder is looked at, any other store is written to."""
    url = settings.results
    if url.startswith(("blob:", "file:")):
        parts = urlsplit(url)
        folder = Path(unquote(parts.netloc + parts.path))
        nearest = nearest_folder(folder)
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return Finding("results", OK, url + ("" if folder.exists() else " (made with the first large result)"))
        return Finding("results", FAILED, f"{url}: {nearest} does not let us write; set NOETL_RESULTS to another place")

    async def keep_and_forget() -> None:
        from noetl.storage.results import open_results

        async def chunks() -> AsyncIterator[bytes]:
            yield b"is anybody there?"

        async with asyncio.timeout(PATIENCE):
            store = open_results(url)
            try:
                await store.delete(await store.put("doctor", chunks(), content_type="text/plain"))
            finally:
                await store.close()

    try:
        asyncio.run(keep_and_forget())
        return Finding("results", OK, f"{without_password(url)} takes what it is given")
    except TimeoutError:
        words = f"it did not answer within {PATIENCE:g} s"
    except (NoetlError, OSError) as problem:
        words = str(problem)
    return Finding("results", FAILED, f"{without_password(url)}: {words}; is NOETL_RESULTS right, and is it running?")


def nats(settings: Settings) -> Iterator[Finding]:
    """Whether NATS answers and has JetStream; without it everything goes on over HTTP, more slowly."""
    if settings.nats_url is None:
        return
    from noetl.connections.nats import connect

    async def ask() -> None:
        client = await connect({"url": settings.nats_url}, timeout=PATIENCE)
        try:
            await client.jetstream().account_info()
        finally:
            await client.close()

    url = without_password(settings.nats_url)
    try:
        asyncio.run(ask())
        yield Finding("nats", OK, f"{url} answers, and has JetStream")
    except Exception as problem:  # noqa: BLE001 - its client raises whatever it likes; here it is told
        words = str(problem) or type(problem).__name__
        detail = (
            f"{url}: {words}; work goes on over HTTP until it is back. Is NOETL_NATS_URL right, does it run with -js?"
        )
        yield Finding("nats", WARNING, detail)


def processes(settings: Settings) -> Iterator[Finding]:
    """The servers and workers of this machine; without a server, whether one could be started."""
    fleet = ProcessTable(settings.home)
    servers = [member for prefix in ("server", "cluster-server") for member in fleet.members(prefix)]
    workers = [member for prefix in ("worker", "cluster-worker") for member in fleet.members(prefix)]
    asked = (settings.server_url or "").split(",")  # looked at as whoever uses them does
    for member in servers:
        if member.url in asked:
            continue
        yield from _server(member, readiness(member.url))
    if servers and not workers:
        detail = "none runs on this machine; unless they run elsewhere, `noetl worker start` starts one"
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
        yield Finding("server", WARNING, f"{warning}: `noetl worker start --pool NAME` starts one")


def _address(settings: Settings) -> Finding:
    from noetl.server.process import take_address

    where = f"{settings.server_host} port {settings.server_port}"
    try:
        take_address(settings).close()
        return Finding("server", OK, f"none runs here; `noetl server start` would listen at {where}")
    except RequestRefused as problem:
        return Finding("server", WARNING, f"none runs here, and none could be started: {problem}")
