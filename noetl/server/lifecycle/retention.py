"""Retention: deletes results whose ttl has passed, executions older than the retention period, and unused bundles
and texts of playbooks.

One of several servers does it at a time. The results of an execution are deleted before its row: a server that stops
between the two leaves an execution without results, which the next turn finds by its row.
"""

from __future__ import annotations

import logging

from noetl.errors import NoetlError
from noetl.observability import metrics
from noetl.runtime.clock import Clock
from noetl.storage.ports.cluster import Membership
from noetl.storage.ports.events import EventStore
from noetl.storage.ports.playbooks import PlaybookStore
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.task_logs import TaskLogStore

INTERVAL_SECONDS = 600.0
BATCH = 500  # executions deleted together
# Seconds for which a bundle or text without a playbook is kept: it may be registered or executed later. Servers
# remember for half of them that a text is stored (`orchestrator.catalog`).
UNUSED_AGE = 24 * 3600.0
BUNDLES = 20  # examined at a time
TEXTS = 1000

_log = logging.getLogger("noetl.control")


async def run_retention(
    results: ResultStore,
    clock: Clock,
    *,
    store: EventStore | None = None,
    task_logs: TaskLogStore | None = None,
    playbooks: PlaybookStore | None = None,
    retention: float | None = None,
    cluster: Membership | None = None,
    every: float = INTERVAL_SECONDS,
) -> None:
    """Run retention periodically; `retention` in seconds, None: unlimited."""
    while True:
        if await _acquire(cluster, every):
            await collect(results, clock)
            if store is not None:
                await _retain(store, results, task_logs, clock, retention)
                if playbooks is not None:
                    await _collect_playbooks(store, playbooks)
        await clock.sleep(every)


async def collect(results: ResultStore, clock: Clock) -> int:
    """Delete expired results and return their number; an unreachable store is logged and retried next time."""
    try:
        count = await results.collect(clock.now())
    except NoetlError as problem:
        _log.warning("expired results could not be deleted: %s", problem)
        return 0
    metrics.COLLECTED.add(count)
    if count:
        _log.info("deleted %d results whose ttl has passed", count)
    return count


async def delete_old(
    store: EventStore, results: ResultStore, before: float, task_logs: TaskLogStore | None = None
) -> int:
    """Delete every execution that ended before an instant, with its results and task logs; returns their number."""
    count = 0
    while executions := await store.expired(before, BATCH):
        await results.forget(executions)
        if task_logs is not None:
            await task_logs.forget(executions)
        await store.drop(executions)
        metrics.DROPPED.add(len(executions))
        count += len(executions)
    return count


async def delete_unused_bundles(store: EventStore, playbooks: PlaybookStore, age: float = UNUSED_AGE) -> int:
    """Delete bundles that belong to no version of the catalog and to no execution, and files that belong to no bundle;
    returns their number. A bundle that is in use is examined again after `age` seconds."""
    found = await playbooks.unregistered_bundles(age, BUNDLES)
    executed = await store.executed_playbooks([text for _, texts in found for text in texts])
    unused = []
    for bundle, texts in found:
        if executed.isdisjoint(texts):
            unused.append(bundle)
        else:
            await playbooks.keep_bundle(bundle)
    return await playbooks.delete_bundles(unused, age)


async def delete_unused_texts(store: EventStore, playbooks: PlaybookStore, age: float = UNUSED_AGE) -> int:
    """Delete texts of playbooks that no version of the catalog and no execution has; returns their number. A text that
    is in use is examined again after `age` seconds."""
    found = await playbooks.unregistered_texts(age, TEXTS)
    executed = await store.executed_playbooks(found)
    await playbooks.keep_texts([text for text in found if text in executed])
    return await playbooks.delete_texts([text for text in found if text not in executed], age)


async def _collect_playbooks(store: EventStore, playbooks: PlaybookStore) -> None:
    try:
        bundles = await delete_unused_bundles(store, playbooks)
        texts = await delete_unused_texts(store, playbooks)
    except NoetlError as problem:
        _log.warning("unused texts and files of playbooks could not be deleted: %s", problem)
        return
    if bundles or texts:
        _log.info("deleted %d bundles and files and %d texts that belong to no playbook", bundles, texts)


async def _acquire(cluster: Membership | None, every: float) -> bool:
    if cluster is None:
        return True
    try:
        return await cluster.acquire_turn("housekeeping", 0.9 * every)
    except NoetlError as problem:
        _log.warning("retention is skipped, the store is unreachable: %s", problem)
        return False


async def _retain(
    store: EventStore, results: ResultStore, task_logs: TaskLogStore | None, clock: Clock, retention: float | None
) -> None:
    try:
        if retention is not None:
            count = await delete_old(store, results, clock.now() - retention, task_logs)
            if count:
                _log.info("deleted %d executions that ended more than %g days ago", count, retention / 86400)
        dropped = await store.tidy(clock.now())
        if dropped:
            _log.info("dropped %d partitions of the log", dropped)
    except NoetlError as problem:
        _log.warning("old executions could not be deleted: %s", problem)
