"""Executes calls of tools in a process of another cluster, for the runtimes of workers (`worker.runtimes`).

`run_remote` calls the function of a kind as a worker does, with a host that sends printed lines to the worker.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.model.outcome import ERROR_KINDS, Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.tool import RemoteTask, ToolCall
from noetl.errors import PayloadUnavailable, SecretUnavailable
from noetl.runtime.masking import Masker
from noetl.tools.registry import load

CHECK_SECONDS = 0.2  # after which a remote task sees that it was interrupted
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")

_encode = msgspec.json.Encoder().encode


class Message(Struct, omit_defaults=True):
    """What a remote task sends: printed lines as (stream, line), at last its outcome."""

    lines: list[tuple[str, str]] = []
    outcome: Outcome | None = None


def run_remote(data: bytes, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Execute an encoded RemoteTask in this process; yields encoded messages: printed lines, at last the outcome.

    Closing the generator, or an exception in it (KeyboardInterrupt), cancels the task. `is_cancelled` is called every
    `CHECK_SECONDS`, for clusters that cannot interrupt a task."""
    task = msgspec.json.decode(data, type=RemoteTask)
    messages: SimpleQueue[tuple[str, str] | Outcome] = SimpleQueue()
    running = asyncio.run_coroutine_threadsafe(_execute(task, messages), _event_loop())
    running.add_done_callback(lambda done: messages.put(_outcome(done)))
    try:
        yield _encode(Message())  # it has begun; Ray interrupts a generator only after its first value
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
                yield _encode(Message(lines))
            if isinstance(found, Outcome):
                yield _encode(Message(outcome=found))
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
    return await load(task.kind)(call)


def _with_devices(given: dict[str, Any]) -> dict[str, Any]:
    """The input with the variables by which a cluster assigns devices to this process."""
    devices = {name: os.environ[name] for name in DEVICES if name in os.environ}
    env = given.get("env")
    return {**given, "env": {**devices, **(env if isinstance(env, Mapping) else {})}} if devices else given


def _outcome(done: Any) -> Outcome:
    if done.cancelled():
        return error("cancelled", "the task was cancelled")
    problem = done.exception()
    if problem is None:
        outcome: Outcome = done.result()
        return outcome
    kind = getattr(problem, "kind", "")
    return error(kind if kind in ERROR_KINDS else "unknown", f"{type(problem).__name__}: {problem}")


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
