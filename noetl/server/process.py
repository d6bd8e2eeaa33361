"""The server process: settings, back ends, orchestrator, HTTP.

The process has no state apart from caches: everything follows from the logs. At start it takes over all unfinished
executions; at shutdown it lets requests finish and closes the back ends.
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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl import __version__
from noetl.errors import Conflict, NoetlError, RequestRefused, StoreUnavailable
from noetl.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from noetl.runtime.clock import Clock
    from noetl.secrets.keychain import InstalledCredentials
    from noetl.server.composition import Stores
    from noetl.server.http.dependencies import AppState
    from noetl.server.lifecycle.decision_watch import DecisionWatch
    from noetl.server.lifecycle.membership import HeartbeatMonitor
    from noetl.server.lineage.emitter import LineageEmitter
    from noetl.server.orchestrator.service import Orchestrator
    from noetl.storage.cluster.postgres import PostgresCluster
    from noetl.storage.ports.deliveries import DeliveryStore
    from noetl.storage.ports.events import EventStore
    from noetl.storage.ports.load_samples import LoadSampleStore
    from noetl.storage.ports.secrets import Keychain
    from noetl.storage.ports.triggers import TriggerStore
    from noetl.storage.sqlite.process_locks import ProcessLocks
    from noetl.transport.nats_bus import NatsBus

log = logging.getLogger("noetl.server")

CLOSE_SECONDS = 2.0  # for background tasks when the server stops
STORE_SECONDS = 3.0  # maximum response time of the store before the server is not ready
PROBE_SECONDS = 1.0  # how long the result of a write probe is valid
SILENT_SECONDS = 10.0  # without a heartbeat other servers take over, and this one is not ready


class _Backends(NamedTuple):
    """The open back ends of a server."""

    stores: Stores
    triggers: TriggerStore
    deliveries: DeliveryStore
    load_samples: LoadSampleStore
    cluster: PostgresCluster | None
    locks: ProcessLocks | None
    credentials: InstalledCredentials
    keychain: Keychain
    bus: NatsBus | None

    def clock(self) -> Clock:
        """The time of schedules and triggers: that of the database if several servers share one."""
        from noetl.runtime.clock import RealClock, ShiftedClock

        cluster = self.cluster
        return RealClock() if cluster is None else ShiftedClock(RealClock(), lambda: cluster.offset)

    def steady_clock(self) -> Clock:
        """The time of executions: durations do not change when the clock of the machine is set back."""
        from noetl.runtime.clock import SteadyClock

        return SteadyClock() if self.cluster is None else self.clock()


class Server:
    """One control plane and its ASGI application."""

    def __init__(self, settings: Settings) -> None:
        from noetl.server.http.access import Tokens

        self.settings = settings
        self.tokens = Tokens.prepare(settings.home)
        self._state: AppState | None = None
        self._recovered = False
        self.startup_error: NoetlError | None = None
        self.draining = False  # stopping, but still accepting requests
        self._heartbeats: HeartbeatMonitor | None = None
        self._probing = asyncio.Lock()
        self._probed: tuple[float, list[str]] = (float("-inf"), [])

    def app(self) -> FastAPI:
        """The ASGI application; its lifespan opens and closes everything."""
        from noetl.server.http.app import create_app

        return create_app(
            self.app_state,
            self.tokens,
            readiness=self.problems,
            version=__version__,
            hosts=self.settings.server_hosts,
            lifespan=self._lifespan,
            root_path=self.settings.server_prefix,
        )

    def app_state(self) -> AppState:
        """The dependencies of routes; RequestRefused while the server is starting."""
        if self._state is None:
            raise RequestRefused("the server is still starting")
        return self._state

    async def problems(self) -> list[str]:
        """Why the server is not ready; empty when it is."""
        if self._state is None or not self._recovered:
            return ["unfinished executions are being taken over"]
        if self.draining or self._state.stopping.is_set():
            return ["the server is stopping"]
        if not self._state.orchestrator.work.watches_leases:
            return ["expired leases are not detected: the task that watches them has ended; restart the server"]
        if self._heartbeats is not None and self._heartbeats.silent > SILENT_SECONDS:
            return [f"no heartbeat for {self._heartbeats.silent:.0f} s; other servers have taken over"]
        async with self._probing:
            at, known = self._probed
            if time.monotonic() - at > PROBE_SECONDS:
                known = await self._probe(self._state)
                self._probed = (time.monotonic(), known)
            return known

    async def _probe(self, state: AppState) -> list[str]:
        """Write to the store; a store that hangs delays the result by at most STORE_SECONDS."""
        check = asyncio.ensure_future(state.orchestrator.store.check())
        check.add_done_callback(_retrieve_exception)
        done, _ = await asyncio.wait((check,), timeout=STORE_SECONDS)
        if not done:
            check.cancel()  # not awaited: the cancellation may hang as well
            return [f"the event store did not respond within {STORE_SECONDS:g} s"]
        try:
            check.result()
        except NoetlError as problem:
            return [f"the event store: {problem}"]
        return []

    def release_waiting_requests(self) -> None:
        """End long polls and streams before the server stops."""
        if self._state is not None:
            self._state.stopping.set()

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        started = False
        try:
            async with self._running(app):
                started = True
                yield
        except NoetlError as problem:
            if not started:
                self.startup_error = problem
            raise

    @asynccontextmanager
    async def _running(self, app: FastAPI) -> AsyncIterator[None]:
        from noetl.runtime.event_loop import freeze_gc
        from noetl.runtime.network_policy import AddressPolicy
        from noetl.runtime.tasks import running
        from noetl.server.app_state import ServiceBackends, build_app_state
        from noetl.server.http.routes.operations import Operations
        from noetl.server.lifecycle.decision_watch import MappedDecisionWatch

        async with AsyncExitStack() as closing:
            self._begin_tracing(closing)
            backends = self._open_backends(closing)
            watch = MappedDecisionWatch(Path(self.settings.home) / "deciding")
            closing.callback(watch.close)
            orchestrator = await self._build_orchestrator(backends, watch)
            closing.push_async_callback(orchestrator.close, CLOSE_SECONDS)
            services = ServiceBackends(
                backends.triggers, backends.deliveries, backends.credentials, backends.clock(), backends.cluster
            )
            allows = AddressPolicy(private=False, networks=self.settings.private_networks).allows
            self._state = build_app_state(
                orchestrator,
                services,
                self.tokens,
                home=self.settings.home,
                allows_address=allows,
                settings=self.settings,
            )
            closing.push_async_callback(self._state.queries.close)
            app.state.app_state = self._state
            app.state.operations = operations = Operations(
                self._state,
                app.state.workers,
                backends.load_samples,
                self._address,
                refusal=lambda: "" if backends.cluster is None else backends.cluster.refusal,
            )
            app.state.workers.forget = orchestrator.work.forget
            await closing.enter_async_context(running(operations.sample_forever))
            orchestrator.start()
            if backends.bus is not None:
                self._start_bus(backends.bus, app, closing)
            await self._run(self._state, backends, closing)
            freeze_gc()
            yield
        self._state = None

    @property
    def _address(self) -> str:
        return f"{self.settings.server_host}:{self.settings.server_port}"

    def _begin_tracing(self, closing: AsyncExitStack) -> None:
        from noetl.observability import tracing

        tracing.start(self.settings.traces, service="noetl-server", instance=self._address)
        closing.callback(tracing.stop)

    def _open_backends(self, closing: AsyncExitStack) -> _Backends:
        """Open all back ends; `closing` closes them in reverse order."""
        from noetl.runtime.network_policy import AddressPolicy
        from noetl.secrets.keychain import InstallationKeychain, InstalledCredentials, only_inside
        from noetl.server.composition import Stores
        from noetl.storage.factory import (
            open_deliveries,
            open_load_samples,
            open_process_locks,
            open_quotas,
            open_server_stores,
            open_task_logs,
            open_triggers,
        )
        from noetl.storage.results import open_results

        settings = self.settings
        opened = open_server_stores(
            settings.store,
            self._address,
            preallocate_wal=settings.sqlite_wal_preallocate,
            replica=settings.server_replica,
        )
        events = opened.events
        # Before the database is used: their tables are created with the others.
        triggers, task_logs = open_triggers(events), open_task_logs(events)
        deliveries, load_samples = open_deliveries(events), open_load_samples(events)
        open_quotas(events)  # used by the first quota
        closing.push_async_callback(events.close)
        locks = open_process_locks(settings.store)
        if locks is not None:
            closing.callback(locks.close)
        results = open_results(settings.results)
        closing.push_async_callback(results.close)
        database = getattr(events, "database", None)
        credentials = InstalledCredentials(settings.home, database=database)
        keychain = InstallationKeychain(
            credentials,
            allows_address=AddressPolicy(private=False, networks=settings.private_networks).allows,
            allows_file=only_inside(settings.secrets_folders, settings.home),
        )
        closing.push_async_callback(keychain.close)
        bus = self._open_bus(database, closing)
        stores = Stores(events, opened.playbooks, results, opened.queue, triggers, task_logs)
        return _Backends(stores, triggers, deliveries, load_samples, opened.cluster, locks, credentials, keychain, bus)

    def _open_bus(self, database: Any, closing: AsyncExitStack) -> NatsBus | None:
        if self.settings.nats_url is None:
            return None
        from noetl.transport.nats_bus import open_bus

        bus = open_bus(self.settings.nats_url, self.settings.nats_prefix, "server")
        if database is not None:
            database.notify_over(bus)
        closing.push_async_callback(bus.close)
        return bus

    async def _build_orchestrator(self, backends: _Backends, watch: DecisionWatch) -> Orchestrator:
        from noetl.server.composition import Cluster, Options, build_orchestrator
        from noetl.tools.registry import specs

        cluster, locks = backends.cluster, backends.locks
        number = await cluster.join() if cluster else locks.claim() if locks else None
        return build_orchestrator(
            backends.stores,
            specs,
            keychain=backends.keychain,
            clock=backends.steady_clock(),
            cluster=Cluster(cluster, getattr(backends.stores.events, "database", None), cluster),
            options=Options(
                lease_seconds=self.settings.server_lease_seconds,
                tenant_label=self.settings.server_tenant_label,
                max_waiting_runs=self.settings.server_max_waiting_runs,
                process_number=number,
                stored_timers=True,
                watch=watch,
            ),
        )

    def _start_bus(self, bus: NatsBus, app: FastAPI, closing: AsyncExitStack) -> None:
        from noetl.server.http.nats_endpoint import NatsWorkerEndpoint

        NatsWorkerEndpoint(bus, self.app_state, app.state.workers).start()
        bus.start()
        closing.push_async_callback(bus.stop_replying)

    async def _run(self, state: AppState, backends: _Backends, closing: AsyncExitStack) -> None:
        """Take over unfinished executions, then start the periodic tasks."""
        from noetl.observability import metrics
        from noetl.runtime.network_policy import AddressPolicy
        from noetl.runtime.tasks import running
        from noetl.server.lifecycle import recovery
        from noetl.server.lifecycle.external_changes import watch_external_changes
        from noetl.server.lifecycle.membership import membership
        from noetl.server.lifecycle.retention import run_retention
        from noetl.server.lifecycle.wait_timers import WaitTimers
        from noetl.server.scheduling.backfill_runner import BackfillRunner
        from noetl.server.scheduling.scheduler import Scheduler, run_schedules
        from noetl.server.scheduling.sources.manager import TriggerSources

        clock, cluster, stores, orchestrator = backends.clock(), backends.cluster, backends.stores, state.orchestrator
        await orchestrator.load_limits()
        await self._give_up_poisoned(orchestrator, backends.locks)
        owned = backends.locks.acquire_orphans if backends.locks else None
        resumed = await recovery.resume(orchestrator, only=owned, waiting=False)
        self._recovered = True
        metrics.PROGRESS.value = metrics.PROGRESS.value or clock.now()
        if cluster is not None:
            self._heartbeats = await closing.enter_async_context(membership(cluster, orchestrator))
        retention = partial(
            run_retention,
            stores.results,
            clock,
            store=stores.events,
            task_logs=stores.task_logs,
            playbooks=stores.playbooks,
            retention=self.settings.retention,
            cluster=cluster,
        )
        scheduler = Scheduler(backends.triggers, state.deliveries, clock, cluster)
        sources = TriggerSources(
            state.deliveries,
            orchestrator,
            backends.credentials,
            clock,
            leadership=cluster,
            listener=state.notifier,
            reporter=state.notifier,
            allows=AddressPolicy(private=False, networks=self.settings.private_networks).allows,
        )
        emitter = self._lineage_emitter(stores.events)
        periodic = running(
            *((emitter.run,) if emitter is not None else ()),
            partial(watch_external_changes, orchestrator, owned),
            retention,
            partial(run_schedules, scheduler),
            sources.run,
            state.notifier.run,
            WaitTimers(orchestrator, orchestrator.actors.clock, cluster, owned).run,
            BackfillRunner(state.backfills, orchestrator, clock, cluster).run_all,
        )
        await closing.enter_async_context(periodic)
        if resumed:
            log.info("took over %d unfinished executions", len(resumed))

    def _lineage_emitter(self, store: EventStore) -> LineageEmitter | None:
        from noetl.observability import lineage

        lineage.NAMESPACE = self.settings.lineage_namespace
        if self.settings.lineage == "off":
            return None
        from noetl.server.lineage.emitter import LineageEmitter, open_sender

        return LineageEmitter(store, open_sender(self.settings.lineage), lineage.NAMESPACE)

    async def _give_up_poisoned(self, orchestrator: Orchestrator, locks: ProcessLocks | None) -> None:
        """Fail the executions that ended a server, before anything of them is decided again."""
        from noetl.server.lifecycle.membership import give_up_suspects

        for each in orchestrator.actors.watch.poisoned():
            if locks is None or locks.acquire_orphans([each.execution_id]):
                log.error("execution %s cannot be continued: %s", each.execution_id, each.error.message)
                await orchestrator.give_up(each.execution_id, each.error)
        await give_up_suspects(orchestrator)


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Mark the exception of an abandoned future as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


async def _check_stores(settings: Settings) -> None:
    """Open and close the stores once, so that an error is reported before the server listens."""
    from noetl.storage.factory import open_stores

    events, _ = open_stores(settings.store, replica=settings.server_replica)
    try:
        await events.by_key("readiness")
    finally:
        await events.close()


def serve(settings: Settings, sock: socket.socket | None = None, on_ready: Callable[[], None] | None = None) -> None:
    """Serve until a signal stops the process, at the address of the settings or at an inherited socket."""
    from noetl.runtime.event_loop import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)  # modules imported from here on stay in memory
    import uvicorn

    from noetl.server.tls import uvicorn_options, watch_certificate

    options = uvicorn_options(settings)
    asyncio.run(_check_stores(settings))
    import_module("noetl.core.language.compile")  # not during the first request that needs it
    if sock is None:
        sock = take_address(settings)

    from noetl.server.http.guarded_protocol import GuardedProtocol, close_late_connections, connection_limit

    server = Server(settings)
    GuardedProtocol.limit = connection_limit()
    config = uvicorn.Config(
        server.app(),
        http=GuardedProtocol,
        host=settings.server_host,
        port=settings.server_port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
        server_header=False,
        **options,
    )
    watcher: asyncio.Task[None] | None = None

    class HttpServer(uvicorn.Server):
        """Ends long polls and streams before it waits for requests to finish."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Report not ready for `server_drain_seconds`, then stop listening; a second signal stops at once."""
            if settings.server_drain_seconds and not server.draining:
                server.draining = True
                leave = partial(super().handle_exit, sig, None)
                asyncio.get_running_loop().call_later(settings.server_drain_seconds, leave)
            else:
                super().handle_exit(sig, frame)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """As uvicorn's, but a signal is not raised again after an orderly shutdown."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            self._closing = asyncio.ensure_future(close_late_connections(self.server_state.connections))
            nonlocal watcher
            if config.ssl is not None and settings.server_tls_cert is not None:
                files = settings.server_tls_cert, settings.server_tls_key
                watcher = asyncio.create_task(watch_certificate(config.ssl, *files))
            if self.started and on_ready is not None:
                on_ready()

        async def shutdown(self, sockets: Any = None) -> None:
            server.release_waiting_requests()
            self._closing.cancel()
            if watcher is not None:
                watcher.cancel()
            await super().shutdown(sockets)

    http_server = HttpServer(config)
    # uvicorn would log the traceback of an error that is raised below with its message.
    logging.getLogger("uvicorn.error").addFilter(lambda record: server.startup_error is None)
    try:
        http_server.run(sockets=[sock])
    except SystemExit:  # uvicorn's end of a server that did not start
        pass
    finally:
        sock.close()
    if server.startup_error is not None:
        raise server.startup_error
    if not http_server.started:
        raise StoreUnavailable("the server could not start; its log has the reason")


def take_address(settings: Settings) -> socket.socket:
    """Bind the address of the server; done first, since a port in use is the most frequent problem."""
    host, port = settings.server_host, settings.server_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as problem:
        sock.close()
        if problem.errno == errno.EADDRINUSE:
            raise Conflict(
                f"port {port} of {host} is in use by another program; choose another one with --port"
            ) from None
        raise RequestRefused(f"cannot listen at {host} port {port}: {problem.strerror or problem}") from None
    return sock
