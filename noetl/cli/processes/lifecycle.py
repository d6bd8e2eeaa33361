"""Verbs for the life of servers and workers: start, stop, status, scale; and `dev`, all in one terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import token_option
from noetl.errors import Conflict, RequestRefused, StoreUnavailable
from noetl.runtime.process_table import Readiness, readiness, wait_ready

if TYPE_CHECKING:
    from noetl.runtime.process_table import ProcessEntry, ProcessTable
    from noetl.settings import Settings

UNREACHABLE = 4
DETACHED = "NOETL_DETACHED"  # tells a process that the one which started it has written it down
TAKEN = "NOETL_TAKEN"  # the descriptor of the server's address, when whoever started the process has taken it
HELD = "NOETL_HELD"  # tells a process to stop when its standard input is closed: whoever started it is gone
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,50}")

store_option = click.option("--store", metavar="URL", help="Event store of the server.")
host_option = click.option("--host", metavar="ADDRESS", help="Address to listen on.")
port_option = click.option("--port", metavar="PORT", help="Port to listen on.")
name_option = click.option("--name", metavar="NAME", help="Which of several servers on one Postgres.")
log_option = click.option("--log-format", type=click.Choice(["text", "json"]), help="Form of the log.")


@click.group()
def server() -> None:
    """Start, stop and look at the server of this installation."""


@server.command("start")
@host_option
@port_option
@store_option
@name_option
@log_option
@click.option("--background", is_flag=True, help="Return once it is ready; its words go to a log file.")
@talk
def server_start(
    host: str | None, port: str | None, store: str | None, name: str | None, log_format: str | None, background: bool
) -> None:
    """Serve the API and the web page; with --background, without this terminal."""
    settings = _settings(server_host=host, server_port=port, store=store, log_format=log_format)
    fleet = _fleet(settings)
    called = _called(name)
    if not os.environ.get(DETACHED):
        _check_others(fleet, called, settings)
    if not background:
        _serve(settings, fleet, called)
        return
    flags = _flags(**{"host": host, "port": port, "store": store, "name": name, "log-format": log_format})
    with _address(settings) as sock:
        environ = {DETACHED: "1", TAKEN: str(sock.fileno())}
        member = fleet.start(called, ["server", "start", *flags], environ, _url(settings), (sock.fileno(),))
    _wait_ready(fleet, member)
    terminal.note(f"the server is ready at {member.url} (process {member.pid}, log {member.log})")


@server.command("stop")
@name_option
@talk
def server_stop(name: str | None) -> None:
    """Let requests finish, then stop; without --name every server of this installation."""
    fleet = _fleet(_settings())
    members = [member for member in fleet.members("server") if name is None or member.name == _called(name)]
    if not members:
        terminal.note("no server runs")
    for member in members:
        if not fleet.stop(member):
            terminal.warn("the server did not stop in time and was killed; nothing that was acknowledged is lost")
        terminal.note("the server has stopped" if len(members) == 1 else f"{member.name} has stopped")


@server.command("status")
@name_option
@as_json
@talk
def server_status(name: str | None, as_json: bool) -> int:
    """Say whether it runs and whether it makes progress."""
    members = [
        member for member in _fleet(_settings()).members("server") if name is None or member.name == _called(name)
    ]
    found = [(member, readiness(member.url)) for member in members]
    nothing = "no server runs; `noetl server start` starts one"
    if as_json:
        rows = [_server_document(*each) for each in found]
        none = _server_document(None, Readiness(False, [nothing], []))
        terminal.json({**(rows[0] if rows else none), "servers": rows})
    elif not found:
        terminal.data(nothing)
    else:
        for member, said in found:
            called = f"{member.name} " if len(found) > 1 else ""
            state = "ready" if said.ready else "not ready"
            terminal.data(f"{called}running at {member.url} (process {member.pid}): {state}")
            for words in (*said.problems, *said.warnings):
                terminal.data(f"  {words}")
    return 0 if found and all(said.ready for _, said in found) else UNREACHABLE


def _server_document(member: ProcessEntry | None, said: Readiness) -> dict[str, Any]:
    return {
        "running": member is not None,
        "ready": said.ready,
        "problems": said.problems,
        "warnings": said.warnings,
        "url": member.url if member else None,
        "pid": member.pid if member else None,
        "log": (member.log or None) if member else None,
        "name": member.name if member else None,
    }


@click.group()
def worker() -> None:
    """Start, stop and look at workers on this machine."""


count_option = click.option("--count", type=click.IntRange(min=1, max=256), default=1, show_default=True)
server_option = click.option("--server", metavar="URL", help="Server to lease from; several are separated by commas.")
pool_option = click.option("--pool", metavar="NAME", help="Pool to lease from.")
slots_option = click.option("--slots", metavar="N", help="Runs a worker works on at once.")


@worker.command("start")
@count_option
@pool_option
@slots_option
@server_option
@token_option
@log_option
@click.option("--background", is_flag=True, help="Return at once; their words go to log files.")
@talk
def worker_start(
    count: int,
    pool: str | None,
    slots: str | None,
    server: str | None,
    token: str | None,
    log_format: str | None,
    background: bool,
) -> None:
    """Lease runs from the server; more than one, or with --background, without this terminal."""
    settings = _joined(_settings(worker_pool=pool, slots=slots, server_url=server, token=token, log_format=log_format))
    _check_token(settings)
    fleet = _fleet(settings)
    if count == 1 and not background:
        if not os.environ.get(DETACHED):
            fleet.join(_free_names(fleet, 1)[0])
        _work(settings)
        return
    for member in _start_workers(fleet, settings, count, pool, slots):
        terminal.note(f"{member.name} runs (process {member.pid}, log {member.log})")


@worker.command("stop")
@talk
def worker_stop() -> None:
    """Let runs finish, give the rest back, then stop."""
    fleet = _fleet(_settings())
    stopped = _stop(fleet, fleet.members("worker"))
    terminal.note(f"{stopped} workers have stopped" if stopped != 1 else "1 worker has stopped")


@worker.command("status")
@as_json
@talk
def worker_status(as_json: bool) -> int:
    """List the workers of this machine."""
    members = _fleet(_settings()).members("worker")
    if as_json:
        terminal.json([{"name": member.name, "pid": member.pid, "log": member.log or None} for member in members])
    elif members:
        terminal.table(("worker", "pid", "log"), [(member.name, member.pid, member.log) for member in members])
    else:
        terminal.data("no worker runs; `noetl worker start` starts one")
    return 0 if members else UNREACHABLE


@worker.command("scale")
@click.argument("count", type=click.IntRange(min=0, max=256))
@pool_option
@slots_option
@server_option
@token_option
@talk
def worker_scale(count: int, pool: str | None, slots: str | None, server: str | None, token: str | None) -> None:
    """Have exactly COUNT workers in the background on this machine."""
    settings = _joined(_settings(worker_pool=pool, slots=slots, server_url=server, token=token))
    fleet = _fleet(settings)
    members = [member for member in fleet.members("worker") if member.log]  # the others have a terminal
    if count:
        _check_token(settings)
    if len(members) < count:
        _start_workers(fleet, settings, count - len(members), pool, slots)
    else:
        _stop(fleet, members[count:])
    terminal.note(f"{count} workers" if count != 1 else "1 worker")


@click.command()
@host_option
@port_option
@store_option
@click.option("--workers", type=click.IntRange(min=1, max=64), default=2, show_default=True)
@talk
def dev(host: str | None, port: str | None, store: str | None, workers: int) -> int:
    """Server, workers and web page in one terminal; Ctrl-C stops all of them."""
    settings = _settings(server_host=host, server_port=port, store=store)
    fleet = _fleet(settings)
    _check_others(fleet, "server", settings)
    url = _url(settings)
    flags = _flags(host=host, port=port, store=store)
    with _address(settings) as sock:
        taken = {DETACHED: "1", TAKEN: str(sock.fileno())}
        children = [_child(["server", "start", *flags], taken, (sock.fileno(),))]
    try:
        fleet.record("server", children[0].pid, url=url)
        wait_ready(url, lambda: children[0].poll() is None)
        token = _admin_token(settings)
        joined = {"NOETL_SERVER_URL": url, "NOETL_TOKEN": token, DETACHED: "1"}
        for name in _free_names(fleet, workers):
            children.append(_child(["worker", "start"], joined))
            fleet.record(name, children[-1].pid)
        terminal.note(f"NoETL is at {url}, with {workers} workers")
        if sys.stderr.isatty():  # an address that signs in belongs to the person at the terminal, not into a log
            terminal.note(f"  open {url}{settings.server_prefix}/#token={token}")
        else:
            terminal.note(f"  sign in with the token in {settings.home / 'admin.token'}")
        terminal.note("  noetl register FILE, noetl execute PATH, noetl executions: here or in another terminal")
        terminal.note("  Ctrl-C stops everything")
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        terminal.error("a process ended by itself; stopping the others")
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        # First the workers, which give back what they hold; the server takes it.
        _end(children[1:])
        _end(children[:1])


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait()
        if child.stdin is not None:
            child.stdin.close()


# ── inside ──────────────────────────────────────────────────────────────────────────────


def _settings(**flags: Any) -> Settings:
    from noetl.settings import load

    loaded = load(flags)
    for warning in loaded.warnings:
        terminal.warn(warning)
    return loaded.settings


def _flags(**values: str | None) -> list[str]:
    """The flags that were given, for a process that is started with them."""
    return [word for name, value in values.items() if value is not None for word in (f"--{name}", value)]


def _fleet(settings: Settings) -> ProcessTable:
    from noetl.runtime.process_table import ProcessTable

    return ProcessTable(settings.home)


def _url(settings: Settings) -> str:
    host = settings.server_host
    shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.server_port}{settings.server_prefix}"


def _joined(settings: Settings) -> Settings:
    """The settings with a server and a token: this machine's own, where none are given."""
    import msgspec

    url = settings.server_url
    if url is None:
        running = _fleet(settings).find("server")
        url = running.url if running else _url(settings)
    token = settings.token or _admin_token(settings)
    return msgspec.structs.replace(settings, server_url=url, token=token)


def _admin_token(settings: Settings) -> str:
    from noetl.server.http.access import admin_token

    token = admin_token(settings.home)
    if token is None:
        raise RequestRefused(
            "there is no server here yet: `noetl server start` starts one; for one elsewhere set NOETL_SERVER_URL "
            "and NOETL_TOKEN (a token with the role worker)"
        )
    return token


def _called(name: str | None) -> str:
    """The name of a server among the processes of this home."""
    if name is None:
        return "server"
    if not NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no name: letters, digits, _ and -", param_hint="--name")
    return f"server-{name}"


def _check_others(fleet: ProcessTable, called: str, settings: Settings) -> None:
    """A home has one server, unless they share a Postgres and have names of their own."""
    running = fleet.members("server")
    if not running:
        return
    told = ", ".join(f"{member.url} (process {member.pid})" for member in running)
    if any(member.name == called for member in running):
        more = "; with --name and --port another one can run beside it" if _shares(settings) else ""
        raise Conflict(f"a server runs already at {told}; `noetl server stop` stops it{more}")
    if not _shares(settings):
        raise Conflict(
            f"a server runs already at {told}; several at once need a store on Postgres "
            "(--store postgresql://user:password@host/database)"
        )


def _shares(settings: Settings) -> bool:
    return settings.store.startswith(("postgres:", "postgresql:"))


def _free_names(fleet: ProcessTable, count: int) -> list[str]:
    taken = {member.name for member in fleet.members("worker")}
    return [name for number in range(1, 1000) if (name := f"worker-{number}") not in taken][:count]


def _check_token(settings: Settings) -> None:
    """A token that the server does not know is said at once; a server that is away is waited for."""
    from noetl.transport.api_connection import ApiConnection

    assert settings.server_url is not None
    line = ApiConnection(settings.server_url, settings.token, timeout=5.0)
    try:
        line.ask("POST", "/api/work/extend", {"worker": f"check-{os.getpid()}", "runs": []})
    except StoreUnavailable as problem:
        terminal.warn(f"{problem}; the worker waits for it")
    finally:
        line.close()


def _serve(settings: Settings, fleet: ProcessTable, called: str) -> None:
    from noetl.server.process import serve, take_address

    _log_to_stderr(settings)
    _end_with_parent()
    taken = os.environ.pop(TAKEN, None)
    sock = take_address(settings) if taken is None else socket.socket(fileno=int(taken))
    if not os.environ.get(DETACHED):
        fleet.join(called, _url(settings))
        terminal.note(f"the server is at {_url(settings)}; Ctrl-C stops it")
    serve(settings, sock)


def _address(settings: Settings) -> socket.socket:
    """Take the address of a server that is about to start, so that nobody else can answer in its place."""
    from noetl.server.process import take_address

    sock = take_address(settings)
    sock.listen()
    return sock


def _work(settings: Settings) -> None:
    from noetl.runtime import event_loop as loops
    from noetl.worker.process import work

    _log_to_stderr(settings)
    _end_with_parent()
    loops.run(work(settings))


def _end_with_parent() -> None:
    """Stop when the terminal that holds our standard input is gone, however it ended."""
    if not os.environ.get(HELD):
        return
    import threading

    def listen() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, name="noetl-held", daemon=True).start()


def _log_to_stderr(settings: Settings) -> None:
    import logging

    from noetl.observability import logging as logs

    level = logging.WARNING if terminal.quiet else logging.DEBUG if terminal.verbose > 1 else logging.INFO
    logs.configure(settings.log_format, level)


def _start_workers(
    fleet: ProcessTable, settings: Settings, count: int, pool: str | None, slots: str | None
) -> list[ProcessEntry]:
    names = _free_names(fleet, count)
    flags = _flags(pool=pool, slots=slots)
    assert settings.server_url is not None
    assert settings.token is not None
    environ = {
        "NOETL_SERVER_URL": settings.server_url,
        "NOETL_TOKEN": settings.token,
        "NOETL_LOG_FORMAT": settings.log_format,
        DETACHED: "1",
    }
    return [fleet.start(name, ["worker", "start", *flags], environ) for name in names]


def _stop(fleet: ProcessTable, members: list[ProcessEntry]) -> int:
    for member in members:
        if fleet.is_alive(member):
            os.kill(member.pid, signal.SIGTERM)
    for member in members:
        if not fleet.stop(member):
            terminal.warn(f"{member.name} did not stop in time and was killed; its runs go on elsewhere")
    return len(members)


def _child(arguments: list[str], environ: dict[str, str], keep: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """A process of this terminal that does not hear its Ctrl-C: its parent stops it in order."""
    command = [sys.executable, "-m", "noetl.clictl", *arguments]
    environ = {**os.environ, **environ, HELD: "1"}
    return subprocess.Popen(command, env=environ, process_group=0, stdin=subprocess.PIPE, pass_fds=keep)


def _wait_ready(fleet: ProcessTable, member: ProcessEntry) -> None:
    try:
        wait_ready(member.url, lambda: fleet.is_alive(member))
    except StoreUnavailable:
        words = fleet.last_lines(member)
        raise StoreUnavailable(f"the server did not come up; its log {member.log} ends with:\n{words}") from None
