"""`noetl retention`: deletes old executions, as a server does with the setting `retention`."""

from __future__ import annotations

import asyncio
import time

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.errors import RequestRefused


@click.command()
@click.option("--older-than", metavar="DURATION", help="Age such as 12h, 30d or 52w; default: the setting `retention`.")
@click.option("--dry-run", is_flag=True, help="Print how many there are and delete none.")
@click.option("--store", metavar="URL", help="Event store; default: the one of the installation.")
@json_options
def retention(older_than: str | None, dry_run: bool, store: str | None, as_json: bool) -> None:
    """Delete executions that ended long ago, and their stored results.

    Child executions are deleted with their parent; unfinished executions are never deleted. Files of projects and
    texts of playbooks that belong to no version and no execution are deleted after a day. A server may be running.
    """
    from noetl.settings import load

    settings = load({"retention": older_than, "store": store}).settings
    if settings.retention is None:
        raise RequestRefused("the age is missing: --older-than 30d, or the setting retention (NOETL_RETENTION=30d)")
    before = time.time() - settings.retention
    count, partitions = asyncio.run(_delete(settings.store, settings.results, before, dry_run=dry_run))
    if as_json:
        terminal.json({"executions": count, "partitions": partitions, "forgotten": not dry_run})
    else:
        what = "executions" if count != 1 else "execution"
        terminal.data(f"{count} {what} {'would be' if dry_run else 'were' if count != 1 else 'was'} deleted")


async def _delete(store: str, results: str, before: float, *, dry_run: bool) -> tuple[int, int]:
    from noetl.server.lifecycle.retention import delete_old, delete_unused_bundles, delete_unused_texts
    from noetl.storage.factory import open_stores, open_task_logs
    from noetl.storage.results import open_results

    events, playbooks = open_stores(store)
    task_logs = open_task_logs(events)
    kept = open_results(results)
    try:
        if dry_run:
            return len(await events.expired(before, 1_000_000)), 0
        count = await delete_old(events, kept, before, task_logs)
        await delete_unused_bundles(events, playbooks)
        await delete_unused_texts(events, playbooks)
        return count, await events.tidy(time.time())
    finally:
        await kept.close()
        await events.close()
