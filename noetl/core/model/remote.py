"""A call of a tool that a cluster of another system executes, and the interface of such a cluster (a runtime)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from msgspec import Struct

from noetl.core.model.tool import Timeout


class RemoteTask(Struct, frozen=True, omit_defaults=True):
    """One call of a tool, as it is sent to a cluster.

    `labels` are those of `spec.placement`, `cost` is `spec.cost`. `secrets` are the secret texts of the input, which
    are masked in everything that the tool prints or returns as an error before it is cut."""

    kind: str
    input: dict[str, Any]
    spec: dict[str, Any]
    execution_id: str
    step: str
    task: str
    task_run_id: str
    attempt: int = 1
    timeout: Timeout = Timeout()
    scopes: dict[str, Any] = {}
    where: str = ""
    code_line: int | None = None
    playbook: str = ""
    labels: dict[str, str] = {}
    cost: int = 1
    secrets: list[str] = []


class Runtime(Protocol):
    """A connection to a cluster."""

    def run(self, task: RemoteTask) -> AsyncIterator[bytes]:
        """Execute `run_remote(encoded task)` on the cluster, and yield what it yields.

        Cancelling stops the task there. WorkerLost if its node was lost; the task is not executed again by itself."""

    async def close(self) -> None:
        """Disconnect."""
