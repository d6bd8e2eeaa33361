"""The worker process: leases runs from a server, executes their pipelines and reports; it serves no HTTP.

SIGTERM drains: nothing new is claimed, active runs may finish within the drain time, the rest is given back. A second
signal stops the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from noetl.errors import RequestRefused
from noetl.settings import Settings, shares

if TYPE_CHECKING:
    from noetl.storage.ports.work_link import RemoteLink

log = logging.getLogger("noetl.worker")


async def work(settings: Settings, *, name: str | None = None) -> None:
    """Run a worker until a signal stops it."""
    from noetl.observability import tracing
    from noetl.runtime import event_loop
    from noetl.runtime.clock import RealClock
    from noetl.runtime.environment_block import erase_values
    from noetl.runtime.network_policy import AddressPolicy
    from noetl.runtime.resources import close_loop_resources
    from noetl.storage.results import open_results
    from noetl.worker.bundles import BundleFolders
    from noetl.worker.factory import ToolSource, create_pool
    from noetl.worker.host import HostServices
    from noetl.worker.pool import HEARTBEAT
    from noetl.worker.user import become_user, bundles_folder

    if settings.server_url is None or settings.token is None:
        raise RequestRefused(
            "no server configured: set NOETL_SERVER_URL and NOETL_TOKEN (a token with the role worker)"
        )
    become_user(settings)
    erase_values()  # all settings are read: a task could read the token in /proc
    # The name must be unique although process ids are reused: tools of an earlier process may still have been running,
    # and only the worker itself may give a run back.
    name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    async with AsyncExitStack() as closing:
        tracing.start(settings.traces, service="noetl-worker", instance=name)
        closing.callback(tracing.stop)
        results = open_results(settings.results)
        closing.push_async_callback(results.close)
        closing.push_async_callback(close_loop_resources)
        services = HostServices(
            results,
            AddressPolicy(private=False, networks=settings.private_networks),
            record_inputs=settings.record_inputs,
            bundles=BundleFolders(bundles_folder(settings)),
        )
        tools = None
        if settings.worker_runtime is not None:
            from noetl.worker.runtimes import RemoteTools, open_runtime

            runtime = open_runtime(settings.worker_runtime)
            closing.push_async_callback(runtime.close)
            tools = ToolSource(load=RemoteTools(runtime).load)
        pools = []
        slots_by_pool = shares(settings.worker_pool, settings.slots)
        for pool, slots in slots_by_pool.items():
            # Each pool is a separate worker for the server, because freed slots are for runs of the same pool.
            worker = name if len(slots_by_pool) == 1 else f"{name}/{pool}"
            link = _link(settings, worker, slots)
            closing.push_async_callback(link.close)
            created = create_pool(
                link,
                services,
                worker=worker,
                clock=RealClock(),
                slots=slots,
                pool=pool,
                heartbeat=min(HEARTBEAT, settings.server_lease_seconds / 4),
                tools=tools,
            )
            created.labels = settings.worker_labels
            link.on_lost_reply = created.reconcile_soon
            pools.append(created)
            log.info("worker %s leases from %s: %d slots, pool %s", worker, settings.server_url, slots, pool)
        stopping = asyncio.Event()
        _on_signals(stopping)
        event_loop.freeze_gc()
        for each in pools:
            await each.start()
        await stopping.wait()
        log.info("worker %s is draining: %d active runs", name, sum(each.busy for each in pools))
        await asyncio.gather(*(each.stop(settings.worker_drain_seconds) for each in pools))


def _link(settings: Settings, worker: str, slots: int) -> RemoteLink:
    """The link to the server: NATS if configured, with HTTP as the fallback."""
    from noetl.transport.http_link import HttpWorkLink

    assert settings.server_url is not None
    assert settings.token is not None
    if settings.nats_url is None:
        return HttpWorkLink(settings.server_url, settings.token, slots=slots)
    from noetl.transport.nats_bus import open_bus
    from noetl.transport.nats_link import NatsWorkLink

    bus = open_bus(settings.nats_url, settings.nats_prefix, worker)
    link = NatsWorkLink(bus, settings.server_url, settings.token, worker=worker, slots=slots)
    bus.start()
    return link


def _on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def stop(signum: int) -> None:
        if stopping.is_set():
            os._exit(128 + signum)
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum)
