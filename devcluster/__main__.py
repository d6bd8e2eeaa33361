"""`python -m devcluster`: start, stop and inspect a cluster of servers, workers, Postgres and NATS on this machine."""

from __future__ import annotations

import os
import sys

import click

from devcluster import local_cluster
from noetl.cli.app import UNREACHABLE, run
from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.target import load_settings
from noetl.errors import Conflict
from noetl.runtime.process_table import ProcessTable
from noetl.settings import Settings


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cluster() -> None:
    """Start, stop and inspect a cluster on this machine."""


@cluster.command("start")
@click.option("--servers", type=click.IntRange(min=1, max=16), default=2, show_default=True)
@click.option("--workers", type=click.IntRange(min=1, max=64), default=4, show_default=True)
@click.option("--port", metavar="PORT", help="Port of the first server; the others use the following ports.")
@click.option("--background", is_flag=True, help="Return when the cluster is ready; output is written to log files.")
@output_options
def cluster_start(servers: int, workers: int, port: str | None, background: bool) -> None:
    """Start servers, workers, Postgres and NATS. A process that ends is restarted; Ctrl-C stops the cluster."""
    settings = load_settings(server_port=port).settings
    if local_cluster.is_running(settings.home) and not os.environ.get("NOETL_DETACHED"):
        raise Conflict("a cluster is already running; `python -m devcluster stop` stops it")
    if local_cluster.members(ProcessTable(settings.home)):
        raise Conflict("processes of an earlier cluster are still running; `python -m devcluster stop` stops them")
    if background:
        local_cluster.start_in_background(settings, servers=servers, workers=workers)
        _show(settings)
        return

    def on_ready() -> None:
        if not os.environ.get("NOETL_DETACHED"):
            _show(settings)
            terminal.note("  Ctrl-C stops the cluster")

    local_cluster.LocalCluster(settings, servers=servers, workers=workers, report=terminal.warn).run(on_ready)


@cluster.command("stop")
@click.option("--forget", is_flag=True, help="Delete the cluster's data as well.")
@output_options
def cluster_stop(forget: bool) -> None:
    """Let runs and requests finish, then stop the cluster."""
    home = load_settings().settings.home
    was_running = local_cluster.is_running(home)
    if not local_cluster.stop_supervisor(home):
        terminal.warn("the cluster did not stop in time and was killed; acknowledged work is not lost")
    orphans = local_cluster.stop_orphans(ProcessTable(home))
    terminal.note("the cluster has stopped" if was_running or orphans else "no cluster is running")
    if forget:
        local_cluster.delete_data(home)
        terminal.note("its data has been deleted")


@cluster.command("status")
@json_options
def cluster_status(as_json: bool) -> int:
    """Show the processes of the cluster, their addresses, and whether they are ready."""
    home = load_settings().settings.home
    members = local_cluster.status(home)
    healthy = bool(members) and local_cluster.is_running(home) and all(each.readiness.ready for each in members)
    if as_json:
        parts = [
            {
                "name": name,
                "pid": entry.pid,
                "address": entry.url or None,
                "ready": found.ready,
                "problems": found.problems,
                "log": entry.log,
            }
            for name, entry, found in members
        ]
        terminal.json({"running": bool(members), "ready": healthy, "parts": parts})
    elif members:
        terminal.table(
            ("part", "pid", "address", "state"),
            [
                (name, entry.pid, entry.url, "ready" if found.ready else "; ".join(found.problems) or "not ready")
                for name, entry, found in members
            ],
        )
    else:
        terminal.data("no cluster is running; `make cluster` starts one")
    return 0 if healthy else UNREACHABLE


def _show(settings: Settings) -> None:

    members = local_cluster.status(settings.home)
    urls = [each.entry.url for each in members if each.entry.url.startswith("http")]
    workers = [each for each in members if each.name.startswith("worker-")]
    ready = sum(each.readiness.ready for each in workers)
    count = f"{len(workers)} workers" if ready == len(workers) else f"{ready} of {len(workers)} workers"
    terminal.note(f"the cluster is ready: {len(urls)} servers, {count}")
    for name, entry, _ in members:
        if entry.url:
            terminal.note(f"  {name:10} {entry.url} (process {entry.pid})")
    terminal.note(f"  sign in with the token in {settings.home / 'admin.token'}; logs are in {settings.home / 'logs'}")
    terminal.note("  while the cluster runs, noetl register, execute, executions ... use it")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], cluster, "python -m devcluster"))
