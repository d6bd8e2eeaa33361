"""A pool of runs from its parts: tools found, policy set, ready to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetl.runtime.clock import Clock
from noetl.runtime.network_policy import AddressPolicy
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.work_link import WorkLink
from noetl.tools.registry import load as load_tool
from noetl.tools.registry import specs
from noetl.worker.host import Watcher
from noetl.worker.pool import HEARTBEAT, Pool
from noetl.worker.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from noetl.core.model.tool import ToolFunction


def create_pool(
    link: WorkLink,
    results: ResultStore,
    *,
    worker: str,
    clock: Clock,
    slots: int,
    pool: str = "default",
    labels: Iterable[str] = (),
    policy: AddressPolicy | None = None,
    watcher: Watcher | None = None,
    heartbeat: float = HEARTBEAT,
    load: Callable[[str], ToolFunction] | None = None,
) -> Pool:
    """A worker's pool over a line to the control plane."""
    runner = Runner(link, results, specs=specs(), load=load or load_tool, clock=clock, policy=policy, watcher=watcher)
    return Pool(
        link, runner, worker=worker, clock=clock, slots=slots, pool=pool, labels=tuple(labels), heartbeat=heartbeat
    )
