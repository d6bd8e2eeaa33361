"""A decision that does not end: the kernel ends the process, and the next server fails the execution."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from noetl.core.model.outcome import error_info
from noetl.embedded import open_local
from noetl.server.lifecycle.decision_watch import MAX_DEATHS, MappedDecisionWatch
from noetl.server.orchestrator.submissions import Submission

DECIDING = """
import sys, time
from pathlib import Path
from noetl.server.lifecycle.decision_watch import MappedDecisionWatch
watch = MappedDecisionWatch(Path(sys.argv[1]), deadline=0.2)
with watch.deciding("123", 7):
    print("deciding", flush=True)
    if sys.argv[2] == "stuck":
        ("a" * 3_000_000).rfind("ab" + "a" * 1_500_000)  # inside C, with the interpreter's lock
    else:
        time.sleep(600)
"""


def run(folder, how: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", DECIDING, str(folder), how], stdout=subprocess.PIPE)


def poisoned(folder):
    watch = MappedDecisionWatch(folder)
    try:
        return watch.poisoned()
    finally:
        watch.close()


def test_a_decision_that_exceeds_its_deadline_ends_the_process_and_is_poison(tmp_path):
    with run(tmp_path, "stuck") as process:
        assert process.wait(60) == -signal.SIGVTALRM
    (found,) = poisoned(tmp_path)
    assert found.execution_id == "123"
    assert found.error.kind == "limit"
    assert os.listdir(tmp_path) == []
    assert poisoned(tmp_path) == []


def test_a_killed_server_is_poison_only_after_several_deaths_at_one_event(tmp_path):
    for death in range(1, MAX_DEATHS + 1):
        with run(tmp_path, "waiting") as process:
            assert process.stdout.readline() == b"deciding\n"
            assert poisoned(tmp_path) == []  # it is alive
            process.kill()
        assert len(poisoned(tmp_path)) == (death == MAX_DEATHS)


def test_a_closed_watch_leaves_nothing(tmp_path):
    watch = MappedDecisionWatch(tmp_path)
    with watch.deciding("1", 1):
        pass
    watch.close()
    assert os.listdir(tmp_path) == []


PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits}
workflow:
  - step: start
    tool: {kind: python, code: "result = 1"}
"""


def test_an_execution_that_is_given_up_fails_with_the_error():
    async def scenario():
        async with await open_local(store="memory:", work=False) as engine:
            orchestrator = engine.orchestrator
            execution_id = await orchestrator.submit(Submission(text=PLAYBOOK))
            await orchestrator.give_up(execution_id, error_info("limit", "no decision"))
            summary = await orchestrator.wait(execution_id, 10)
            assert summary.status == "failed"
            assert "no decision" in summary.error
            await orchestrator.give_up(execution_id, error_info("limit", "again"))  # it has ended
            assert "no decision" in (await orchestrator.summary(execution_id)).error

    asyncio.run(scenario())
