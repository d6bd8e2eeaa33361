"""Children that only wait: the caller waits too, and holds no slot."""

from __future__ import annotations

from engine_harness import Harness
from test_engine_control import CALLER, ask_for_child

from noetl.core.engine.capacity import slots_held
from noetl.core.engine.commands import RecordChildEnd, RecordChildStart, RecordChildWait
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.engine.views.open_waits import wait_counts
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import ChildWaiting
from noetl.core.model.outcome import ok


def _called() -> tuple[Harness, str]:
    harness = Harness(CALLER).start()
    key = ask_for_child(harness, harness.claim())
    harness.send(RecordChildStart(key, "900"))
    return harness, key


def test_a_caller_waits_while_its_child_only_waits():
    harness, key = _called()
    assert harness.state.status == "running"
    harness.send(RecordChildWait(key, "900", True, 10))
    assert harness.state.status == "waiting"
    assert wait_counts(harness.state).only and wait_counts(harness.state).inbox == 0
    assert slots_held(harness.state) == {}
    assert "which waits itself" in waiting_reasons(harness.state, harness.state.at)[0].text
    restored = decode_state(harness.state.playbook, encode_state(harness.state))
    assert restored.status == "waiting" and restored.waiting_children == 1
    harness.send(RecordChildWait(key, "900", False, 14))
    assert harness.state.status == "running" and slots_held(harness.state)
    harness.send(RecordChildEnd(key, "900", ok({"r": 1})))
    harness.complete(harness.claim())
    assert harness.scheduled == ["start", "after"]
    assert harness.state.waiting_children == 0


def test_reports_out_of_order_and_repeated_ones_change_nothing():
    harness, key = _called()
    harness.send(RecordChildWait(key, "900", True, 10))
    harness.send(RecordChildWait(key, "900", False, 20))
    harness.send(RecordChildWait(key, "900", True, 10))  # delivered late
    harness.send(RecordChildWait(key, "900", False, 25))
    assert [each.waiting for each in harness.of(ChildWaiting)] == [True, False]
    assert harness.state.status == "running"
    harness.send(RecordChildWait(key, "900", True, 30))
    harness.send(RecordChildEnd(key, "900", ok(1)))
    assert harness.state.waiting_children == 0
    assert not harness.send(RecordChildWait(key, "900", False, 40)).replies[0].accepted
