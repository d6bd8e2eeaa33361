"""Freed slots: most stay with the executions that freed them, and the queue never starves."""

import asyncio

import pytest

from noetl.core.model.work import Claim
from noetl.errors import StoreUnavailable
from noetl.server.dispatch.worker_service import _queue_share
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from tests.server.conftest import Hand, make_orchestrator

ONE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one}
workflow:
  - step: start
    tool: {kind: noop}
"""


@pytest.mark.parametrize(("freed", "for_the_queue"), [(1, 1), (2, 1), (8, 1), (9, 2), (256, 32)])
def test_the_queue_gets_a_share_of_freed_slots_and_at_least_one(freed, for_the_queue):
    shared = _queue_share(Claim("w", freed, "gpu", ("big",)))
    assert shared == Claim("w", for_the_queue, "gpu", ("big",))


class SlowThenAway(MemoryEventStore):
    """A disk that, from the second append on, keeps its writers waiting and then is away, until it is repaired."""

    def __init__(self):
        super().__init__()
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.repaired = False
        self.appends = 0

    async def append(self, append):
        self.appends += 1
        if self.appends > 1 and not self.repaired:
            self.reached.set()
            await self.go.wait()
            raise StoreUnavailable("the disk is away")
        await super().append(append)


def test_a_run_taken_for_a_disconnected_worker_is_enqueued_again_when_the_append_fails():
    asyncio.run(_leave_while_the_store_is_away())


async def _leave_while_the_store_is_away():
    store = SlowThenAway()
    orchestrator = make_orchestrator(store)
    execution_id = await orchestrator.submit(Submission(text=ONE, file="one.yaml"))
    claiming = asyncio.ensure_future(orchestrator.work.claim(Claim("gone", 1), wait=5))
    await store.reached.wait()
    claiming.cancel()  # its connection broke while the claim was being written ...
    await asyncio.gather(claiming, return_exceptions=True)
    store.go.set()  # ... and then the write failed
    await asyncio.sleep(0)
    store.repaired = True
    hand = Hand(orchestrator.work)
    await hand.step(wait=5)
    assert (await orchestrator.wait(execution_id, timeout=5)).status == "success"
    await orchestrator.close()
