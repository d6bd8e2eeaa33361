"""The verb that forgets old executions: by hand what a server does by itself with the setting `retention`."""

from __future__ import annotations

import asyncio
import time

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.errors import RequestRefused


@click.command()
@click.option("--older-than", metavar="DURATION", help="Such as 12h, 30d or 52w; the setting `retention` otherwise.")
@click.option("--dry-run", is_flag=True, help="Say how many there are and forget none.")
@click.option("--store", metavar="URL", help="Event store; the installation's own otherwise.")
@as_json
@talk
def retention(older_than: str | None, dry_run: bool, store: str | None, as_json: bool) -> None:
    """Forget executions that ended long ago, with what they stored.

    Children stay as long as their caller does, and nothing that runs is touched. Works beside a running server.
    """
    from noetl.settings import load

    settings = load({"retention": older_than, "store": store}).settings
    if settings.retention is None:
        raise RequestRefused("say how old: --older-than 30d, or the setting retention (NOETL_RETENTION=30d)")
    before = time.time() - settings.retention
    count, partitions = asyncio.run(_forget(settings.store, settings.results, before, dry_run=dry_run))
    if as_json:
        terminal.json({"executions": count, "partitions": partitions, "forgotten": not dry_run})
    else:
        what = "executions" if count != 1 else "execution"
        terminal.data(f"{count} {what} {'would be' if dry_run else 'were' if count != 1 else 'was'} forgotten")


async def _forget(store: str, results: str, before: float, *, dry_run: bool) -> tuple[int, int]:
    from noetl.server.lifecycle.retention import delete_old
    from noetl.storage.factory import open_stores
    from noetl.storage.results import open_results

    events, _ = open_stores(store)
    kept = open_results(results)
    try:
        if dry_run:
            return len(await events.expired(before, 1_000_000)), 0
        count = await delete_old(events, kept, before)
        return count, await events.tidy(time.time())
    finally:
        await kept.close()
        await events.close()
