"""Calls that are sent to a Python process in one message: each has its own outcome, timeout, log lines and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter

import pytest

from noetl.tools.python import process, process_pool
from noetl.tools.python.process import Process, ProcessEnded
from noetl.tools.python.process_pool import PythonPool

pytestmark = pytest.mark.skipif(not process.BATCHES, reason="calls are sent one by one on this system")

COUNT = 12
# Every call appends its number to a file first, so that each start is counted.
RECORD = "open(file, 'a').write(f'{n}\\n')\n"


@pytest.fixture(autouse=True)
def batches(monkeypatch):
    """Batches whose size does not depend on the speed of the machine; the sizes of the sent ones."""
    sizes = []
    send = Process.send
    monkeypatch.setattr(process_pool, "BATCH_S", 1e9)
    monkeypatch.setattr(process, "LONG_CALL_S", 3600.0)
    monkeypatch.setattr(Process, "send", lambda self, calls: (sizes.append(len(calls)), send(self, calls))[1])
    return sizes


@pytest.fixture
def started(tmp_path):
    """How often each call has started."""
    file = tmp_path / "started"

    def counts():
        return Counter(int(line) for line in file.read_text().split())

    counts.file = str(file)
    return counts


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def calls_of(pool, code, file, *, count=COUNT, timeout=None, on_line=None, **more):
    """Tasks of `count` calls of one code; one call before them shows that the code is short."""
    inputs = {"file": file, "n": -1, **more}
    await pool.call({"code": code, "inputs": inputs, "limits": {}}, code=code)

    async def call(n):
        request = {"code": code, "inputs": {**inputs, "n": n}, "limits": {}}
        lines = (lambda line, stream: on_line(n, line)) if on_line else None
        return await pool.call(request, code=code, timeout=timeout, on_line=lines)

    return [asyncio.ensure_future(call(n)) for n in range(count)]


async def outcomes(tasks):
    """The result of each task, or its exception."""
    await asyncio.wait(tasks)
    found = []
    for task in tasks:
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        found.append(failure or (task.result().body.decode() if task.result().ok else "error"))
    return found


def once(count=COUNT):
    return {-1: 1, **dict.fromkeys(range(count), 1)}


def test_waiting_calls_are_sent_together_and_each_has_its_own_outcome(batches, started):
    code = RECORD + "if n == 5: raise ValueError(n)\nresult = n"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        found = await outcomes(await calls_of(pool, code, started.file))
        await pool.close()
        return found

    assert run(check()) == [str(n) if n != 5 else "error" for n in range(COUNT)]
    assert started() == once()
    assert batches == [1, 1, COUNT - 1]


def test_only_the_running_call_times_out(batches, started):
    code = RECORD + "while n == 5: pass\nresult = n"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        found = await outcomes(await calls_of(pool, code, started.file, timeout=0.5))
        await pool.close()
        return found

    found = run(check())
    assert isinstance(found.pop(5), TimeoutError)
    assert found == [str(n) for n in range(COUNT) if n != 5]
    assert started() == once()
    assert max(batches) > 2


def test_each_call_has_the_time_of_its_own_timeout(batches, started):
    code = RECORD + "import time\ntime.sleep(0.1)\nresult = n"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        found = await outcomes(await calls_of(pool, code, started.file, timeout=0.9))  # twelve take longer together
        await pool.close()
        return found

    assert run(check()) == [str(n) for n in range(COUNT)]
    assert started() == once()
    assert max(batches) > 2


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.write(SOCKET, b'x' * 40); os.kill(os.getpid(), 19)", -9),  # breaks the protocol, then stops
    ],
)
def test_only_the_running_call_fails_with_its_process(batches, started, end, status):
    code = RECORD + f"import os\nif n == 5: {end}\nresult = n"
    code = code.replace("SOCKET", "next(fd for fd in range(3, 65536) if is_socket(fd))")
    code = "import os, stat\ndef is_socket(fd):\n    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)\n" + (
        "    except OSError: return False\n" + code
    )

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        found = await outcomes(await calls_of(pool, code, started.file))
        await pool.close()
        return found

    found = run(check())
    failure = found.pop(5)
    assert isinstance(failure, ProcessEnded) and failure.status == status
    assert found == [str(n) for n in range(COUNT) if n != 5]
    assert started() == once()
    assert max(batches) > 2


def test_a_cancelled_call_that_has_not_started_never_runs(batches, started, tmp_path):
    code = RECORD + "import os, time\nwhile n == 0 and not os.path.exists(go): time.sleep(0.01)\nresult = n"
    code = code.replace("n == 0", "n == 3")

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        tasks = await calls_of(pool, code, started.file, go=str(tmp_path / "go"))
        while 3 not in started():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        tasks[7].cancel()
        await asyncio.wait([tasks[7]])
        (tmp_path / "go").touch()
        found = await outcomes(tasks)
        await pool.close()
        return found

    found = run(check())
    assert isinstance(found.pop(7), asyncio.CancelledError)
    assert found == [str(n) for n in range(COUNT) if n != 7]
    assert started() == {n: 1 for n in once() if n != 7}


def test_a_cancelled_call_that_runs_takes_no_other_with_it(batches, started):
    code = RECORD + "while n == 3: pass\nresult = n"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        tasks = await calls_of(pool, code, started.file)
        while 3 not in started():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        tasks[3].cancel()
        found = await outcomes(tasks)
        await pool.close()
        return found

    found = run(check())
    assert isinstance(found.pop(3), asyncio.CancelledError)
    assert found == [str(n) for n in range(COUNT) if n != 3]
    assert started() == once()


@pytest.mark.parametrize("why", ["it takes long", "another process is free"])
def test_calls_behind_a_long_one_start_in_another_process(monkeypatch, batches, started, tmp_path, why):
    if why == "it takes long":
        monkeypatch.setattr(process, "LONG_CALL_S", 0.02)
    code = RECORD + "import os, time\nwhile n == 3 and not os.path.exists(go): time.sleep(0.01)\nresult = n"

    async def check():
        pool = PythonPool(cores=2 if why == "it takes long" else 1, max_processes=2, grow_interval_s=3600)
        tasks = await calls_of(pool, code, started.file, go=str(tmp_path / "go"))
        if why == "another process is free":
            while 3 not in started():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            pool.cores = 2
            await pool.call({"code": "pass", "inputs": {}, "limits": {}})
        await asyncio.wait([task for n, task in enumerate(tasks) if n != 3])
        assert not tasks[3].done()
        (tmp_path / "go").touch()
        found = await outcomes(tasks)
        await pool.close()
        return found

    assert run(check()) == [str(n) for n in range(COUNT)]
    assert started() == once()


@pytest.mark.parametrize("line", ["print(n)", "sys.stdout.write(str(n))", "os.system(f'echo {n}')"])
def test_lines_belong_to_the_call_that_printed_them(batches, started, line):
    code = RECORD + f"import os, sys\nif n in (3, 4, 9): {line}\nresult = n"
    lines = []

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        tasks = await calls_of(pool, code, started.file, on_line=lambda n, line: lines.append((n, line)))
        found = await outcomes(tasks)
        await pool.close()
        return found

    assert run(check()) == [str(n) for n in range(COUNT)]
    assert lines == [(3, "3"), (4, "4"), (9, "9")]
    assert started() == once()
    assert max(batches) > 2


def test_calls_after_a_change_of_the_interpreter_run_in_another_process(batches, started):
    code = RECORD + "import builtins\nif n == 3: builtins.changed = 1\nresult = hasattr(builtins, 'changed')"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        found = await outcomes(await calls_of(pool, code, started.file))
        await pool.close()
        return found

    assert run(check()) == ["true" if n == 3 else "false" for n in range(COUNT)]
    assert started() == once()
    assert max(batches) > 2


def test_a_memory_limit_is_that_of_one_call(batches, started):
    code = RECORD + "x = bytearray(300 << 20) if n == 3 else b''\nresult = len(x)"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        await pool.call({"code": code, "inputs": {"file": started.file, "n": -1}, "limits": {}}, code=code)
        requests = [
            {"code": code, "inputs": {"file": started.file, "n": n}, "limits": {"memory": 200 << 20}}
            for n in range(COUNT)
        ]
        tasks = [asyncio.ensure_future(pool.call(request, code=code)) for request in requests]
        found = await outcomes(tasks)
        await pool.close()
        return found

    assert run(check()) == ["error" if n == 3 else "0" for n in range(COUNT)]
    assert started() == once()
    assert max(batches) > 2


def test_a_message_has_calls_of_one_playbook(monkeypatch):
    sent = []
    send = Process.send
    monkeypatch.setattr(
        Process, "send", lambda self, calls: (sent.append({call.group for call in calls}), send(self, calls))[1]
    )

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        request = {"code": "result = 1", "inputs": {}, "limits": {}}
        for owner in "ab":
            await pool.call(request, isolation="shared", owner=owner, code="x")
        owners = "aabbaaab"
        await asyncio.gather(*(pool.call(request, isolation="shared", owner=each, code="x") for each in owners))
        await pool.close()

    run(check())
    assert all(len(groups) == 1 for groups in sent)


@pytest.mark.parametrize("seed", range(3))
def test_random_ends_start_each_call_at_most_once(monkeypatch, started, seed):
    """Calls that end in any way, among others that are cancelled at any time."""
    monkeypatch.setattr(process, "LONG_CALL_S", 0.005)
    choose = random.Random(seed)
    ends = ["", "", "", "", "", "", "1/0", "os._exit(3)", "while True: pass", "print(n)", "time.sleep(0.02)", "patch()"]
    plan = [choose.choice(ends) for _ in range(60)]
    code = RECORD + (
        "import os, time, builtins\ndef patch(): builtins.changed = 1\n"
        "assert not hasattr(builtins, 'changed')\nexec(end)\nresult = n"
    )
    lines = []

    async def check():
        pool = PythonPool(cores=2, max_processes=3)
        for n in (-1, -2):
            await pool.call({"code": code, "inputs": {"file": started.file, "n": n, "end": ""}, "limits": {}}, code="x")

        async def call(n):
            request = {"code": code, "inputs": {"file": started.file, "n": n, "end": plan[n]}, "limits": {}}
            on_line = lambda line, stream: lines.append((n, line))  # noqa: E731
            return await pool.call(request, code="x", timeout=0.5, on_line=on_line)

        tasks = [asyncio.ensure_future(call(n)) for n in range(len(plan))]
        for n in choose.sample(range(len(plan)), 6):
            await asyncio.sleep(choose.random() / 20)
            tasks[n].cancel()
        found = await outcomes(tasks)
        await pool.close()
        return found

    found = run(check())
    counts = started()
    assert max(counts.values()) == 1
    for n, outcome in enumerate(found):
        if isinstance(outcome, asyncio.CancelledError | TimeoutError):
            continue  # also a call whose process took longer to start, on a busy machine
        assert counts[n] == 1
        assert plan[n] != "while True: pass"
        if plan[n] == "os._exit(3)":
            assert isinstance(outcome, ProcessEnded)
        else:
            assert outcome == ("error" if plan[n] == "1/0" else str(n)), plan[n]
    assert all(str(n) == line and plan[n] == "print(n)" for n, line in lines)
    finished = [n for n, end in enumerate(plan) if end == "print(n)" and isinstance(found[n], str)]
    assert {n for n, _ in lines} >= set(finished)


def test_a_process_killed_from_outside_fails_one_call(batches, started):
    code = RECORD + "import os, time\nwhile n == 3: time.sleep(1)\nresult = os.getpid()"

    async def check():
        pool = PythonPool(cores=1, max_processes=1)
        tasks = await calls_of(pool, code, started.file)
        while 3 not in started():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(int((await tasks[0]).body), signal.SIGKILL)
        found = await outcomes(tasks)
        await pool.close()
        return found

    found = run(check())
    assert [n for n, each in enumerate(found) if isinstance(each, ProcessEnded)] == [3]
    assert started() == once()


FIND_DESCRIPTORS = """
import os, select, socket, stat
def each(use):
    for fd in range(3, 40):
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                use(fd)
        except OSError:
            pass
def read(fd, size):
    if select.select([fd], [], [], 0)[0]:
        os.read(fd, size)
"""


@pytest.mark.parametrize("attacker", [0, 2, COUNT - 1])
@pytest.mark.parametrize(
    "attack",
    [
        "each(lambda fd: read(fd, 1))",  # one start
        "each(lambda fd: read(fd, 1000))",  # all starts
        "each(lambda fd: os.set_blocking(fd, True)); os._exit(3)",
        "each(lambda fd: os.set_blocking(fd, True))",
        "each(lambda fd: os.write(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY), b'.' * 1000)); os._exit(3)",
        "each(lambda fd: os.write(fd, b'.' * 1000))",
        "each(lambda fd: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RD))",
        "each(lambda fd: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR))",
        "os.closerange(3, 40)",
    ],
)
def test_code_that_uses_the_sockets_of_its_process_stops_no_other_call(batches, started, attack, attacker):
    """Each call has an outcome, without a timeout of its own, and none starts twice."""
    code = RECORD + FIND_DESCRIPTORS + f"if n == {attacker}:\n    {attack}\nresult = n\n"

    async def scenario():
        pool = PythonPool(cores=1, max_processes=1)
        try:
            found = await outcomes(await calls_of(pool, code, started.file))
            request = {"code": "result = 7", "inputs": {}, "limits": {}}
            with contextlib.suppress(ProcessEnded):  # the process has closed its socket
                await pool.call(request, code="result = 7")
            after = await pool.call(request, code="result = 7")
        finally:
            await pool.close()
        return found, after.body

    found, after = run(scenario())
    assert after == b"7"
    assert all(each == str(n) or isinstance(each, ProcessEnded) for n, each in enumerate(found))
    assert set(started().values()) == {1}
