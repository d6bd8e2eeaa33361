"""The embedded engine: control plane and workers in one process, for `noetl run`, the Python API and tests.

`open_local` opens the back ends and connects an orchestrator with a worker pool without a network. Executions are
as durable as on a server: the log is flushed before anything is acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from noetl.core.model.events import Recorded
from noetl.core.model.ids import process_of
from noetl.core.model.playbook import Limits
from noetl.core.model.reference import Reference, is_stored
from noetl.errors import Conflict, NoetlError, PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.runtime.clock import Clock
from noetl.runtime.process_marks import StillRunning, kill_marked, set_mark
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models.stored_values import restored
from noetl.server.read_models.summaries import RunResult, run_result
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.secrets import Keychain

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic
    from noetl.settings import Settings
    from noetl.storage.sqlite.process_locks import ProcessLocks
    from noetl.worker.factory import ToolSource
    from noetl.worker.host import TaskObserver
    from noetl.worker.pool import Pool

log = logging.getLogger("noetl.control")

MAX_FILE_BYTES = 16 * 1024 * 1024
STOP_SECONDS = 10.0  # for a cancelled execution to end
SUFFIXES = ("", ".yaml", ".yml")


class RequestFields(TypedDict, total=False):
    """Optional fields of a request to run a playbook, as of `Submission`."""

    file: str
    version: int | str | None
    strict: bool
    legacy: bool
    key: str | None
    entry_step: str | None
    return_step: str | None


class SettingFields(TypedDict, total=False):
    """Settings that `open_local` takes instead of a `Settings` object."""

    store: str | None
    results: str | None
    home: str | os.PathLike[str] | None
    slots: int | None


class LocalEngine:
    """An embedded engine; use it as an async context manager, or `close` it."""

    def __init__(self, orchestrator: Orchestrator, closing: AsyncExitStack) -> None:
        self.orchestrator = orchestrator
        self._closing = closing

    async def run(
        self,
        playbook: str | os.PathLike[str],
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_start: Callable[[str], None] | None = None,
        on_event: Callable[[Recorded], None] | None = None,
        **fields: Unpack[RequestFields],
    ) -> RunResult:
        """Run a playbook to its end: its text, the path of a file, or a path in the catalog.

        If this call is cancelled (Ctrl-C) or takes longer than `timeout` seconds, the execution is cancelled.
        Raises InvalidPlaybook with the diagnostics."""
        submission = self._submission(playbook, payload, fields)
        execution_id = await self.orchestrator.submit(submission)
        if on_start is not None:
            on_start(execution_id)
        follower = asyncio.ensure_future(self._follow(execution_id, on_event)) if on_event is not None else None
        timed_out = False
        try:
            try:
                await self.orchestrator.wait(execution_id, timeout)
            except TimeoutError:
                timed_out = True
                await self._stop(execution_id, f"timeout after {timeout:g} s")
            except asyncio.CancelledError:
                await self._stop(execution_id, "interrupted")
                raise
            if follower is not None:
                await follower
        finally:
            if follower is not None:
                follower.cancel()
        result = run_result(execution_id, await self.orchestrator.progress(execution_id), timed_out=timed_out)
        return await self.hydrated(result)

    async def result(self, execution_id: str) -> RunResult:
        """The current result of an execution."""
        result = run_result(execution_id, await self.orchestrator.progress(execution_id))
        summary = await self.orchestrator.summary(execution_id)  # `waiting` and `paused` are not in the step table
        return await self.hydrated(msgspec.structs.replace(result, status=summary.status))

    async def hydrated(self, result: RunResult) -> RunResult:
        """The result with its output loaded from the result store, unless it is larger than max_hydrate_bytes.

        So `data` is present whether or not the output was small enough for the log; `ref` is its reference."""
        if any(map(is_stored, result.ctx.values())):
            result = msgspec.structs.replace(result, ctx=await restored(self.orchestrator.results, result.ctx))
        if result.output.get("data") is not None or result.output.get("ref") is None:
            return result
        reference = msgspec.convert(result.output["ref"], Reference)
        try:
            data = await RequestResolver(self.orchestrator.results, dict).hydrate(reference, Limits().max_hydrate_bytes)
        except (PayloadUnavailable, StoreUnavailable):
            return result  # only the reference: too large, deleted, or not decodable
        return msgspec.structs.replace(result, output={**result.output, "data": data})

    async def close(self) -> None:
        """Stop the workers and close the back ends."""
        await self._closing.aclose()

    async def __aenter__(self) -> LocalEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _submission(
        self, playbook: str | os.PathLike[str], payload: Mapping[str, Any] | None, fields: RequestFields
    ) -> Submission:
        given = dict(payload or {})
        if isinstance(playbook, str) and is_text(playbook):
            return Submission(text=playbook, payload=given, **fields)
        caller = os.path.join(os.getcwd(), "")
        return Submission(path=os.fspath(playbook), payload=given, caller=caller, **fields)

    async def _follow(self, execution_id: str, on_event: Callable[[Recorded], None]) -> None:
        async for recorded in self.orchestrator.subscribe(execution_id):
            on_event(recorded)

    async def _stop(self, execution_id: str, reason: str) -> None:
        """Cancel an execution and wait for its end for STOP_SECONDS."""
        try:
            await asyncio.shield(self.orchestrator.cancel(execution_id, reason))
            await self.orchestrator.wait(execution_id, STOP_SECONDS)
        except (Conflict, TimeoutError):
            return


async def open_local(
    settings: Settings | None = None,
    *,
    work: bool = True,
    resume: bool | str | frozenset[str] = False,
    observer: TaskObserver | None = None,
    tools: ToolSource | None = None,
    keychain: Keychain | None = None,
    clock: Clock | None = None,
    **fields: Unpack[SettingFields],
) -> LocalEngine:
    """Open an embedded engine.

    `store` is `memory:`, `sqlite:///path` or the path of a file; missing fields are read from the settings.
    `work=False` opens it only for queries and commands. `resume` continues all orphaned executions, a set of them, or
    the named one and the others of its process; Conflict when that process is alive. `observer` receives the output of
    tools. `tools`, `keychain` and `clock` replace the installation's own, for tests."""
    from noetl.runtime.clock import RealClock
    from noetl.runtime.resources import close_loop_resources
    from noetl.runtime.tasks import running
    from noetl.secrets.keychain import InstallationKeychain, InstalledCredentials
    from noetl.server.lifecycle.external_changes import watch_external_changes
    from noetl.server.lifecycle.retention import collect
    from noetl.storage.factory import open_process_locks, open_stores, open_task_logs, open_triggers
    from noetl.storage.queue.memory import MemoryRunQueue
    from noetl.storage.results import open_results
    from noetl.tools.registry import specs

    settings = settings or _settings(fields)
    async with AsyncExitStack() as closing:
        events, playbooks = open_stores(settings.store, preallocate_wal=settings.sqlite_wal_preallocate)
        closing.push_async_callback(events.close)
        locks = open_process_locks(settings.store)
        if locks is not None:
            closing.callback(locks.close)
        results = open_results(settings.results)
        closing.push_async_callback(results.close)
        if work and "blob" in results.types:  # on the local disk, so that the scan is cheap
            closing.push_async_callback(collect, results, RealClock())
        database = getattr(events, "database", None)
        secrets = keychain or InstallationKeychain(InstalledCredentials(settings.home, database=database))
        closing.push_async_callback(secrets.close)
        number = locks.claim() if locks is not None and work else None
        if number is not None:
            set_mark(_mark(settings.store, number))
        orchestrator = build_orchestrator(
            Stores(
                events, playbooks, results, MemoryRunQueue(one_pool=True), open_triggers(events), open_task_logs(events)
            ),
            specs,
            keychain=secrets,
            files=find_file,
            options=Options(
                lease_seconds=None,
                tenant_label=settings.server_tenant_label,
                process_number=number,
                performs_effects=work,
            ),
        )
        closing.push_async_callback(orchestrator.close)
        if work:
            await orchestrator.load_limits()
            pool = _create_pool(orchestrator, results, settings, observer, tools, clock or RealClock())
            closing.push_async_callback(close_loop_resources)
            closing.push_async_callback(pool.stop, grace=0.0)
            await pool.start()
            if locks is not None:
                await closing.enter_async_context(running(partial(watch_external_changes, orchestrator)))
        if resume:
            await _resume(orchestrator, locks, resume, settings.store)
        return LocalEngine(orchestrator, closing.pop_all())


async def _resume(
    orchestrator: Orchestrator, locks: ProcessLocks | None, resume: bool | str | frozenset[str], store: str
) -> None:
    from noetl.server.lifecycle import recovery

    select: Callable[[list[str]], list[str]] | None
    if isinstance(resume, frozenset):
        select = _orphans_of(resume, locks)
    elif isinstance(resume, str):
        select = _orphans_beside(resume, locks)
    else:
        select = locks.acquire_orphans if locks else None

    def only(ids: list[str]) -> list[str]:
        chosen = ids if select is None else select(ids)
        if locks is not None:
            _kill_left_over(store, {process_of(each) for each in chosen})
        return chosen

    await recovery.resume(orchestrator, only=only, workers_gone=True)


def _mark(store: str, number: int) -> str:
    """The mark of the tools' processes of one process, which its lock makes unique."""
    return f"{hashlib.sha256(store.encode()).hexdigest()[:16]}-{number:04x}"


def _kill_left_over(store: str, numbers: Collection[int]) -> None:
    """Prove that no tool of these ended processes still runs, before their tasks run again."""
    for number in numbers:
        try:
            killed = kill_marked(_mark(store, number))
        except StillRunning as problem:
            raise Conflict(f"{problem}; end it, then resume again") from None
        if killed:
            log.warning("%d processes of a killed run were still running and have been killed", len(killed))


def _orphans_of(wanted: frozenset[str], locks: ProcessLocks | None) -> Callable[[Sequence[str]], list[str]]:
    """Selects those of these executions whose process has ended."""

    def select(ids: Sequence[str]) -> list[str]:
        found = [each for each in ids if each in wanted]
        return found if locks is None else locks.acquire_orphans(found)

    return select


def _orphans_beside(execution_id: str, locks: ProcessLocks | None) -> Callable[[Sequence[str]], list[str]]:
    """Selects the executions of the process that ran `execution_id`; Conflict when it is alive."""
    if locks is None:
        raise RequestRefused(
            "`resume` is only for executions in an SQLite store; a server resumes those of Postgres by itself"
        )
    process = process_of(execution_id)

    def select(ids: Sequence[str]) -> list[str]:
        if not locks.acquire(process):
            raise Conflict(f"execution {execution_id} is being run by another process")
        return [each for each in ids if process_of(each) == process]

    return select


def _create_pool(
    orchestrator: Orchestrator,
    results: ResultStore,
    settings: Settings,
    observer: TaskObserver | None,
    tools: ToolSource | None,
    clock: Clock,
) -> Pool:
    from noetl.worker.bundles import BundleFolders
    from noetl.worker.factory import create_pool
    from noetl.worker.host import HostServices, TaskObserver

    services = HostServices(
        results,
        observer=observer or TaskObserver(),
        record_inputs=settings.record_inputs,
        bundles=BundleFolders(settings.home / "bundles"),
    )
    worker = f"local-{os.getpid()}"
    return create_pool(orchestrator.work, services, worker=worker, clock=clock, slots=settings.slots, tools=tools)


async def find_file(path: str, caller: str) -> tuple[str, str] | None:
    """Read the file of a playbook, relative to the file of its caller."""
    return await asyncio.to_thread(_find_file, path, caller)


def _find_file(path: str, caller: str) -> tuple[str, str] | None:
    folder = os.path.dirname(caller) if caller else os.getcwd()
    for suffix in SUFFIXES:
        file = os.path.normpath(os.path.join(folder, path + suffix))
        if os.path.isfile(file):
            return read_playbook(file), file
    found = _find_by_catalog_path(path, folder)
    if found is None and os.path.isdir(os.path.join(folder, path)):
        raise RequestRefused(f"{path} is a directory, not a playbook")
    return found


def _find_by_catalog_path(path: str, folder: str) -> tuple[str, str] | None:
    """A playbook that is not registered, by its `metadata.path`, in a file of the caller's folder or of one above it.

    Files of a repository call each other by their catalog paths. The path `a/b` is that of `b.yaml` beside the caller,
    or of `a/b.yaml` or `a/b/b.yaml` below a folder above it, if the file declares it."""
    if not path or path.startswith((".", "/")) or path.endswith(SUFFIXES[1:]):
        return None
    name = os.path.basename(path)
    places = [os.path.join(folder, name)]
    for above in (folder, *map(str, Path(folder).parents)):
        places += [os.path.join(above, path), os.path.join(above, path, name)]
    for place in places:
        for suffix in SUFFIXES[1:]:
            file = place + suffix
            if os.path.isfile(file):
                text = read_playbook(file)
                if _declared_path(text) == path:
                    return text, file
    return None


def _declared_path(text: str) -> str | None:
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    playbook = compile_playbook(text, file="", specs=specs(), legacy=True).playbook
    return None if playbook is None else playbook.path


def read_playbook(file: str | os.PathLike[str]) -> str:
    """The text of a playbook file; RequestRefused when it cannot be read."""
    try:
        if os.path.getsize(file) > MAX_FILE_BYTES:
            raise RequestRefused(f"{file} is larger than {MAX_FILE_BYTES // 2**20} MiB, the maximum size of a playbook")
        return Path(file).read_bytes().decode()
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{file} is not UTF-8 text (byte {problem.start})") from None
    except OSError as problem:
        raise RequestRefused(f"{file} cannot be read: {problem.strerror}") from None


def is_text(playbook: str) -> bool:
    """Whether this is the text of a playbook rather than its path."""
    return "\n" in playbook or playbook.lstrip().startswith(("{", "apiVersion"))


def _settings(fields: SettingFields) -> Settings:
    from noetl.settings import load

    return load({name: value if value is None else str(value) for name, value in fields.items()}).settings


# ── the Python API ──────────────────────────────────────────────────────────────────────


class RunOptions(RequestFields, total=False):
    """Options of `run` and `run_async`; `LocalEngine.run` explains them."""

    timeout: float | None
    on_start: Callable[[str], None] | None
    on_event: Callable[[Recorded], None] | None


async def run_async(
    playbook: str | os.PathLike[str],
    payload: Mapping[str, Any] | None = None,
    *,
    store: str | None = None,
    settings: Settings | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run a playbook to its end on an embedded engine; options as of `LocalEngine.run`."""
    async with await open_local(settings, store=store) as engine:
        return await engine.run(playbook, payload, **options)


def run(
    playbook: str | os.PathLike[str],
    payload: Mapping[str, Any] | None = None,
    *,
    store: str | None = None,
    settings: Settings | None = None,
    **options: Unpack[RunOptions],
) -> RunResult:
    """Run a playbook to its end on an embedded engine; inside an event loop use `run_async`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(playbook, payload, store=store, settings=settings, **options))
    raise NoetlError("noetl.run cannot be called inside an event loop; await noetl.run_async(...) there")


def validate(text: str, *, file: str = "", strict: bool = False, legacy: bool = False) -> tuple[Diagnostic, ...]:
    """All diagnostics of a playbook's text."""
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    return compile_playbook(text, file=file, specs=specs(), strict=strict, legacy=legacy).diagnostics
