"""`RuntimeConformance`: the tests that every worker runtime (entry point `noetl.runtimes`) passes.

    class TestRay(RuntimeConformance):
        def connect(self) -> Runtime: ...
        def lose_node(self) -> None: ...

Tests run `python` and `shell` tasks on the cluster of the subclass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.tool import Runtime
from noetl.runtime.clock import RealClock
from noetl.testing.tools import ToolHost, tool_call
from noetl.worker.runtimes import RemoteTools
from noetl.worker.tool_call import call_tool

PATIENCE = 100.0


class RuntimeConformance:
    """Connects to a cluster in each test."""

    LOST_LABELS: tuple[str, ...] = ()  # labels that only the node of `lose_node` has

    def connect(self) -> Runtime:
        """A connection to the cluster."""
        raise NotImplementedError

    def lose_node(self) -> None:
        """Kill the node that executes tasks with `LOST_LABELS`."""
        raise NotImplementedError

    def test_code_runs_on_the_cluster(self) -> None:
        """Input and output of a python task, and its printed lines."""
        host = ToolHost()
        outcome = self.run("python", {"code": "print('hello'); result = n + 1", "n": 41}, host)
        assert outcome.status == "ok"
        assert outcome.data == 42
        assert ("stdout", "hello") in host.lines

    def test_an_exception_is_an_outcome(self) -> None:
        """The error of the code, and the node serves the next task."""
        problem = error_of(self.run("python", {"code": "raise ValueError('bad input')"}))
        assert problem.kind == "python"
        assert "bad input" in problem.message

    def test_a_shell_command_runs_there(self) -> None:
        """The output of a shell task."""
        outcome = self.run("shell", {"command": "echo $((20 + 22))"})
        assert outcome.status == "ok"
        assert "42" in str(outcome.data)

    def test_a_large_result_arrives(self) -> None:
        """A result of several megabytes."""
        assert len(self.run("python", {"code": "result = ['x' * 1000] * 5000"}).data) == 5000

    def test_a_timeout_is_enforced(self) -> None:
        """`spec.timeout` on the node."""
        problem = error_of(
            self.run("python", {"code": "import time; time.sleep(60)"}, spec={"timeout": 1}, timeout=1.0)
        )
        assert problem.kind == "timeout"

    def test_lines_arrive_while_the_task_runs(self, tmp_path: Path) -> None:
        """A task that waits for a file, which is written when its first line arrives."""
        file = tmp_path / "go"
        code = (
            "import os, time\nprint('waiting', flush=True)\n"
            f"while not os.path.exists({str(file)!r}): time.sleep(0.02)\nresult = 1"
        )
        host = ToolHost()

        async def scenario() -> Outcome:
            running = asyncio.ensure_future(self._call("python", {"code": code}, host))
            await until(lambda: ("stdout", "waiting") in host.lines)
            file.touch()
            return await running

        assert asyncio.run(self._connected(scenario)).data == 1

    def test_secrets_of_the_input_are_masked(self) -> None:
        """Printed secrets, and secrets in errors."""
        host = ToolHost(credentials={"door": {"password": "sesame-4711"}})
        code = "print(password); raise ValueError('x' * 3990 + password)"
        problem = error_of(self.run("python", {"code": code, "password": "sesame-4711"}, host))
        assert "sesame" not in problem.message
        assert not [line for _, line in host.lines if "sesame" in line]

    def test_a_cancelled_task_stops(self, tmp_path: Path) -> None:
        """The process of the code ends."""
        file = tmp_path / "beats"
        code = f"import time\nwhile True:\n    open({str(file)!r}, 'a').write('x')\n    time.sleep(0.02)"

        async def scenario() -> None:
            running = asyncio.ensure_future(self._call("python", {"code": code}, ToolHost()))
            await until(file.exists)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert running.cancelled()
            size = -1

            def stopped() -> bool:
                nonlocal size
                before, size = size, file.stat().st_size
                return size == before

            await until(stopped, pause=0.5)

        asyncio.run(self._connected(scenario))

    def test_a_lost_node_is_an_error(self, tmp_path: Path) -> None:
        """`worker.lost`, or `ambiguous` for a task with `effect: at_most_once`; it is not executed again."""
        file = tmp_path / "starts"
        code = f"import time\nopen({str(file)!r}, 'a').write('x')\ntime.sleep(120)"

        async def scenario() -> Outcome:
            running = asyncio.ensure_future(self._call("python", {"code": code}, ToolHost(), labels=self.LOST_LABELS))
            await until(file.exists)
            await asyncio.to_thread(self.lose_node)
            return await running

        assert error_of(asyncio.run(self._connected(scenario))).kind == "worker.lost"
        assert file.read_text() == "x"

    # ── helpers ─────────────────────────────────────────────────────────────────────────

    def run(self, kind: str, given: dict[str, Any], host: ToolHost | None = None, **fields: Any) -> Outcome:
        """Run one task on the cluster."""
        outcome: Outcome = asyncio.run(self._connected(lambda: self._call(kind, given, host or ToolHost(), **fields)))
        return outcome

    async def _connected(self, scenario: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._runtime = self.connect()
        try:
            return await scenario()
        finally:
            await self._runtime.close()

    async def _call(self, kind: str, given: dict[str, Any], host: ToolHost, **fields: Any) -> Outcome:
        call = tool_call(kind, given, host=host, **fields)
        return await call_tool(RemoteTools(self._runtime).load(kind), call, RealClock())


def error_of(outcome: Outcome) -> ErrorInfo:
    """The error of a failed outcome."""
    assert outcome.error is not None, outcome
    return outcome.error


async def until(holds: Callable[[], bool], pause: float = 0.02) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(pause)
