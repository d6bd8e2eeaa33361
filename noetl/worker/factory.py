"""Creates a worker pool with the installed tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from noetl.runtime.clock import Clock
from noetl.storage.ports.work_link import WorkLink
from noetl.tools.registry import LazySpecs
from noetl.tools.registry import load as load_tool
from noetl.worker.host import HostServices
from noetl.worker.pool import HEARTBEAT, Pool
from noetl.worker.runner import Runner
from noetl.worker.task_logs import TaskLogSender

if TYPE_CHECKING:
    from collections.abc import Callable

    from noetl.core.model.tool import ToolFunction


def create_pool(
    link: WorkLink,
    services: HostServices,
    *,
    worker: str,
    clock: Clock,
    slots: int,
    pool: str = "default",
    heartbeat: float = HEARTBEAT,
    load: Callable[[str], ToolFunction] | None = None,
) -> Pool:
    """A worker pool that leases runs over `link`; not started."""
    services = replace(services, observer=TaskLogSender(link, worker, clock, services.observer))
    runner = Runner(link, services, specs=LazySpecs(), load=load or load_tool, clock=clock)
    return Pool(link, runner, worker=worker, clock=clock, slots=slots, pool=pool, heartbeat=heartbeat)
