"""A worker runtime on Ray: `noetl worker start --runtime ray://HOST:6379` (`ray://auto`: the cluster of this machine).

Every call of a python or shell task is a Ray task: `spec.cost` is its number of CPUs, the label `gpu` of
`spec.placement` its number of GPUs, and other labels select nodes by their labels. Ray never repeats a task; attempts
are those of the playbook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError

from noetl.tool import RemoteTask, WorkerLost, encode_task, run_remote

CANCEL_ATTEMPTS = 5
CANCEL_SECONDS = 2.0  # between attempts


def connect(url: str) -> RayRuntime:
    """Connect to a cluster; the process must run on one of its nodes."""
    address = url.partition("://")[2] or "auto"
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    return RayRuntime()


def _stream(task: bytes) -> Iterator[bytes]:
    """On a node of the cluster."""
    yield from run_remote(task)


_execute = ray.remote(max_retries=0)(_stream)


class RayRuntime:
    """A connection to a Ray cluster."""

    async def run(self, task: RemoteTask) -> AsyncIterator[bytes]:
        """Execute a task on a node, and yield its messages."""
        messages = _execute.options(**_resources(task)).remote(encode_task(task))
        ended = False
        try:
            async for message in messages:
                yield await message
            ended = True
        except TaskCancelledError:
            raise
        except RayError as problem:
            ended = True
            cause = str(problem).strip().splitlines()[0] if str(problem).strip() else ""
            raise WorkerLost(f"Ray lost the task: {type(problem).__name__}: {cause}") from None
        finally:
            if not ended:
                await asyncio.shield(_stop(messages))

    async def close(self) -> None:
        """Disconnect."""
        ray.shutdown()


async def _stop(messages: Any) -> None:
    """Cancel a task and wait for its end. Ray loses a cancellation that arrives while the task hands over a message, so
    it is repeated; after that the process of the task is killed."""
    done = asyncio.ensure_future(_completed(messages))
    for attempt in range(1, CANCEL_ATTEMPTS + 1):
        ray.cancel(messages, force=attempt == CANCEL_ATTEMPTS)
        finished, _ = await asyncio.wait((done,), timeout=CANCEL_SECONDS)
        if finished:
            return
    done.cancel()


async def _completed(messages: Any) -> None:
    try:
        await messages.completed()
    except RayError:
        pass  # it was cancelled, or its process was killed


def _resources(task: RemoteTask) -> dict[str, Any]:
    """The options of the Ray task."""
    labels = dict(task.labels)
    options: dict[str, Any] = {"num_cpus": task.cost, "name": f"{task.step}/{task.task}"}
    gpus = labels.pop("gpu", "")
    if gpus:
        options["num_gpus"] = 1.0 if gpus.lower() == "true" else float(gpus)
    if labels:
        options["label_selector"] = labels
    return options
