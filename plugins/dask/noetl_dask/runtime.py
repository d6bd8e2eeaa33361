"""A worker runtime on Dask: `noetl worker start --runtime dask://HOST:8786` (a scheduler of `distributed`).

Every call of a python or shell task is a Dask task. The labels of `spec.placement` are abstract resources of Dask
(`gpu: "true"` needs one `gpu`; `dask worker --resources gpu=1`); `spec.cost` is the resource `cpu`, if it is more than
1. Dask would execute a task again whose worker was lost; here that is an error, because attempts are those of the
playbook.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from distributed import Client, Event, KilledWorker, get_client, get_worker

from noetl.tool import RemoteTask, WorkerLost, encode_task, run_remote

CONNECT_SECONDS = 20.0
DELIVERY_SECONDS = 10.0  # that messages may arrive after the result
EXECUTING = "executing"


def connect(url: str) -> DaskRuntime:
    """Connect to a scheduler."""
    return DaskRuntime("tcp://" + url.partition("://")[2])


def _execute(topic: str, task: bytes) -> int:
    """On a worker of the cluster: send all messages as events of a topic; returns their number, 0 if another worker
    had begun the task."""
    begun = Event(topic, client=get_client())
    if begun.is_set():
        return 0
    begun.set()
    worker = get_worker()

    def is_cancelled() -> bool:
        found = worker.state.tasks.get(topic)
        return found is None or found.state != EXECUTING

    count = 0
    for message in run_remote(task, is_cancelled):
        worker.log_event(topic, {"worker": worker.address, "message": message})
        count += 1
    return count


class DaskRuntime:
    """A connection to a Dask scheduler."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._tasks: dict[str, _Task] = {}  # by topic

    async def run(self, task: RemoteTask) -> AsyncIterator[bytes]:
        """Execute a task on a worker, and yield its messages."""
        client = await self._connected()
        topic = f"noetl-{task.task_run_id}-{uuid.uuid4().hex}"  # unique, also after a restart
        received = self._tasks[topic] = _Task()
        client.subscribe_topic(topic, received.receive)
        future = client.submit(
            _execute, topic, encode_task(task), key=topic, pure=False, retries=0, resources=_resources(task)
        )
        ending = asyncio.ensure_future(received.end(future))
        try:
            while (message := await received.messages.get()) is not None:
                yield message
            await ending
        finally:
            del self._tasks[topic]
            client.unsubscribe_topic(topic)
            if future.status == "pending":
                ending.cancel()
                await client.cancel([future], force=True, reason="the task was cancelled")

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                client = await Client(self._address, asynchronous=True, timeout=CONNECT_SECONDS)
                client.subscribe_topic("all", self._cluster_changed)
                self._client = client
            return self._client

    def _cluster_changed(self, event: tuple[float, Any]) -> None:
        """A worker of the cluster was lost: so are its tasks."""
        change = event[1]
        if isinstance(change, dict) and change.get("action") == "remove-worker":
            for task in self._tasks.values():
                if task.worker and task.worker == change.get("worker"):
                    task.fail(f"Dask lost the worker {task.worker}, which executed the task")


class _Task:
    """What arrives of one task: messages in order, then None."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.worker = ""
        self._received = 0
        self._arrived = asyncio.Event()
        self._lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def receive(self, event: tuple[float, dict[str, Any]]) -> None:
        """A message of the task."""
        self.worker = event[1]["worker"]
        self.messages.put_nowait(event[1]["message"])
        self._received += 1
        self._arrived.set()

    def fail(self, reason: str) -> None:
        """The worker was lost."""
        if not self._lost.done():
            self._lost.set_exception(WorkerLost(reason))

    async def end(self, future: Any) -> None:
        """Wait for the end of the task and for all of its messages."""
        result = asyncio.ensure_future(future.result())
        try:
            await asyncio.wait((result, self._lost), return_when=asyncio.FIRST_COMPLETED)
            count = self._lost.result() if self._lost.done() else result.result()
            if not count:
                raise WorkerLost("Dask lost the worker that executed the task")
            async with asyncio.timeout(DELIVERY_SECONDS):
                while self._received < count:
                    self._arrived.clear()
                    await self._arrived.wait()
        except KilledWorker as problem:
            raise WorkerLost(f"Dask lost the worker of the task: {problem}") from None
        finally:
            result.cancel()
            self.messages.put_nowait(None)


def _resources(task: RemoteTask) -> dict[str, float]:
    wanted = {name: 1.0 if value.lower() == "true" else float(value) for name, value in task.labels.items()}
    return {**wanted, "cpu": task.cost} if task.cost > 1 else wanted
