"""The data-plane process: settings, back ends, tools, pool, lease; it serves no HTTP.

It leases runs from a server, executes their pipelines and reports. SIGTERM drains: nothing new is
claimed, what runs may finish for a while, the rest is given back. A second signal stops at once.
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
    """Lease and run until told to stop."""
    from noetl.observability import tracing
    from noetl.runtime import event_loop as loops
    from noetl.runtime.clock import RealClock
    from noetl.runtime.network_policy import AddressPolicy
    from noetl.runtime.resources import close_loop_resources
    from noetl.storage.results import open_results
    from noetl.worker.factory import create_pool
    from noetl.worker.pool import HEARTBEAT

    if settings.server_url is None or settings.token is None:
        raise RequestRefused(
            "a worker needs a server: set NOETL_SERVER_URL and NOETL_TOKEN (a token with the role worker)"
        )
    # A name is never used again, though process numbers are: what an earlier life held may have been under way, and
    # only the worker itself can give a run back.
    name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    async with AsyncExitStack() as closing:
        tracing.begin(settings.traces, service="noetl-worker", instance=name)
        closing.callback(tracing.end)
        results = open_results(settings.results)
        closing.push_async_callback(results.close)
        closing.push_async_callback(close_loop_resources)
        pools = []
        given = shares(settings.worker_pool, settings.slots)
        for pool, slots in given.items():
            # Each share is a worker of its own to the servers: what it frees is for runs of its own pool.
            worker = name if len(given) == 1 else f"{name}/{pool}"
            link = _link(settings, worker, slots)
            closing.push_async_callback(link.close)
            made = create_pool(
                link,
                results,
                worker=worker,
                clock=RealClock(),
                slots=slots,
                pool=pool,
                policy=AddressPolicy(private=False, networks=settings.private_networks),
                heartbeat=min(HEARTBEAT, settings.server_lease_seconds / 4),
            )
            link.on_lost_reply = made.doubt
            pools.append(made)
            log.info("worker %s leases from %s: %d slots, pool %s", worker, settings.server_url, slots, pool)
        stopping = asyncio.Event()
        _on_signals(stopping)
        loops.freeze_gc()
        for each in pools:
            await each.start()
        await stopping.wait()
        log.info("worker %s stops: %d runs may finish", name, sum(each.busy for each in pools))
        await asyncio.gather(*(each.stop(settings.worker_drain_seconds) for each in pools))


def _link(settings: Settings, worker: str, slots: int) -> RemoteLink:
    """The line to the servers: over NATS where there is one, with HTTP behind it."""
    from noetl.transport.http_link import HttpWorkLink

    assert settings.server_url is not None
    assert settings.token is not None
    http = HttpWorkLink(settings.server_url, settings.token, slots=slots)
    if settings.nats_url is None:
        return http
    from noetl.transport.nats_bus import open_bus
    from noetl.transport.nats_link import NatsWorkLink

    bus = open_bus(settings.nats_url, settings.nats_prefix, worker)
    link = NatsWorkLink(bus, settings.token, http, worker=worker, slots=slots)
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
