"""Tasks that a runtime executes, without a cluster: the remote part runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from noetl.embedded import open_local
from noetl.errors import RequestRefused, WorkerLost
from noetl.runtime.clock import RealClock
from noetl.testing import RuntimeConformance, ToolHost, tool_call
from noetl.tool import RemoteTask, encode_task, run_remote
from noetl.worker.factory import ToolSource
from noetl.worker.runtimes import RemoteTools, open_runtime
from noetl.worker.tool_call import call_tool


class LocalRuntime:
    """Executes tasks in threads of this process; `lost` loses all of them."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.tasks: list[RemoteTask] = []

    async def run(self, task: RemoteTask) -> AsyncIterator[bytes]:
        self.tasks.append(task)
        cancelled = False
        messages = run_remote(encode_task(task), lambda: cancelled)
        losing = asyncio.ensure_future(self.lost.wait())
        try:
            while True:
                following = asyncio.ensure_future(asyncio.to_thread(next, messages, None))
                await asyncio.wait((following, losing), return_when=asyncio.FIRST_COMPLETED)
                if losing.done():
                    raise WorkerLost("the node was lost")
                message = following.result()
                if message is None:
                    return
                yield message
        finally:
            cancelled = True
            losing.cancel()

    async def close(self) -> None:
        """Nothing to close."""


class TestLocal(RuntimeConformance):
    def connect(self) -> LocalRuntime:
        self.local = LocalRuntime()
        self._loop = asyncio.get_running_loop()
        return self.local

    def lose_node(self) -> None:
        self._loop.call_soon_threadsafe(self.local.lost.set)


def call(runtime: LocalRuntime, kind: str, given: dict[str, Any], **fields: Any) -> Any:
    return call_tool(RemoteTools(runtime).load(kind), tool_call(kind, given, **fields), RealClock())


def test_labels_and_cost_are_sent():
    async def scenario() -> None:
        runtime = LocalRuntime()
        outcome = await call(runtime, "python", {"code": "result = 1"}, labels=("gpu=true", "zone=a"), cost=3)
        assert outcome.data == 1
        assert runtime.tasks[0].labels == {"gpu": "true", "zone": "a"}
        assert runtime.tasks[0].cost == 3

    asyncio.run(scenario())


def test_a_lost_task_with_an_effect_at_most_once_is_ambiguous():
    async def scenario() -> None:
        runtime = LocalRuntime()
        runtime.lost.set()
        outcome = await call(runtime, "python", {"code": "result = 1"}, spec={"effect": "at_most_once"})
        assert outcome.error.kind == "ambiguous"

    asyncio.run(scenario())


def test_other_kinds_run_in_the_worker():
    async def scenario() -> None:
        runtime = LocalRuntime()
        assert (await call(runtime, "noop", {})).status == "ok"
        assert runtime.tasks == []

    asyncio.run(scenario())


def test_scripts_are_read_by_the_worker(tmp_path: Path):
    (tmp_path / "code.py").write_text("result = 'from a file'")

    async def scenario() -> None:
        runtime = LocalRuntime()
        host = ToolHost(folder=tmp_path)
        assert (await call(runtime, "python", {"script": {"uri": "code.py"}}, host=host)).data == "from a file"
        missing = await call(runtime, "python", {"script": {"uri": "none.py"}}, host=host)
        assert missing.error.kind == "not_found"

    asyncio.run(scenario())


PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: remote}
workload: {a: 5}
workflow:
  - step: one
    tool: {kind: python, code: "result = context['workload']['a'] + n", input: {n: 1}}
    set: {ctx.b: "{{ output.data }}"}
    next: {arcs: [{step: two}]}
  - step: two
    loop: {in: [1, 2], iterator: item, spec: {mode: parallel}}
    tool: {kind: shell, command: "echo {{ ctx.b * iter.item }}"}
"""


def test_a_playbook_runs_on_a_runtime():
    async def scenario() -> None:
        runtime = LocalRuntime()
        async with await open_local(store="memory:", tools=ToolSource(load=RemoteTools(runtime).load)) as engine:
            result = await engine.run(PLAYBOOK, timeout=60)
        assert result.status == "success", result
        assert [each["stdout"] for each in result.output["data"]] == ["6\n", "12\n"]
        assert len(runtime.tasks) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["ray://127.0.0.1:6379", "cluster"])
def test_a_runtime_without_plug_in_is_refused(url: str):
    with pytest.raises(RequestRefused, match="there is no runtime for"):
        open_runtime(url)
