"""What an execution waits for: the counts in its summary row, and the entries of the inbox."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
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


def answer_command(execution_id: str, signal: str, form: Any, options: str = "") -> str:
    """The command that answers a wait, with a `--set` for every required field of its form."""
    required = form.get("required") if isinstance(form, Mapping) else None
    fields = [str(each) for each in required] if isinstance(required, list | tuple) else []
    command = f"noetl signal {execution_id} --name {shlex.quote(signal)}{options}"
    return " ".join([command, *(f"--set {field}=VALUE" for field in fields)])
