"""Deadline of decisions: an execution whose decision does not end must not stop the server a second time.

Templates are bounded by counting (decision 0003). This is the second line of defence, for a cost that is not counted:
before each decision the id of the execution is written to a mapped file and a timer of CPU time is started. The kernel
ends a process whose decision exceeds the deadline, also inside a C function that holds Python's interpreter lock;
`faulthandler` writes the Python stack first. The server that starts next finds the file and fails the execution
instead of deciding it again.

A server that was killed in the middle of a decision leaves a file too, but no stack. Such an execution is failed only
after it was found `MAX_DEATHS` times at the same event, because a kill has other reasons more often.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import mmap
import os
import signal
from pathlib import Path
from typing import NamedTuple

from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.runtime.private_files import private_opener

log = logging.getLogger("noetl.control")

DEADLINE = 10.0  # seconds of CPU time for one decision
MAX_DEATHS = 3
_SIZE = 64


class Poisoned(NamedTuple):
    """An execution that must not be decided again, and its error."""

    execution_id: str
    error: ErrorInfo


class DecisionWatch:
    """The decision that a process makes, visible to the process that starts after it."""

    def deciding(self, execution_id: str, seq: int) -> DecisionWatch:
        """The context in which a decision is made that follows this event."""
        return self

    def __enter__(self) -> None:
        """The decision begins."""

    def __exit__(self, *problem: object) -> None:
        """The decision is made."""

    def poisoned(self) -> list[Poisoned]:
        """The executions that ended a server."""
        return []


NOT_WATCHED = DecisionWatch()  # of an embedded engine, whose user can stop it


class MappedDecisionWatch(DecisionWatch):
    """Keeps the current decision in a mapped file and limits its CPU time."""

    def __init__(self, folder: Path, *, deadline: float = DEADLINE) -> None:
        self._folder = folder
        self._deadline = deadline
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}-{os.urandom(4).hex()}.deciding"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, _SIZE)
        self._mapped = mmap.mmap(self._file, _SIZE)
        place = self._path.with_suffix(".stack")
        self._stack = open(place, "w", opener=private_opener)  # noqa: SIM115 - open until `close`
        faulthandler.register(signal.SIGVTALRM, file=self._stack, all_threads=False, chain=True)

    def deciding(self, execution_id: str, seq: int) -> DecisionWatch:
        """Write down which decision is made."""
        self._mapped[:] = f"{execution_id} {seq}".encode().ljust(_SIZE, b"\0")
        return self

    def __enter__(self) -> None:
        """Start the timer."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self._deadline)

    def __exit__(self, *problem: object) -> None:
        """Stop the timer and remove the id."""
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._mapped[0] = 0

    def close(self) -> None:
        """Stop watching and remove the files."""
        faulthandler.unregister(signal.SIGVTALRM)
        self._mapped.close()
        self._stack.close()
        os.close(self._file)
        self._path.unlink(missing_ok=True)
        self._path.with_suffix(".stack").unlink(missing_ok=True)

    def poisoned(self) -> list[Poisoned]:
        """The executions that ended a server; the files of ended processes are removed."""
        found = []
        for path in sorted(self._folder.glob("*.deciding")):
            if path == self._path or _is_locked(path):
                continue
            stack_path = path.with_suffix(".stack")
            marker = path.read_bytes().rstrip(b"\0").decode(errors="replace")
            stack = stack_path.read_text(errors="replace") if stack_path.exists() else ""
            path.unlink(missing_ok=True)
            stack_path.unlink(missing_ok=True)
            execution_id, _, seq = marker.partition(" ")
            if not execution_id.isdigit() or not seq.isdigit():
                continue  # no decision was being made
            error = _exceeded(execution_id, stack) if stack else self._died(execution_id, seq)
            if error is not None:
                found.append(Poisoned(execution_id, error))
        return found

    def _died(self, execution_id: str, seq: str) -> ErrorInfo | None:
        """Count a process that ended while it decided; the error when that has happened too often."""
        path = self._folder / f"{execution_id}.deaths"
        before = path.read_text().split() if path.exists() else []
        deaths = [*(each for each in before if each == seq), seq]
        if len(deaths) < MAX_DEATHS:
            path.write_text(" ".join(deaths))
            return None
        path.unlink(missing_ok=True)
        message = f"the server ended {MAX_DEATHS} times while it decided what follows event {seq} of this execution"
        return error_info("limit", message)


def _exceeded(execution_id: str, stack: str) -> ErrorInfo:
    log.error("the decision of execution %s exceeded its deadline:\n%s", execution_id, stack)
    message = (
        f"what follows in this execution could not be decided within {DEADLINE:g} s of CPU time, and the server ended"
    )
    return error_info("limit", message)


def _is_locked(path: Path) -> bool:
    """Whether the process that made the file is alive."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
