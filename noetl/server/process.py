"""The control-plane process: settings, back ends, orchestrator, API, listen.

Stateless apart from caches: what it knows it folded from the log. On its way up it takes over every
unfinished execution; on its way down it lets requests finish and closes the store.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from noetl import __version__
from noetl.errors import Conflict, NoetlError, RequestRefused, StoreUnavailable
from noetl.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from noetl.server.http.dependencies import AppState
    from noetl.server.lifecycle.membership import HeartbeatMonitor

log = logging.getLogger("noetl.server")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLOSE_SECONDS = 2.0  # that deeds under way get when the server stops
STORE_SECONDS = 3.0  # how long the store may take to answer before the server counts as not ready
PROBE_SECONDS = 1.0  # how long the answer to "can it be written?" holds
SILENT_SECONDS = 10.0  # without a beat the others have noticed, and so should whoever asks


class Server:
    """One control plane: its parts, and the application that shows them."""

    def __init__(self, settings: Settings) -> None:
        from noetl.server.http.access import Tokens

        self.settings = settings
        self.tokens = Tokens.prepare(settings.home)
        self._opened: AppState | None = None
        self._recovered = False
        self.draining = False  # told to stop, and still answering
        self._beats: HeartbeatMonitor | None = None
        self._probing = asyncio.Lock()
        self._probed: tuple[float, list[str]] = (float("-inf"), [])

    def app(self) -> FastAPI:
        """The ASGI application; its lifespan opens and closes everything."""
        from noetl.server.http.app import create_app

        return create_app(
            self.parts,
            self.tokens,
            readiness=self.problems,
            version=__version__,
            hosts=self.settings.server_hosts,
            lifespan=self._life,
            root_path=self.settings.server_prefix,
        )

    def parts(self) -> AppState:
        """What routes are given; there once the server is up."""
        if self._opened is None:
            raise RequestRefused("the server is still starting")
        return self._opened

    async def problems(self) -> list[str]:
        """Why no progress is possible right now; empty when it is."""
        if self._opened is None or not self._recovered:
            return ["unfinished executions are being taken over"]
        if self.draining or self._opened.stopping.is_set():
            return ["the server is about to stop"]
        if not self._opened.orchestrator.watching:
            return ["nobody watches over the leases: the task that does has ended; start the server again"]
        if self._beats is not None and self._beats.silent > SILENT_SECONDS:
            return [f"for {self._beats.silent:.0f} s this server could not say that it lives; others do its work"]
        async with self._probing:
            at, known = self._probed
            if time.monotonic() - at > PROBE_SECONDS:
                known = await self._probe(self._opened)
                self._probed = (time.monotonic(), known)
            return known

    async def _probe(self, parts: AppState) -> list[str]:
        """Whether the store takes writes: it is written to. Who asks does not wait for a store that is frozen, nor
        for the question to be taken back."""
        asked = asyncio.ensure_future(parts.orchestrator.store.check())
        asked.add_done_callback(_heard)
        answered, _ = await asyncio.wait((asked,), timeout=STORE_SECONDS)
        if not answered:
            asked.cancel()
            return [f"the event store did not answer within {STORE_SECONDS:g} s"]
        try:
            asked.result()
        except NoetlError as problem:
            return [f"the event store: {problem}"]
        return []

    def stop_waiting(self) -> None:
        """Answer everybody who waits; the server is about to stop."""
        if self._opened is not None:
            self._opened.stopping.set()

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        from noetl.observability import metrics, tracing
        from noetl.runtime import event_loop as loops
        from noetl.runtime.clock import RealClock
        from noetl.runtime.network_policy import AddressPolicy
        from noetl.secrets.keychain import InstalledCredentials, allow_outside, open_keychain
        from noetl.server.http.dependencies import AppState
        from noetl.server.http.nats_endpoint import NatsWorkerEndpoint
        from noetl.server.http.routes.operations import Operations
        from noetl.server.lifecycle import recovery
        from noetl.server.lifecycle.external_changes import watch_external_changes
        from noetl.server.lifecycle.membership import membership
        from noetl.server.lifecycle.retention import run_retention
        from noetl.server.orchestrator.service import Orchestrator
        from noetl.server.scheduling.scheduler import Scheduler, scheduling
        from noetl.server.scheduling.schedules import Schedules
        from noetl.server.scheduling.webhooks import Webhooks
        from noetl.storage.factory import open_process_locks, open_server_stores, open_triggers
        from noetl.storage.results import open_results
        from noetl.tools.registry import specs
        from noetl.transport.notifying_queue import NotifyingRunQueue

        settings = self.settings
        async with AsyncExitStack() as closing:
            tracing.begin(
                settings.traces, service="noetl-server", instance=f"{settings.server_host}:{settings.server_port}"
            )
            closing.callback(tracing.end)
            stores = open_server_stores(
                settings.store,
                f"{settings.server_host}:{settings.server_port}",
                preallocate_wal=settings.sqlite_wal_preallocate,
            )
            events, playbooks, cluster = stores.events, stores.playbooks, stores.cluster
            triggers = open_triggers(events)  # before the database is used: its tables are made with the others
            closing.push_async_callback(events.close)
            owners = open_process_locks(settings.store)
            if owners is not None:
                closing.callback(owners.close)
            results = open_results(settings.results)
            closing.push_async_callback(results.close)
            credentials = InstalledCredentials(settings.home, database=getattr(events, "database", None))
            keychain = open_keychain(
                settings.home,
                credentials=credentials,
                allows_address=AddressPolicy(private=False, networks=settings.private_networks).allows,
                allows_file=allow_outside(settings.home),
            )
            closing.push_async_callback(keychain.close)
            bus = None
            if settings.nats_url is not None:
                from noetl.transport.nats_bus import open_bus

                bus = open_bus(settings.nats_url, settings.nats_prefix, "server")
                if (database := getattr(events, "database", None)) is not None:
                    database.notify_over(bus)
                closing.push_async_callback(bus.close)
            number = await cluster.join() if cluster else owners.claim() if owners else None
            orchestrator = Orchestrator(
                store=events,
                playbooks=playbooks,
                results=results,
                queue=stores.queue if bus is None else NotifyingRunQueue(stores.queue, bus),
                specs=specs,
                keychain=keychain,
                lease_seconds=settings.server_lease_seconds,
                process=number,
                signs=cluster,
                limits=triggers,
                bell=getattr(events, "database", None),
            )
            closing.push_async_callback(orchestrator.close, CLOSE_SECONDS)
            clock = RealClock()
            schedules = Schedules(triggers, orchestrator.catalog, clock)
            webhooks = Webhooks(triggers, orchestrator, credentials, clock)
            self._opened = AppState(orchestrator, self.tokens, specs, credentials, __version__, schedules, webhooks)
            app.state.parts = self._opened
            app.state.operations = operations = Operations(self._opened, app.state.roster)
            await closing.enter_async_context(operations.sampling())
            orchestrator.start()
            if bus is not None:
                NatsWorkerEndpoint(bus, self.parts, app.state.roster).start()
                bus.start()
                closing.push_async_callback(bus.stop_replying)
            await orchestrator.heed_limits()
            resumed = await recovery.resume(orchestrator, only=owners.acquire_orphans if owners else None)
            self._recovered = True
            metrics.PROGRESS.value = metrics.PROGRESS.value or clock.now()
            if cluster is not None:
                self._beats = await closing.enter_async_context(membership(cluster, orchestrator))
            await closing.enter_async_context(watch_external_changes(orchestrator))
            await closing.enter_async_context(
                run_retention(results, clock, store=events, retention=settings.retention, turns=cluster)
            )
            scheduler = Scheduler(triggers, orchestrator, clock, cluster)
            await closing.enter_async_context(scheduling(scheduler, schedules))
            if resumed:
                log.info("took over %d unfinished executions", len(resumed))
            loops.freeze_gc()
            yield
        self._opened = None


def _heard(asked: asyncio.Future[None]) -> None:
    """An answer that nobody waits for any more: somebody else asked again meanwhile."""
    if not asked.cancelled():
        asked.exception()


async def _can_open(settings: Settings) -> None:
    """Open and close the stores once: what is wrong with them is said in words before anything listens."""
    from noetl.storage.factory import open_stores

    events, _ = open_stores(settings.store)
    try:
        await events.by_key("readiness")
    finally:
        await events.close()


def serve(settings: Settings, sock: socket.socket | None = None) -> None:
    """Listen until a signal says stop, at the address of the settings; or at `sock`, taken by whoever started us."""
    from noetl.runtime.event_loop import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)  # what is imported from here on stays
    import uvicorn

    asyncio.run(_can_open(settings))
    import_module("noetl.core.language.compile")  # now, not in the first request that needs it
    if sock is None:
        sock = take_address(settings)

    host = settings.server_host
    server = Server(settings)
    config = uvicorn.Config(
        server.app(),
        host=host,
        port=settings.server_port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
        server_header=False,
    )

    class Listening(uvicorn.Server):
        """Lets go of who waits (claims, streams) before it waits for requests to end."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Send new requests elsewhere for a while before the door is closed; a second signal closes it at once."""
            if settings.server_drain_seconds and not server.draining:
                server.draining = True
                leave = partial(super().handle_exit, sig, None)
                asyncio.get_running_loop().call_later(settings.server_drain_seconds, leave)
            else:
                super().handle_exit(sig, frame)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Stopped in good order is no failure: a signal is not raised again afterwards, as uvicorn would."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def shutdown(self, sockets: Any = None) -> None:
            server.stop_waiting()
            await super().shutdown(sockets)

    watch_external_changes = Listening(config)
    try:
        watch_external_changes.run(sockets=[sock])
    finally:
        sock.close()
    if not watch_external_changes.started:
        raise StoreUnavailable("the server could not start; what it logged says why")


def take_address(settings: Settings) -> socket.socket:
    """The server's address, taken before anything else is: who has it already is the likeliest trouble."""
    host, port = settings.server_host, settings.server_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as problem:
        sock.close()
        if problem.errno == errno.EADDRINUSE:
            raise Conflict(f"port {port} of {host} is taken by another program; choose one with --port") from None
        raise RequestRefused(f"cannot listen at {host} port {port}: {problem.strerror or problem}") from None
    return sock
