"""Creates a worker pool with the installed tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
    from collections.abc import Callable, Mapping

    from noetl.core.model.tool import ToolFunction, ToolSpec


class ToolSource(NamedTuple):
    """Where tools come from; tests replace them."""

    load: Callable[[str], ToolFunction] = load_tool
    specs: Mapping[str, ToolSpec] | None = None  # default: those of the installation


def create_pool(
    link: WorkLink,
    services: HostServices,
    *,
    worker: str,
    clock: Clock,
    slots: int,
    pool: str = "default",
    heartbeat: float = HEARTBEAT,
    tools: ToolSource | None = None,
) -> Pool:
    """A worker pool that leases runs over `link`; not started."""
    services = replace(services, observer=TaskLogSender(link, worker, clock, services.observer))
    tools = tools or ToolSource()
    specs = LazySpecs() if tools.specs is None else tools.specs
    runner = Runner(link, services, specs=specs, load=tools.load, clock=clock)
    return Pool(link, runner, worker=worker, clock=clock, slots=slots, pool=pool, heartbeat=heartbeat)
