"""Commands that start, stop and inspect servers and workers of this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import load_settings, token_option
from noetl.errors import Conflict, RequestRefused, StoreUnavailable
from noetl.runtime.process_table import LOG_FILE, Readiness, readiness, wait_ready

if TYPE_CHECKING:
    import logging

    from noetl.runtime.process_table import ProcessEntry, ProcessTable
    from noetl.settings import Settings

UNREACHABLE = 4
DETACHED = "NOETL_DETACHED"  # the parent has recorded this process in the process table
SOCKET = "NOETL_TAKEN"  # the descriptor of the listening socket that the parent has opened
TIED = "NOETL_HELD"  # stop when standard input is closed: the parent has ended
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,50}")

store_option = click.option("--store", metavar="URL", help="Event store of the server.")
host_option = click.option("--host", metavar="ADDRESS", help="Address to listen on.")
port_option = click.option("--port", metavar="PORT", help="Port to listen on.")
name_option = click.option("--name", metavar="NAME", help="Name of the server, if several share a Postgres store.")
log_option = click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of the log.")


@click.group()
def server() -> None:
    """Start, stop and inspect the server of this installation."""


@server.command("start")
@host_option
@port_option
@store_option
@name_option
@log_option
@click.option("--background", is_flag=True, help="Return when the server is ready; output is written to a log file.")
@output_options
def server_start(
    host: str | None, port: str | None, store: str | None, name: str | None, log_format: str | None, background: bool
) -> None:
    """Serve the API and the web page, in this terminal or with --background."""
    settings = load_settings(server_host=host, server_port=port, store=store, log_format=log_format).settings
    table = process_table(settings)
    server_name = _server_name(name)
    if not os.environ.get(DETACHED):
        check_others(table, server_name, settings)
    if not background:
        _serve(settings, table, server_name)
        return
    flags = flags_of(**{"host": host, "port": port, "store": store, "name": name, "log-format": log_format})
    with open_address(settings) as sock:
        environ = {DETACHED: "1", SOCKET: str(sock.fileno())}
        member = table.start(server_name, ["server", "start", *flags], environ, server_url(settings), (sock.fileno(),))
    _wait_ready(table, member)
    terminal.note(f"the server is ready at {member.url} (process {member.pid}, log {member.log})")


@server.command("stop")
@name_option
@output_options
def server_stop(name: str | None) -> None:
    """Let requests finish, then stop; without --name all servers of this installation."""
    table = process_table(load_settings().settings)
    members = [member for member in table.members("server") if name is None or member.name == _server_name(name)]
    if not members:
        terminal.note("no server is running")
    for member in members:
        if not table.stop(member):
            terminal.warn("the server did not stop in time and was killed; acknowledged work is not lost")
        terminal.note("the server has stopped" if len(members) == 1 else f"{member.name} has stopped")


@server.command("status")
@name_option
@json_options
def server_status(name: str | None, as_json: bool) -> int:
    """Show whether the server is running and ready."""
    members = [
        member
        for member in process_table(load_settings().settings).members("server")
        if name is None or member.name == _server_name(name)
    ]
    found = [(member, readiness(member.url)) for member in members]
    message = "no server is running; `noetl server start` starts one"
    if as_json:
        rows = [_server_document(*each) for each in found]
        none = _server_document(None, Readiness(False, [message], []))
        terminal.json({**(rows[0] if rows else none), "servers": rows})
    elif not found:
        terminal.data(message)
    else:
        for member, status in found:
            prefix = f"{member.name} " if len(found) > 1 else ""
            state = "ready" if status.ready else "not ready"
            terminal.data(f"{prefix}running at {member.url} (process {member.pid}): {state}")
            for text in (*status.problems, *status.warnings):
                terminal.data(f"  {text}")
    return 0 if found and all(status.ready for _, status in found) else UNREACHABLE


def _server_document(member: ProcessEntry | None, status: Readiness) -> dict[str, Any]:
    return {
        "running": member is not None,
        "ready": status.ready,
        "problems": status.problems,
        "warnings": status.warnings,
        "url": member.url if member else None,
        "pid": member.pid if member else None,
        "log": (member.log or None) if member else None,
        "name": member.name if member else None,
    }


@click.group()
def worker() -> None:
    """Start, stop and inspect workers on this machine."""


count_option = click.option("--count", type=click.IntRange(min=1, max=256), default=1, show_default=True)
server_option = click.option("--server", metavar="URL", help="Server to lease runs from; separate several with commas.")
pool_option = click.option("--pool", metavar="NAME", help="Pool to lease runs from.")
label_option = click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label that steps can require; repeatable."
)
runtime_option = click.option(
    "--runtime", metavar="URL", help="Cluster that executes python and shell tasks (a plug-in): ray://HOST:6379."
)
slots_option = click.option("--slots", metavar="N", help="Concurrent runs of a worker.")


@worker.command("start")
@count_option
@pool_option
@label_option
@runtime_option
@slots_option
@server_option
@token_option
@log_option
@click.option("--background", is_flag=True, help="Return at once; output is written to log files.")
@output_options
def worker_start(
    count: int,
    pool: str | None,
    labels: tuple[str, ...],
    runtime: str | None,
    slots: str | None,
    server: str | None,
    token: str | None,
    log_format: str | None,
    background: bool,
) -> int:
    """Start workers in this terminal (Ctrl-C stops them), or in the background with --background."""
    if labels:
        os.environ["NOETL_WORKER_LABELS"] = ",".join(labels)  # also of the processes that are started
    if runtime:
        os.environ["NOETL_WORKER_RUNTIME"] = runtime
    settings = _with_server(
        load_settings(worker_pool=pool, slots=slots, server_url=server, token=token, log_format=log_format).settings
    )
    _check_token(settings)
    table = process_table(settings)
    if count == 1 and not background:
        if not os.environ.get(DETACHED):
            table.join(free_names(table, 1)[0])
        _work(settings)
        return 0
    if not background:
        return _work_in_children(table, settings, count, flags_of(pool=pool, slots=slots))
    for member in _start_workers(table, settings, count, pool, slots):
        terminal.note(f"{member.name} is running (process {member.pid}, log {member.log})")
    return 0


@worker.command("stop")
@output_options
def worker_stop() -> None:
    """Let started runs finish, return the others to the server, then stop."""
    table = process_table(load_settings().settings)
    stopped = _stop(table, table.members("worker"))
    terminal.note(f"{stopped} workers have stopped" if stopped != 1 else "1 worker has stopped")


@worker.command("status")
@json_options
def worker_status(as_json: bool) -> int:
    """List the workers of this machine."""
    members = process_table(load_settings().settings).members("worker")
    if as_json:
        terminal.json([{"name": member.name, "pid": member.pid, "log": member.log or None} for member in members])
    elif members:
        terminal.table(("worker", "pid", "log"), [(member.name, member.pid, member.log) for member in members])
    else:
        terminal.data("no worker is running; `noetl worker start` starts one")
    return 0 if members else UNREACHABLE


@worker.command("scale")
@click.argument("count", type=click.IntRange(min=0, max=256))
@pool_option
@slots_option
@server_option
@token_option
@output_options
def worker_scale(count: int, pool: str | None, slots: str | None, server: str | None, token: str | None) -> None:
    """Start or stop background workers until COUNT are running on this machine."""
    settings = _with_server(load_settings(worker_pool=pool, slots=slots, server_url=server, token=token).settings)
    table = process_table(settings)
    members = [member for member in table.members("worker") if member.log]  # the others run in a terminal
    if count:
        _check_token(settings)
    if len(members) < count:
        _start_workers(table, settings, count - len(members), pool, slots)
    else:
        _stop(table, members[count:])
    terminal.note(f"{count} workers" if count != 1 else "1 worker")


def _work_in_children(table: ProcessTable, settings: Settings, count: int, flags: list[str]) -> int:
    """Run several workers in this terminal until Ctrl-C."""
    environ = _worker_environ(settings)
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in free_names(table, count):
            children.append(start_child(["worker", "start", *flags], environ))
            table.record(name, children[-1].pid)
        terminal.note(f"{count} workers are running; Ctrl-C stops them")
        return wait_for_interrupt(children)
    except KeyboardInterrupt:
        return 0
    finally:
        terminate(children)


def wait_for_interrupt(children: list[subprocess.Popen[bytes]]) -> int:
    """Wait until a child ends; Ctrl-C raises KeyboardInterrupt."""
    while all(child.poll() is None for child in children):
        time.sleep(0.2)
    terminal.error("a process has ended; stopping the others")
    return 1


def terminate(children: list[subprocess.Popen[bytes]]) -> None:
    """Stop child processes and wait for them."""
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait()
        if child.stdin is not None:
            child.stdin.close()


# ── implementation ──────────────────────────────────────────────────────────────────────


def flags_of(**values: str | None) -> list[str]:
    """The given options as arguments of a child process."""
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", value)]


def process_table(settings: Settings) -> ProcessTable:
    """The processes of this installation."""
    from noetl.runtime.process_table import ProcessTable

    return ProcessTable(settings.home)


def server_url(settings: Settings) -> str:
    """The address of a server on this machine."""
    host = settings.server_host
    shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else f"[{host}]" if ":" in host else host
    scheme = "http" if settings.server_tls_cert is None else "https"
    return f"{scheme}://{shown}:{settings.server_port}{settings.server_prefix}"


def _with_server(settings: Settings) -> Settings:
    """The settings with a server and a token; those of this machine where none are given."""
    import msgspec

    url = settings.server_url
    if url is None:
        running = process_table(settings).find("server")
        url = running.url if running else server_url(settings)
    token = settings.token or worker_token_of(settings)
    return msgspec.structs.replace(settings, server_url=url, token=token)


_NO_SERVER = (
    "there is no server on this machine yet: `noetl server start` starts one; for another machine set "
    "NOETL_SERVER_URL and NOETL_TOKEN (a token with the role worker)"
)


def worker_token_of(settings: Settings) -> str:
    """The token of the workers on this machine, which has the role worker only."""
    from noetl.server.http.access import Tokens, local_worker_token

    if not Tokens(settings.home).all():
        raise RequestRefused(_NO_SERVER)
    return local_worker_token(settings.home)


def admin_token_of(settings: Settings) -> str:
    """The administrator's token of the server on this machine."""
    from noetl.server.http.access import ADMIN_FILE, Tokens, admin_token

    token = admin_token(settings.home)
    if token is None:
        file = settings.home / ADMIN_FILE
        raise RequestRefused(
            f"{file} does not exist; `noetl token create NAME --role admin > {file}` creates another token for it"
            if Tokens(settings.home).all()
            else _NO_SERVER
        )
    return token


def _server_name(name: str | None) -> str:
    """The name of a server in the process table."""
    if name is None:
        return "server"
    if not NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not a valid name: use letters, digits, _ and -", param_hint="--name")
    return f"server-{name}"


def check_others(table: ProcessTable, server_name: str, settings: Settings) -> None:
    """A NOETL_HOME has one server, unless several with different names share a Postgres store."""
    running = table.members("server")
    if not running:
        return
    urls = ", ".join(f"{member.url} (process {member.pid})" for member in running)
    if any(member.name == server_name for member in running):
        more = "; --name and --port start another one" if _uses_postgres(settings) else ""
        raise Conflict(f"a server is already running at {urls}; `noetl server stop` stops it{more}")
    if not _uses_postgres(settings):
        raise Conflict(
            f"a server is already running at {urls}; several servers require a Postgres store "
            "(--store postgresql://user:password@host/database)"
        )


def _uses_postgres(settings: Settings) -> bool:
    return settings.store.startswith(("postgres:", "postgresql:"))


def free_names(table: ProcessTable, count: int) -> list[str]:
    """Names for new workers."""
    taken = {member.name for member in table.members("worker")}
    return [name for number in range(1, 1000) if (name := f"worker-{number}") not in taken][:count]


def _check_token(settings: Settings) -> None:
    """Raise an error if the server rejects the token; warn if it is unreachable."""
    from noetl.transport.api_connection import ApiConnection, Request

    assert settings.server_url is not None
    connection = ApiConnection(settings.server_url, settings.token, timeout=5.0)
    try:
        connection.request(Request("POST", "/api/work/extend", {"worker": f"check-{os.getpid()}", "runs": []}))
    except StoreUnavailable as problem:
        terminal.warn(f"{problem}; the worker waits for it")
    finally:
        connection.close()


def _serve(settings: Settings, table: ProcessTable, server_name: str) -> None:
    from noetl.server.process import serve, take_address

    _log_to_stderr(settings)
    _stop_with_parent()
    inherited = os.environ.pop(SOCKET, None)
    sock = take_address(settings) if inherited is None else socket.socket(fileno=int(inherited))
    own = not os.environ.get(DETACHED)
    if own:
        table.join(server_name, server_url(settings))
    message = f"the server is running at {server_url(settings)}; Ctrl-C stops it"
    serve(settings, sock, lambda: terminal.note(message) if own else None)


def open_address(settings: Settings) -> socket.socket:
    """Open the listening socket of a server before it starts, so that no other process takes its address."""
    from noetl.server.process import take_address

    sock = take_address(settings)
    sock.listen()
    return sock


def _work(settings: Settings) -> None:
    from noetl.runtime import event_loop as loops
    from noetl.worker.process import work

    _log_to_stderr(settings)
    _stop_with_parent()
    loops.run(work(settings))


def _stop_with_parent() -> None:
    """Stop when the parent, which has the other end of standard input, has ended."""
    if not os.environ.get(TIED):
        return
    import threading

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="noetl-parent", daemon=True).start()


def _log_to_stderr(settings: Settings) -> None:
    import logging

    from noetl.observability import logging as logs

    level = logging.WARNING if terminal.quiet else logging.DEBUG if terminal.verbose > 1 else logging.INFO
    logs.configure(settings.log_format, level, handler=_rotating(settings))


def _rotating(settings: Settings) -> logging.Handler | None:
    """The handler of a background process, whose standard error is a file in NOETL_HOME/logs."""
    name = os.environ.get(LOG_FILE)
    if not name:
        return None
    from noetl.observability.log_rotation import RotatingStreamHandler, is_file

    file = Path(name)
    if not is_file(sys.stderr, file):
        return None
    return RotatingStreamHandler(sys.stderr, file, settings.log_rotate_mb << 20, settings.log_rotate_files)


# Settings of a server that a worker must not have in its environment: tasks run as the worker's user.
SERVER_VARIABLES = ("NOETL_SECRET_KEY", "NOETL_STORE")


def _start_workers(
    table: ProcessTable, settings: Settings, count: int, pool: str | None, slots: str | None
) -> list[ProcessEntry]:
    names = free_names(table, count)
    flags = flags_of(pool=pool, slots=slots)
    environ = _worker_environ(settings)
    return [table.start(name, ["worker", "start", *flags], environ, without=SERVER_VARIABLES) for name in names]


def _worker_environ(settings: Settings) -> dict[str, str]:
    assert settings.server_url is not None
    assert settings.token is not None
    return {
        "NOETL_SERVER_URL": settings.server_url,
        "NOETL_TOKEN": settings.token,
        "NOETL_LOG_FORMAT": settings.log_format,
        DETACHED: "1",
    }


def _stop(table: ProcessTable, members: list[ProcessEntry]) -> int:
    for member in members:
        if table.is_alive(member):
            os.kill(member.pid, signal.SIGTERM)
    for member in members:
        if not table.stop(member):
            terminal.warn(f"{member.name} did not stop in time and was killed; other workers take over its runs")
    return len(members)


def start_child(
    arguments: list[str], environ: dict[str, str], descriptors: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start a process that does not receive Ctrl-C of this terminal: its parent stops it in order."""
    command = [sys.executable, "-m", "noetl.clictl", *arguments]
    environ = {**os.environ, **environ, TIED: "1"}
    return subprocess.Popen(command, env=environ, process_group=0, stdin=subprocess.PIPE, pass_fds=descriptors)


def _wait_ready(table: ProcessTable, member: ProcessEntry) -> None:
    try:
        wait_ready(member.url, lambda: table.is_alive(member))
    except StoreUnavailable:
        last_lines = table.last_lines(member)
        raise StoreUnavailable(f"the server did not start; its log {member.log} ends with:\n{last_lines}") from None
