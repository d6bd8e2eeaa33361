"""What an execution waits for: the counts in its summary row, and the entries of the inbox."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct


class WaitCounts(NamedTuple):
    """The open waits of an execution."""

    only: bool  # nothing else runs
    due: float | None  # the next timer, if nothing else runs
    inbox: int  # waits that a signal answers


NO_WAITS = WaitCounts(False, None, 0)


class InboxEntry(Struct, frozen=True):
    """A wait that a signal answers."""

    execution_id: str
    path: str  # of the playbook
    key: str  # identifies this wait: the id of its task run
    step: str
    task: str
    signal: str
    title: str
    form: Any
    roles: tuple[str, ...]
    since: float
    due: float | None  # when it times out or ends by itself
    iteration: tuple[int, ...] = ()
