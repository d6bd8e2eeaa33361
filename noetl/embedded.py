"""Both planes in one process: what `noetl run`, the Python API and the tests use.

`open_local` joins a store, a result store, a keychain, the orchestrator and a pool of workers that
speaks to it without any wire between them. Everything is as durable as on a server: the log is
flushed before anything is acknowledged, and `noetl events` shows it afterwards.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from noetl.core.model.events import Recorded
from noetl.core.model.ids import process_of
from noetl.core.model.playbook import Limits
from noetl.core.model.reference import Reference
from noetl.core.model.tool import Run
from noetl.errors import Conflict, NoetlError, PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models.summaries import RunResult, run_result
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.secrets import Keychain

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic
    from noetl.settings import Settings
    from noetl.storage.sqlite.process_locks import ProcessLocks
    from noetl.worker.host import Watcher

MAX_FILE_BYTES = 16 * 1024 * 1024
STOP_SECONDS = 10.0  # how long a cancelled run may take to end
SUFFIXES = ("", ".yaml", ".yml")


class LocalEngine:
    """An embedded engine; use it as an async context manager, or `close` it."""

    def __init__(self, orchestrator: Orchestrator, closing: list[Callable[[], Any]]) -> None:
        self.orchestrator = orchestrator
        self._closing = closing

    async def run(
        self,
        playbook: str | os.PathLike[str],
        payload: Mapping[str, Any] | None = None,
        *,
        file: str = "",
        version: int | str | None = None,
        strict: bool = False,
        legacy: bool = False,
        timeout: float | None = None,
        key: str | None = None,
        entry_step: str | None = None,
        return_step: str | None = None,
        on_start: Callable[[str], None] | None = None,
        on_event: Callable[[Recorded], None] | None = None,
    ) -> RunResult:
        """Run a playbook to its end: a text, the path of a file, or a path of the catalog.

        When this is cancelled (Ctrl-C) or takes longer than `timeout` seconds, the execution is
        cancelled, which is recorded. InvalidPlaybook has the diagnostics."""
        submission = self._submission(
            playbook, payload, file=file, version=version, strict=strict, legacy=legacy, key=key,
            entry_step=entry_step, return_step=return_step,
        )  # fmt: skip
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
                await self._stop(execution_id, f"it took longer than {timeout:g} s")
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
        """The result of an execution, as far as it is."""
        return await self.hydrated(run_result(execution_id, await self.orchestrator.progress(execution_id)))

    async def hydrated(self, result: RunResult) -> RunResult:
        """The result with its payload in it, though it was stored outside the log, unless it is too large to hold.

        Who asks for an output need not know whether it was large: `data` is there, and `ref` says where it lies."""
        if result.output.get("data") is not None or result.output.get("ref") is None:
            return result
        reference = msgspec.convert(result.output["ref"], Reference)
        try:
            data = await RequestResolver(self.orchestrator.results, dict).hydrate(reference, Limits().max_hydrate_bytes)
        except (PayloadUnavailable, StoreUnavailable):
            return result  # the reference is what there is: too large, gone, or no text
        return msgspec.structs.replace(result, output={**result.output, "data": data})

    async def close(self) -> None:
        """Stop the workers and let go of the back ends."""
        while self._closing:
            await self._closing.pop()()

    async def __aenter__(self) -> LocalEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _submission(
        self, playbook: str | os.PathLike[str], payload: Mapping[str, Any] | None, **fields: Any
    ) -> Submission:
        given = dict(payload or {})
        if isinstance(playbook, str) and is_text(playbook):
            return Submission(text=playbook, payload=given, **fields)
        path = os.fspath(playbook)
        fields["caller"] = os.path.join(os.getcwd(), "")
        return Submission(path=path, payload=given, **fields)

    async def _follow(self, execution_id: str, on_event: Callable[[Recorded], None]) -> None:
        async for recorded in self.orchestrator.subscribe(execution_id):
            on_event(recorded)

    async def _stop(self, execution_id: str, reason: str) -> None:
        """Cancel it and wait a little for its end; a run that cannot be stopped is left to its lease."""
        try:
            await asyncio.shield(self.orchestrator.cancel(execution_id, reason))
            await self.orchestrator.wait(execution_id, STOP_SECONDS)
        except (Conflict, TimeoutError):
            return


async def open_local(
    settings: Settings | None = None,
    *,
    store: str | None = None,
    results: str | None = None,
    home: str | os.PathLike[str] | None = None,
    slots: int | None = None,
    work: bool = True,
    resume: bool | str = False,
    watcher: Watcher | None = None,
    load: Callable[[str], Run] | None = None,
    keychain: Keychain | None = None,
    clock: Clock | None = None,
) -> LocalEngine:
    """Join an embedded engine.

    `store` is `memory:`, `sqlite:///path` or the path of a file; what is not given comes from the settings.
    `work=False` opens it for looking and steering only; `resume` goes on with orphaned executions,
    or with the one that is named (and what ran beside it); Conflict when its process is alive.
    `watcher` hears what tools print. `load`, `keychain` and `clock` stand in for the installation's own, in tests."""
    from noetl.secrets.keychain import InstalledCredentials, open_keychain
    from noetl.storage.factory import open_process_locks, open_stores, open_triggers
    from noetl.storage.queue.memory import MemoryRunQueue
    from noetl.storage.results import open_results
    from noetl.tools.registry import specs

    settings = settings or _settings(store=store, results=results, home=home, slots=slots)
    closing: list[Callable[[], Any]] = []
    try:
        events, playbooks = open_stores(settings.store, preallocate_wal=settings.sqlite_wal_preallocate)
        closing.append(events.close)
        owners = open_process_locks(settings.store)
        if owners is not None:
            closing.append(_later(owners.close))
        kept = open_results(settings.results)
        closing.append(kept.close)
        if work and "blob" in kept.by_type:  # on this machine's disk, so that looking costs next to nothing
            closing.append(lambda: _tidy(kept))
        database = getattr(events, "database", None)
        secrets = keychain or open_keychain(
            settings.home, credentials=InstalledCredentials(settings.home, database=database)
        )
        closing.append(secrets.close)
        orchestrator = Orchestrator(
            store=events,
            playbooks=playbooks,
            results=kept,
            keychain=secrets,
            queue=MemoryRunQueue(),
            specs=specs,
            files=find_file,
            lease_seconds=None,
            process=owners.claim() if owners is not None and work else None,
            limits=open_triggers(events),
            acts=work,
        )
        closing.append(orchestrator.close)
        if work:
            await orchestrator.heed_limits()
            closing.append(await _start_pool(orchestrator, kept, settings.slots, watcher, load, clock))
            if owners is not None:
                closing.append(await _listen(orchestrator))
        if resume:
            from noetl.server.lifecycle import recovery

            orphans = owners.acquire_orphans if owners else None
            only = _left_behind(resume, owners) if isinstance(resume, str) else orphans
            await recovery.resume(orchestrator, only=only, workers_gone=True)
    except BaseException:
        while closing:
            await closing.pop()()
        raise
    return LocalEngine(orchestrator, closing)


def _left_behind(execution_id: str, owners: ProcessLocks | None) -> Callable[[Sequence[str]], list[str]]:
    """Picks what the process of an execution left behind, once it is sure that the process is gone."""
    if owners is None:
        raise RequestRefused(
            "only executions in an SQLite store are resumed by hand; a server resumes those of Postgres"
        )
    process = process_of(execution_id)

    def pick(ids: Sequence[str]) -> list[str]:
        if not owners.acquire(process):
            raise Conflict(f"execution {execution_id} is being run by another process")
        return [each for each in ids if process_of(each) == process]

    return pick


# ── joining the parts ───────────────────────────────────────────────────────────────────


async def _tidy(results: ResultStore) -> None:
    from noetl.runtime.clock import RealClock
    from noetl.server.lifecycle.retention import collect

    await collect(results, RealClock())


def _later(close: Callable[[], None]) -> Callable[[], Any]:
    async def closing() -> None:
        close()

    return closing


async def _listen(orchestrator: Orchestrator) -> Callable[[], Any]:
    from contextlib import AsyncExitStack

    from noetl.server.lifecycle.external_changes import watch_external_changes

    stack = AsyncExitStack()
    await stack.enter_async_context(watch_external_changes(orchestrator))
    return stack.aclose


async def _start_pool(
    orchestrator: Orchestrator,
    results: ResultStore,
    slots: int,
    watcher: Watcher | None,
    load: Callable[[str], Run] | None,
    clock: Clock | None,
) -> Callable[[], Any]:
    """Workers in this process; the answer stops them and closes what their tools have opened."""
    from noetl.runtime.clock import RealClock
    from noetl.runtime.resources import close_loop_resources
    from noetl.worker.factory import create_pool

    worker = f"local-{os.getpid()}"
    pool = create_pool(
        orchestrator.work, results, worker=worker, clock=clock or RealClock(), slots=slots, watcher=watcher, load=load
    )
    await pool.start()

    async def stop() -> None:
        await pool.stop(grace=0.0)
        await close_loop_resources()

    return stop


async def find_file(path: str, caller: str) -> tuple[str, str] | None:
    """A playbook's file, relative to the file of its caller."""
    return await asyncio.to_thread(_find_file, path, caller)


def _find_file(path: str, caller: str) -> tuple[str, str] | None:
    folder = os.path.dirname(caller) if caller else os.getcwd()
    for suffix in SUFFIXES:
        file = os.path.normpath(os.path.join(folder, path + suffix))
        if os.path.isfile(file):
            return read_playbook(file), file
    if os.path.isdir(os.path.join(folder, path)):
        raise RequestRefused(f"{path} is a folder, not a playbook")
    return None


def read_playbook(file: str | os.PathLike[str]) -> str:
    """The text of a playbook's file, or one clear line about why not."""
    try:
        if os.path.getsize(file) > MAX_FILE_BYTES:
            raise RequestRefused(f"{file} is larger than {MAX_FILE_BYTES // 2**20} MiB; a playbook is not")
        return Path(file).read_bytes().decode()
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{file} is not UTF-8 text (byte {problem.start})") from None
    except OSError as problem:
        raise RequestRefused(f"{file} cannot be read: {problem.strerror}") from None


def is_text(playbook: str) -> bool:
    """Whether this is a playbook itself rather than the name of one."""
    return "\n" in playbook or playbook.lstrip().startswith(("{", "apiVersion"))


def _settings(**flags: Any) -> Settings:
    from noetl.settings import load

    return load({name: value if value is None else str(value) for name, value in flags.items()}).settings


# ── the Python API ──────────────────────────────────────────────────────────────────────


async def run_async(
    playbook: str | os.PathLike[str],
    payload: Mapping[str, Any] | None = None,
    *,
    store: str | None = None,
    settings: Settings | None = None,
    **options: Any,
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
    **options: Any,
) -> RunResult:
    """Run a playbook to its end on an embedded engine; inside an event loop use `run_async`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(playbook, payload, store=store, settings=settings, **options))
    raise NoetlError("noetl.run cannot be called inside an event loop; await noetl.run_async(...) there")


def validate(text: str, *, file: str = "", strict: bool = False, legacy: bool = False) -> tuple[Diagnostic, ...]:
    """All problems of a playbook's text; empty when there are none."""
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    return compile_playbook(text, file=file, specs=specs(), strict=strict, legacy=legacy).diagnostics
