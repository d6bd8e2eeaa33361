"""Eviction of executions from memory."""

from __future__ import annotations

from noetl.server.orchestrator.execution_actor import ExecutionActor
from noetl.server.orchestrator.execution_cache import ExecutionCache


def registry(capacity: int) -> ExecutionCache:
    return ExecutionCache(lambda execution_id: ExecutionActor(None, execution_id, None), capacity)


def test_idle_executions_are_evicted_least_recently_used_first():
    known = registry(2)
    for name in ("1", "2", "1", "3"):
        known.get(name)
    assert "1" in known and "3" in known and "2" not in known


def test_busy_executions_are_never_evicted(monkeypatch):
    monkeypatch.setattr(ExecutionActor, "idle", False)
    known = registry(2)
    held = [known.get(str(number)) for number in range(10)]
    assert [known.get(str(number)) for number in range(10)] == held


def test_many_busy_executions_are_not_all_scanned_for_each_new_one(monkeypatch):
    looked = 0

    def idle(self):
        nonlocal looked
        looked += 1
        return False

    monkeypatch.setattr(ExecutionActor, "idle", property(idle))
    known = registry(80)
    for number in range(800):
        known.get(str(number))
    assert looked < 50 * 800
