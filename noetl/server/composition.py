"""The composition root of the control plane: constructs an orchestrator and everything below it.

`Orchestrator`, `WorkerService`, `ExecutionCache` and `ExecutionActor` are constructed only here. Every object gets
its dependencies in its constructor; none is changed afterwards and none constructs another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from noetl.core.engine.commands import FireTimer
from noetl.core.model.tool import ToolSpec
from noetl.runtime.clock import Clock, SteadyClock
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.server.concurrency.admission import Admission
from noetl.server.concurrency.limiter import TENANT_LABEL, ConcurrencyLimiter
from noetl.server.concurrency.limits import ChangeNotifier, Limits
from noetl.server.concurrency.quotas import Quotas
from noetl.server.dispatch.enqueuer import Enqueuer
from noetl.server.dispatch.task_logs import TaskLogs
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.lifecycle.children import Children
from noetl.server.lifecycle.decision_trials import DecisionTrials
from noetl.server.lifecycle.decision_watch import NOT_WATCHED, DecisionWatch
from noetl.server.lifecycle.timers import Timers
from noetl.server.orchestrator.catalog import Catalog, Files
from noetl.server.orchestrator.effect_handler import EffectHandler, EndNotifier
from noetl.server.orchestrator.execution_actor import ActorDependencies, ExecutionActor
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_ids import ExecutionIds
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.orchestrator.playbook_states import PlaybookStates
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.orchestrator.schema_registry import SchemaRegistry
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.step_table import StepTables
from noetl.storage.factory import open_quotas, open_state
from noetl.storage.ports.cluster import DecisionMarks, WorkerHeartbeats
from noetl.storage.ports.events import EventStore
from noetl.storage.ports.playbooks import PlaybookStore
from noetl.storage.ports.queue import RunQueue
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.secrets import Keychain
from noetl.storage.ports.task_logs import TaskLogStore
from noetl.storage.ports.triggers import TriggerStore
from noetl.storage.task_logs.memory import MemoryTaskLogStore

Specs = Callable[[], Mapping[str, ToolSpec]]


class Stores(Struct, frozen=True):
    """The back ends of a control plane."""

    events: EventStore
    playbooks: PlaybookStore
    results: ResultStore
    queue: RunQueue
    triggers: TriggerStore | None = None  # of concurrency limits; None: no limits
    task_logs: TaskLogStore | None = None  # None: in memory


class Cluster(Struct, frozen=True):
    """What connects the servers of one store."""

    heartbeats: WorkerHeartbeats | None = None
    notifier: ChangeNotifier | None = None  # of changed limits
    marks: DecisionMarks | None = None  # of decisions that may end their server


class Options(Struct, frozen=True):
    """Settings of one control plane."""

    lease_seconds: float | None = 30.0  # term of a lease without heartbeat; None: unlimited
    cached_executions: int = 2_000  # idle executions in memory; of ended ones only the summary
    process_number: int | None = None  # part of execution ids; None: random
    performs_effects: bool = True  # False: only append; another process performs the effects
    watch: DecisionWatch = NOT_WATCHED  # the deadline of decisions
    tenant_label: str = TENANT_LABEL  # the label whose values are the tenants
    max_waiting_runs: int | None = None  # while more wait, requests are refused
    stored_timers: bool = False  # timers of waiting executions are read from the store (`lifecycle.wait_timers`)


def build_orchestrator(
    stores: Stores,
    specs: Specs,
    *,
    keychain: Keychain | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
    nondeterminism: Any = None,
    cluster: Cluster = Cluster(),  # noqa: B008 - immutable
    options: Options = Options(),  # noqa: B008 - immutable
) -> Orchestrator:
    """Construct a control plane over open back ends; it is not started."""
    clock = clock or SteadyClock()
    shared = cluster.heartbeats is not None
    catalog = Catalog(stores.playbooks, specs, files)
    background = BackgroundTasks(clock)
    limiter = ConcurrencyLimiter(stores.events, stores.queue, background, options.tenant_label)
    actors = ActorDependencies(
        store=stores.events,
        catalog=catalog,
        resolver=RequestResolver(stores.results, specs),
        clock=clock,
        nondeterminism=nondeterminism or SystemNondeterminism(clock),
        limiter=limiter,
        watch=options.watch,
        trials=None if cluster.marks is None else DecisionTrials(cluster.marks, clock.now),
        shared=shared,
    )

    def create_actor(execution_id: str) -> ExecutionActor:
        return ExecutionActor(actors, execution_id, effects)  # `effects` exists before the first actor is created

    schemas = None if stores.triggers is None else SchemaRegistry(stores.triggers, clock)
    executions = ExecutionCache(create_actor, options.cached_executions)
    work = WorkerService(
        executions=executions,
        queue=stores.queue,
        catalog=catalog,
        limiter=limiter,
        quotas=Quotas(lambda: open_quotas(stores.events), clock, background),
        background=background,
        clock=clock,
        task_logs=TaskLogs(stores.task_logs or MemoryTaskLogStore(), stores.events),
        schemas=schemas,
        keychain=keychain,
        heartbeats=cluster.heartbeats,
        term=options.lease_seconds,
    )
    ids = ExecutionIds(clock, options.process_number)
    states = PlaybookStates(open_state(stores.events), clock)
    enqueuer = Enqueuer(stores.queue, limiter, background)
    admission = Admission(stores.queue, limiter, background, clock, options.max_waiting_runs, lambda: enqueuer.pending)
    starter = ExecutionStarter(stores.events, catalog, executions, ids, keychain, states, admission)

    def fire_timer(execution_id: str) -> None:
        background.run_until_done(f"timer of {execution_id}", lambda: executions.send(execution_id, FireTimer()))

    timers = Timers(clock, fire_timer)
    ends = EndNotifier(getattr(stores.events, "lengths", None))  # a store in memory has no other writers
    effects = EffectHandler(
        executions=executions,
        work=work,
        limiter=limiter,
        enqueuer=enqueuer,
        timers=timers,
        children=Children(actors, executions, starter, background),
        background=background,
        ends=ends,
        clock=clock,
        enabled=options.performs_effects,
        shared=shared,
        stored_timers=options.stored_timers,
    )
    return Orchestrator(
        actors=actors,
        cache=executions,
        starter=starter,
        effects=effects,
        ends=ends,
        work=work,
        queue=stores.queue,
        results=stores.results,
        timers=timers,
        background=background,
        step_tables=StepTables(stores.events),
        limits=_limits(stores, limiter, clock, cluster),
        schemas=schemas,
        states=states,
    )


def _limits(stores: Stores, limiter: ConcurrencyLimiter, clock: Clock, cluster: Cluster) -> Limits | None:
    if stores.triggers is None:
        return None
    return Limits(stores.triggers, limiter, stores.events, stores.queue, clock, cluster.notifier)
