"""The open waits of a state: the counts for the summary row, and the entries of the inbox."""

from __future__ import annotations

from noetl.core.engine.outstanding import next_due
from noetl.core.engine.state import State
from noetl.core.model.waits import NO_WAITS, InboxEntry, WaitCounts


def wait_counts(state: State, *, settled: bool = True) -> WaitCounts:
    """The counts of a state; `settled` False: more is to be decided, so it does not only wait."""
    if not state.waits and not state.waiting_children:
        return NO_WAITS
    only = settled and state.only_waits
    inbox = sum(1 for wait in state.waits.values() if wait.request.signal is not None)
    return WaitCounts(only, next_due(state) if only else None, inbox)


def inbox_entries(state: State) -> list[InboxEntry]:
    """The waits that signals answer, oldest first."""
    if state.ending is not None and not state.compensating:
        return []
    return [
        InboxEntry(
            execution_id=state.execution_id,
            path=state.playbook.path,
            key=wait.key,
            step=wait.request.step,
            task=wait.request.task,
            signal=wait.request.signal,
            title=wait.request.title,
            form=wait.request.form,
            roles=wait.request.roles,
            since=wait.at,
            due=wait.due,
            iteration=wait.request.path,
        )
        for wait in state.waits.values()
        if wait.request.signal is not None
    ]
