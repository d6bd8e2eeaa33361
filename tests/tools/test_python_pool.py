"""The process pool: growth, idle processes, replacement, and no process left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from noetl.core.model.outcome import ok
from noetl.core.model.tool import Timeout, ToolCall
from noetl.runtime.clock import RealClock
from noetl.tools.python import spec
from noetl.tools.python.process import ProcessEnded
from noetl.tools.python.process_pool import PythonPool
from noetl.worker.tool_call import call_tool


def request(code, **inputs):
    return {"code": code, "inputs": inputs, "limits": {}}


PID = request("import os\nresult = os.getpid()")


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_processes_are_started_on_demand():
    async def check():
        pool = PythonPool(cores=4)
        for _ in range(5):
            await pool.call(PID)
        assert len(pool._all) == 1
        await asyncio.gather(*(pool.call(PID) for _ in range(20)))
        assert 1 < len(pool._all) <= 4
        await pool.close()
        assert not pool._all

    run(check())


@pytest.mark.serial
def test_the_pool_grows_beyond_the_cores_when_calls_only_sleep():
    async def check():
        pool = PythonPool(cores=1, max_processes=6, grow_interval_s=0.01)
        started = time.monotonic()
        await asyncio.gather(*(pool.call(request("import time\ntime.sleep(0.5)")) for _ in range(6)))
        assert time.monotonic() - started < 2.5
        assert len(pool._all) > 1
        await pool.close()

    run(check())


def test_many_short_calls_do_not_grow_the_pool():
    async def check():
        pool = PythonPool(cores=1, max_processes=6, grow_interval_s=3600)
        calls = asyncio.gather(*(pool.call(request("result = 1")) for _ in range(200)))
        checks = 0
        while not calls.done():
            if (
                pool._waiting and pool._finished > pool._finished_before
            ):  # the grow timer fires after a call has finished
                pool._grow()
                checks += 1
            await asyncio.sleep(0)
        await calls
        assert checks > 10 and len(pool._all) == 1
        await pool.close()

    run(check())


def test_calls_that_only_compute_do_not_grow_the_pool():
    """However long they take on a busy machine."""
    code = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nresult = 1"

    async def check():
        pool = PythonPool(cores=1, max_processes=6, grow_interval_s=0.01)
        await pool.call(request(code))
        await asyncio.gather(*(pool.call(request(code)) for _ in range(5)))
        assert len(pool._all) == 1
        await pool.close()

    run(check())


def test_idle_processes_are_stopped():
    async def check():
        pool = PythonPool(idle_s=0.05)
        pid = int((await pool.call(PID)).body)
        while pool._all:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not psutil.pid_exists(pid)
        assert (await pool.call(PID)).ok
        await pool.close()

    run(check())


def test_a_process_is_replaced_after_max_calls():
    async def check():
        pool = PythonPool(cores=1, max_calls=3)
        pids = [(await pool.call(PID)).body for _ in range(7)]
        assert len(set(pids)) == 3
        await pool.close()

    run(check())


def test_an_idle_process_that_dies_is_replaced():
    async def check():
        pool = PythonPool(cores=1)
        os.kill(int((await pool.call(PID)).body), signal.SIGKILL)
        while any(process.alive for process in pool._all):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await pool.call(PID)).ok
        await pool.close()

    run(check())


def test_a_waiting_call_can_be_cancelled_without_losing_a_process():
    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        first = asyncio.ensure_future(pool.call(request("import time\ntime.sleep(0.3)\nresult = 1")))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(pool.call(PID))
        await asyncio.sleep(0.05)
        second.cancel()
        assert (await first).body == b"1"
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await pool.call(PID)).ok
        await pool.close()

    run(check())


def test_waiting_calls_run_after_a_timeout():
    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        stuck = asyncio.ensure_future(pool.call(request("while True: pass"), timeout=0.3))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(pool.call(request("result = n", n=n))) for n in range(3)]
        with pytest.raises(TimeoutError):
            await stuck
        assert [(await other).body for other in others] == [b"0", b"1", b"2"]
        await pool.close()

    run(check())


def test_a_process_that_exits_reports_its_status():
    async def check():
        pool = PythonPool()
        with pytest.raises(ProcessEnded) as ended:
            await pool.call(request("import os\nos._exit(5)"))
        assert ended.value.status == 5
        await pool.close()

    run(check())


def test_printed_lines_are_delivered_before_the_reply():
    async def check():
        pool = PythonPool(cores=2)
        code = "import sys\nfor n in range(3): print('out', n)\nprint('err', file=sys.stderr)\nprint('open', end='')"

        async def one():
            lines = []
            await pool.call(request(code), on_line=lambda line, stream: lines.append((stream, line)))
            return lines

        for lines in await asyncio.gather(*(one() for _ in range(200))):
            outs = [line for stream, line in lines if stream == "stdout"]
            assert outs == ["out 0", "out 1", "out 2", "open"] and ("stderr", "err") in lines and len(lines) == 5
        await pool.close()

    run(check())


def test_output_before_an_exit_is_delivered():
    async def check():
        pool = PythonPool()
        lines = []
        with pytest.raises(ProcessEnded):
            await pool.call(
                request("import os\nprint('about to go')\nprint('now', end='', flush=True)\nos._exit(5)"),
                on_line=lambda line, stream: lines.append(line),
            )
        assert lines == ["about to go", "now"]
        await pool.close()

    run(check())


def test_a_collected_pool_leaves_no_process():
    pids = []

    async def forget():
        pids.append(int((await PythonPool().call(PID)).body))

    run(forget())
    gc.collect()
    assert not psutil.pid_exists(pids[0])


KEEPER = """
import asyncio, os, sys
from noetl.tools.python.process_pool import PythonPool

async def keep():
    pool = PythonPool()
    code = "import os\\nprint(os.getpid(), flush=True)\\nwhile True: pass"
    await pool.call({"code": code, "inputs": {}}, on_line=lambda line, _: print(line, flush=True))

asyncio.run(keep())
"""


def test_processes_die_with_a_parent_that_is_killed():
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER], stdout=subprocess.PIPE, text=True)
    try:
        child = psutil.Process(int(keeper.stdout.readline()))
        keeper.kill()
        _, alive = psutil.wait_procs([child], timeout=10)
        assert not alive
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


@pytest.mark.serial
def test_calls_run_concurrently():
    async def check():
        pool = PythonPool(cores=2)
        both = request("import time\ntime.sleep(0.4)")
        await asyncio.gather(pool.call(PID), pool.call(PID))
        started = time.monotonic()
        await asyncio.gather(pool.call(both), pool.call(both))
        assert time.monotonic() - started < 0.75
        await pool.close()

    run(check())


def test_the_timeout_of_a_call_begins_when_it_starts():
    """Also in the worker, whose own limit for tools would count the time in which a call waits for a process."""

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        calls = [pool.call(request("import time\ntime.sleep(0.6)\nresult = 1"), timeout=1.5) for _ in range(4)]
        assert [reply.body for reply in await asyncio.gather(*calls)] == [b"1"] * 4
        await pool.close()

        async def waits(call):
            await asyncio.sleep(0.3)
            return ok(1)

        waits.own_timeout = spec.run.own_timeout
        call = ToolCall("python", {}, {}, None, "e", "s", "t", "r", timeout=Timeout(total=0.01))
        assert (await call_tool(waits, call, RealClock())).data == 1

    run(check())
