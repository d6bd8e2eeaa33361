"""Runtimes: clusters of other systems that execute the tasks of a worker (`noetl worker start --runtime ray://...`).

The worker leases runs, executes their pipelines and reports, as always; the calls of some kinds are executed on the
cluster. So leases, fencing, attempts and timeouts are those of every worker. A runtime is a plug-in: an entry point of
the group `noetl.runtimes`, named like the scheme of its URL, that refers to a function `open(url) -> Runtime`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from noetl.core.model.outcome import Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.remote import RemoteTask, Runtime
from noetl.core.model.tool import ToolCall, ToolFunction
from noetl.errors import PayloadUnavailable, RequestRefused, SecretUnavailable, WorkerLost
from noetl.runtime.clock import RealClock
from noetl.runtime.masking import Masker
from noetl.tools._common.scripts import ScriptUnavailable, read_script
from noetl.tools.registry import load as load_tool
from noetl.worker.host import TaskHost
from noetl.worker.tool_call import call_tool

GROUP = "noetl.runtimes"
KINDS = frozenset({"python", "shell"})  # executed on the cluster; others need the services of the worker
CHECK_SECONDS = 0.2  # after which a remote task sees that it was interrupted
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")

_encode = msgspec.json.Encoder().encode


class _Message(Struct, omit_defaults=True):
    """What a remote task sends: printed lines as (stream, line), at last its outcome."""

    lines: list[tuple[str, str]] = []
    outcome: Outcome | None = None


_decode_message = msgspec.json.Decoder(_Message).decode


# ── in the worker ───────────────────────────────────────────────────────────────────────


def open_runtime(url: str) -> Runtime:
    """Connect to the cluster of a URL; RequestRefused if no installed plug-in has its scheme."""
    from importlib.metadata import entry_points

    scheme = urlsplit(url).scheme
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        hint = f"install the plug-in noetl-{scheme}" if scheme else "a URL such as ray://HOST:6379 is required"
        raise RequestRefused(f"there is no runtime for {url!r}: {hint} (installed runtimes: {known})")
    opened: Runtime = found[scheme].load()(url)
    return opened


class RemoteTools(Struct, eq=False):
    """Loads tools as `tools.registry.load` does; calls of `KINDS` are executed by a runtime."""

    _runtime: Runtime

    def load(self, kind: str) -> ToolFunction:
        """The function of a kind."""
        return self._call if kind in KINDS else load_tool(kind)

    async def _call(self, call: ToolCall) -> Outcome:
        try:
            task = await _remote_task(call)
        except ScriptUnavailable as failure:
            return error(failure.kind, str(failure))
        outcome = None
        try:
            async for data in self._runtime.run(task):
                message = _decode_message(data)
                for stream, line in message.lines:
                    call.host.log(line, stream=stream)
                outcome = message.outcome or outcome
        except WorkerLost as lost:
            if call.spec.get("effect") == "at_most_once":
                return error("ambiguous", f"{lost}; the task may have had its effect")
            raise
        if outcome is None:
            raise WorkerLost("the remote task ended without an outcome")
        return outcome


async def _remote_task(call: ToolCall) -> RemoteTask:
    """The call as data; scripts are read here, because their files are on this machine."""
    given = dict(call.input)
    script = given.get("script")
    if isinstance(script, Mapping):
        given["code" if call.kind == "python" else "command"] = await read_script(call, script)
        del given["script"]
    return RemoteTask(
        kind=call.kind,
        input=given,
        spec=call.spec,
        execution_id=call.execution_id,
        step=call.step,
        task=call.task,
        task_run_id=call.task_run_id,
        attempt=call.attempt,
        timeout=call.timeout,
        scopes=dict(call.scopes),
        where=call.where,
        code_line=call.code_line,
        playbook=call.playbook,
        labels=dict(label.partition("=")[::2] for label in call.labels),
        cost=call.cost,
        secrets=cast(TaskHost, call.host).secrets_in(_encode([given, call.scopes]).decode()),
    )


# ── on the cluster ──────────────────────────────────────────────────────────────────────


def run_remote(data: bytes, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Execute an encoded RemoteTask in this process; yields encoded messages: printed lines, at last the outcome.

    Closing the generator, or an exception in it (KeyboardInterrupt), cancels the task. `is_cancelled` is called every
    `CHECK_SECONDS`, for clusters that cannot interrupt a task."""
    task = msgspec.json.decode(data, type=RemoteTask)
    messages: SimpleQueue[tuple[str, str] | Outcome] = SimpleQueue()
    running = asyncio.run_coroutine_threadsafe(_execute(task, messages), _event_loop())
    running.add_done_callback(lambda done: messages.put(_outcome(done)))
    try:
        yield _encode(_Message())  # it has begun; Ray interrupts a generator only after its first value
        while True:
            lines: list[tuple[str, str]] = []
            try:
                found = messages.get(timeout=CHECK_SECONDS)
            except Empty:
                if is_cancelled():
                    return
                continue  # a pending interrupt of this thread is raised here
            while not isinstance(found, Outcome):
                lines.append(found)
                if messages.empty():
                    break
                found = messages.get()
            if lines:
                yield _encode(_Message(lines))
            if isinstance(found, Outcome):
                yield _encode(_Message(outcome=found))
                return
    finally:
        running.cancel()


class _Loop:
    """The event loop of this process, in a thread of its own: warm Python processes are shared by its tasks."""

    loop: asyncio.AbstractEventLoop | None = None
    lock = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    with _Loop.lock:
        if _Loop.loop is None:
            _Loop.loop = asyncio.new_event_loop()
            threading.Thread(target=_Loop.loop.run_forever, name="noetl-remote", daemon=True).start()
        return _Loop.loop


async def _execute(task: RemoteTask, messages: SimpleQueue[tuple[str, str] | Outcome]) -> Outcome:
    host = _RemoteHost(Masker(task.secrets), lambda stream, line: messages.put((stream, line)))
    call = ToolCall(
        kind=task.kind,
        input=_with_devices(task.input),
        spec={name: value for name, value in task.spec.items() if name != "retry"},  # the worker repeats the call
        host=host,
        execution_id=task.execution_id,
        step=task.step,
        task=task.task,
        task_run_id=task.task_run_id,
        attempt=task.attempt,
        timeout=task.timeout,
        scopes=task.scopes,
        where=task.where,
        code_line=task.code_line,
        playbook=task.playbook,
    )
    return await call_tool(load_tool(task.kind), call, RealClock())


def _with_devices(given: dict[str, Any]) -> dict[str, Any]:
    """The input with the variables by which a cluster assigns devices to this process."""
    devices = {name: os.environ[name] for name in DEVICES if name in os.environ}
    env = given.get("env")
    return {**given, "env": {**devices, **(env if isinstance(env, Mapping) else {})}} if devices else given


def _outcome(done: Any) -> Outcome:
    if done.cancelled():
        return error("cancelled", "the task was cancelled")
    problem = done.exception()
    return error("unknown", f"{type(problem).__name__}: {problem}") if problem is not None else done.result()


class _RemoteHost(Struct, eq=False):
    """The `Host` of a call on a cluster: output and errors are masked; there are no credentials and no result store."""

    _masker: Masker
    _line: Callable[[str, str], None]

    def log(self, line: str, *, stream: str = "stdout") -> None:
        """Send a line to the worker."""
        self._line(stream, self._masker.mask(line))

    def log_full(self) -> bool:
        """Never: the cluster buffers lines."""
        return False

    async def log_room(self) -> None:
        """Do not wait."""

    def mask(self, text: str) -> str:
        """The text with secret values masked."""
        return self._masker.mask(text)

    def progress(self, **counts: float) -> None:
        """Not reported."""

    async def credential(self, name: str) -> Mapping[str, Any]:
        """Not available on a cluster."""
        raise SecretUnavailable({name: "credentials are not sent to a cluster; pass the value as input"})

    async def put_result(
        self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None
    ) -> Reference:
        """Not available on a cluster: the worker stores large results."""
        raise PayloadUnavailable("a task on a cluster has no result store")

    def open_result(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Not available on a cluster."""
        raise PayloadUnavailable("a task on a cluster has no result store")

    async def fetch_source(self, uri: str, *, source: Mapping[str, Any] | None = None) -> bytes:
        """Not used: the worker has read the script."""
        raise PayloadUnavailable(f"{uri} was not read by the worker")

    def resolve_path(self, path: str) -> str:
        """The path in the working folder of the node."""
        return os.path.abspath(path)

    def allows_address(self, address: str) -> bool:
        """The cluster has its own network policy."""
        return True

    def address_check(self, *places: Any) -> None:
        """No check."""
