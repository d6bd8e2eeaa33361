"""`noetl cluster`: two servers, four workers, Postgres and NATS with one command."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.errors import Conflict, RequestRefused, StoreUnavailable
from noetl.runtime.process_table import ProcessTable, Readiness, readiness

if TYPE_CHECKING:
    from noetl.runtime.process_table import ProcessEntry
    from noetl.settings import Settings

START_SECONDS = 120.0
UNREACHABLE = 4


@click.group()
def cluster() -> None:
    """Start, stop and look at a whole cluster on this machine."""


@cluster.command("start")
@click.option("--servers", type=click.IntRange(min=1, max=16), default=2, show_default=True)
@click.option("--workers", type=click.IntRange(min=1, max=64), default=4, show_default=True)
@click.option("--port", metavar="PORT", help="Port of the first server; the others follow.")
@click.option("--background", is_flag=True, help="Return once it is ready; its words go to log files.")
@talk
def cluster_start(servers: int, workers: int, port: str | None, background: bool) -> int:
    """Servers, workers, Postgres and NATS; what dies is started again, Ctrl-C stops all of them."""
    from noetl.testing.cluster import local_cluster

    settings = _settings(server_port=port)
    fleet = ProcessTable(settings.home)
    if fleet.find(local_cluster.HOLDER) is not None and not os.environ.get("NOETL_DETACHED"):
        raise Conflict("a cluster runs already; `noetl cluster stop` stops it")
    if local_cluster.members(fleet):
        raise Conflict("parts of an earlier cluster still run; `noetl cluster stop` stops them")
    if background:
        words = ["cluster", "start", "--servers", str(servers), "--workers", str(workers)]
        words += ["--port", str(settings.server_port)]
        holder = fleet.start(local_cluster.HOLDER, words, {"NOETL_DETACHED": "1"})
        _wait(settings, holder, servers + workers + 2)
        _show(fleet, settings)
        return 0
    held = local_cluster.LocalCluster(
        settings.home,
        host=settings.server_host,
        port=settings.server_port,
        servers=servers,
        workers=workers,
        say=terminal.warn,
    )
    return _hold(held, fleet, settings)


@cluster.command("stop")
@click.option("--forget", is_flag=True, help="Delete the cluster's data as well.")
@talk
def cluster_stop(forget: bool) -> None:
    """Let runs and requests finish, then stop all of it."""
    from noetl.testing.cluster import local_cluster

    home = _settings().home
    fleet = ProcessTable(home)
    holder = fleet.find(local_cluster.HOLDER)
    if holder is not None and not fleet.stop(holder, 2 * local_cluster.STOP_SECONDS):
        terminal.warn("the cluster did not stop in time and was killed; nothing that was acknowledged is lost")
    left = local_cluster.stop_left_over(fleet)
    terminal.note("the cluster has stopped" if holder is not None or left else "no cluster runs")
    if forget:
        local_cluster.forget(home)
        terminal.note("its data has been deleted")


@cluster.command("status")
@as_json
@talk
def cluster_status(as_json: bool) -> int:
    """Say what runs, where, and whether it makes progress."""
    from noetl.testing.cluster import local_cluster

    home = _settings().home
    fleet = ProcessTable(home)
    members = local_cluster.members(fleet)
    absent = local_cluster.absent(home, members)
    rows = []
    for member in members:
        said = readiness(member.url) if member.url.startswith("http") else Readiness(True, [], [])
        if member in absent:
            said = Readiness(False, ["has not asked for work"], [])
        rows.append((member, said.ready, said.problems))
    healthy = bool(rows) and fleet.find(local_cluster.HOLDER) is not None and all(ready for _, ready, _ in rows)
    if as_json:
        parts = [
            {
                "name": member.name.removeprefix(local_cluster.PREFIX),
                "pid": member.pid,
                "address": member.url or None,
                "ready": ready,
                "problems": problems,
                "log": member.log,
            }
            for member, ready, problems in rows
        ]
        terminal.json({"running": bool(rows), "ready": healthy, "parts": parts})
    elif rows:
        terminal.table(
            ("part", "pid", "address", "state"),
            [
                (member.name.removeprefix(local_cluster.PREFIX), member.pid, member.url, _state(ready, problems))
                for member, ready, problems in rows
            ],
        )
    else:
        terminal.data("no cluster runs; `noetl cluster start` starts one")
    return 0 if healthy else UNREACHABLE


# ── inside ──────────────────────────────────────────────────────────────────────────────


def _hold(held: Any, fleet: ProcessTable, settings: Settings) -> int:
    """Start it and keep it alive until a signal comes; a second one does not wait."""
    from noetl.testing.cluster import local_cluster

    told: list[int] = []

    def stop(signum: int, _: object) -> None:
        told.append(signum)
        if len(told) > 2:
            raise KeyboardInterrupt

    def ready() -> None:
        if not os.environ.get("NOETL_DETACHED"):
            _show(fleet, settings)
            terminal.note("  Ctrl-C stops everything")

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    try:
        fleet.record(local_cluster.HOLDER, os.getpid())
        held.start()
        held.keep(lambda: bool(told), ready)
        return 0
    except RuntimeError as problem:
        raise RequestRefused(str(problem)) from None
    finally:
        held.stop()


def _show(fleet: ProcessTable, settings: Settings) -> None:
    from noetl.testing.cluster import local_cluster

    members = local_cluster.members(fleet)
    urls = [member.url for member in members if member.url.startswith("http")]
    workers = sum("-worker-" in member.name for member in members)
    there = workers - len(local_cluster.absent(settings.home, members))
    come = f"{workers} workers" if there == workers else f"{there} of {workers} workers"
    terminal.note(f"the cluster is ready: {len(urls)} servers, {come}")
    for member in members:
        if member.url:
            terminal.note(f"  {member.name.removeprefix(local_cluster.PREFIX):10} {member.url} (process {member.pid})")
    terminal.note(f"  sign in with the token in {settings.home / 'admin.token'}; logs are in {settings.home / 'logs'}")
    terminal.note("  noetl register FILE, noetl execute PATH, noetl executions ... mean this cluster while it runs")


def _wait(settings: Settings, holder: ProcessEntry, count: int) -> None:
    """Until every part runs, every server is ready and every worker has asked for work."""
    from noetl.testing.cluster import local_cluster

    fleet = ProcessTable(settings.home)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and fleet.is_alive(holder):
        parts = local_cluster.members(fleet)
        if (
            len(parts) == count
            and all(readiness(each.url).ready for each in parts if each.url.startswith("http"))
            and not local_cluster.absent(settings.home, parts)
        ):
            return
        time.sleep(0.1)
    words = fleet.last_lines(holder, 15)
    if fleet.is_alive(holder):
        fleet.stop(holder)
    raise StoreUnavailable(f"the cluster did not come up; its log {holder.log} ends with:\n{words}")


def _settings(**flags: Any) -> Settings:
    from noetl.settings import load

    loaded = load(flags)
    for warning in loaded.warnings:
        terminal.warn(warning)
    return loaded.settings


def _state(ready: bool, problems: list[str]) -> str:
    return "ready" if ready else "; ".join(problems) or "not ready"
