"""`noetl dev`: a server, workers and the web page in one terminal; the project of the folder is applied on save."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from noetl.cli.output.terminal import output_options, terminal
from noetl.cli.processes.lifecycle import (
    DETACHED,
    SOCKET,
    admin_token_of,
    check_others,
    flags_of,
    free_names,
    host_option,
    open_address,
    port_option,
    process_table,
    server_url,
    start_child,
    store_option,
    terminate,
    wait_for_interrupt,
    worker_token_of,
)
from noetl.cli.target import Target, load_settings
from noetl.errors import NoetlError
from noetl.runtime.process_table import wait_ready
from noetl.settings import Settings

LOOPBACK = "127.0.0.0/8,::1/128"
WATCH_MS = 200


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(exists=True, file_okay=False))
@host_option
@port_option
@store_option
@click.option("--workers", type=click.IntRange(min=1, max=64), default=2, show_default=True)
@output_options
def dev(folder: str, host: str | None, port: str | None, store: str | None, workers: int) -> int:
    """Run a server, workers and the web page in one terminal; Ctrl-C stops all of them.

    In a project (a folder with noetl.toml) its playbooks and resources are applied at the start and when a file
    changes. Tools may connect to loopback addresses unless private_networks is set.
    """
    settings = load_settings(server_host=host, server_port=port, store=store).settings
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _serve(settings, flags_of(host=host, port=port, store=store), workers, Path(folder))
    except KeyboardInterrupt:
        return 0


def _serve(settings: Settings, flags: list[str], workers: int, folder: Path) -> int:
    with _running(settings, flags, workers) as (children, token):
        url = server_url(settings)
        terminal.note(f"NoETL is running at {url} with {workers} workers")
        if sys.stderr.isatty():  # an address that signs in is not written to a log
            terminal.note(f"  open {url}{settings.server_prefix}/#token={token}")
        else:
            terminal.note(f"  sign in with the token in {settings.home / 'admin.token'}")
        terminal.note("  use noetl register FILE, noetl execute PATH, noetl executions in another terminal")
        terminal.note("  Ctrl-C stops all processes")
        return _watch(folder, Target(server=url, token=token), children)


@contextmanager
def _running(settings: Settings, flags: list[str], workers: int) -> Iterator[tuple[list[subprocess.Popen[bytes]], str]]:
    """Start the processes; stop them at the end."""
    table = process_table(settings)
    check_others(table, "server", settings)
    url = server_url(settings)
    common = {DETACHED: "1"}
    if not settings.private_networks:
        common["NOETL_PRIVATE_NETWORKS"] = LOOPBACK
    with open_address(settings) as sock:
        inherited = {**common, SOCKET: str(sock.fileno())}
        children = [start_child(["server", "start", *flags], inherited, (sock.fileno(),))]
    try:
        table.record("server", children[0].pid, url=url)
        wait_ready(url, lambda: children[0].poll() is None)
        token = admin_token_of(settings)
        environ = {**common, "NOETL_SERVER_URL": url, "NOETL_TOKEN": worker_token_of(settings)}
        for name in free_names(table, workers):
            children.append(start_child(["worker", "start"], environ))
            table.record(name, children[-1].pid)
        yield children, token
    finally:
        # Workers first: they return their runs to the server.
        terminate(children[1:])
        terminate(children[:1])


def _watch(folder: Path, target: Target, children: list[subprocess.Popen[bytes]]) -> int:
    """Apply the project of a folder now and after every change of a file, until a process ends or Ctrl-C."""
    from noetl.cli.projects.project import find_root

    root = find_root(folder)
    if root is None:
        return wait_for_interrupt(children)
    from watchfiles import watch

    _apply(root, target)
    for changes in watch(root, rust_timeout=WATCH_MS, yield_on_timeout=True, raise_interrupt=True):
        if any(child.poll() is not None for child in children):
            return wait_for_interrupt(children)
        if any(_is_source(Path(name), root) for _, name in changes):
            _apply(root, target)
    return 0


def _is_source(file: Path, root: Path) -> bool:
    """Whether a changed file may be part of the project: not hidden, not a database."""
    from noetl.cli.projects.named_files import DATABASE_SUFFIXES

    parts = file.relative_to(root).parts if file.is_relative_to(root) else ()
    return bool(parts) and not any(part.startswith(".") for part in parts) and file.suffix not in DATABASE_SUFFIXES


def _apply(root: Path, target: Target) -> None:
    """Apply the project; problems are printed and the next change tries again."""
    from noetl.cli.projects.changes import Changes, apply_changes, find_changes
    from noetl.cli.projects.project import ProjectProfile, read_project

    async def run() -> Changes:
        async with target.open() as backend:
            found = await find_changes(backend, read_project(root), ProjectProfile(), prune=False)
            await apply_changes(backend, found)
            return found

    began = time.monotonic()
    try:
        found = asyncio.run(run())
    except NoetlError as problem:
        terminal.error(str(problem))
        return
    for each in found.playbooks:
        if each.action != "keep":
            took = f"{(time.monotonic() - began) * 1000:.0f} ms"
            terminal.note(f"  registered {each.path} version {each.version + 1} ({each.file}, {took})")
    for one in found.resources:
        if one.action != "keep":
            terminal.note(f"  {one.action}d {one.kind.lower()} {one.name}")
