"""Lines that tasks print (stdout and stderr), as they travel from workers to the store.

Lines are no events: nothing depends on them. They are bounded and may be dropped; a dropped line is counted where it is
missing.
"""

from __future__ import annotations

from msgspec import Struct, field

from noetl.core.model.ids import split_run_id

MAX_LINES = 1_000  # in one chunk


class LogSource(Struct, frozen=True, array_like=True, gc=False):
    """The task attempt that printed a line; `iteration` is `7`, in nested loops `7.2`, and empty outside of loops."""

    step: str
    task: str
    iteration: str = ""
    visit: int = 1
    attempt: int = 1
    run: int = 1  # number of the step run


class LogLine(Struct, frozen=True, array_like=True, gc=False):
    """One line. `source` is an index into the sources of its chunk; `dropped` counts lines that are missing here."""

    source: int
    at: float
    stream: str
    text: str
    dropped: int = 0


class LogChunk(Struct, frozen=True, array_like=True, gc=False):
    """Consecutive lines of one execution."""

    execution_id: str
    sources: list[LogSource]
    lines: list[LogLine]


class StoredLine(Struct, frozen=True, gc=False):
    """A line with its number in the log of its execution, from 1."""

    seq: int
    source: LogSource
    line: LogLine


class LogFilter(Struct, frozen=True, omit_defaults=True):
    """Which lines are wanted; a field that is not set matches all."""

    step: str | None = None
    task: str | None = None
    iteration: str | None = None
    attempt: int | None = None
    stream: str | None = None
    search: str | None = None

    def matches(self, source: LogSource, line: LogLine) -> bool:
        """Whether a line is wanted."""
        return (
            (self.step is None or source.step == self.step)
            and (self.task is None or source.task == self.task)
            and (self.iteration is None or source.iteration == self.iteration)
            and (self.attempt is None or source.attempt == self.attempt)
            and (self.stream is None or line.stream == self.stream or line.dropped > 0)
            and (self.search is None or self.search.lower() in line.text.lower())
        )


class LogPage(Struct, frozen=True):
    """Lines in order; `next` is the number of the last line that was looked at, None at the end."""

    lines: list[StoredLine] = field(default_factory=list)
    next: int | None = None


def source_of(task_run: str) -> LogSource:
    """The source of a task run's lines, from its id."""
    run, task, visit, attempt = task_run.rsplit(":", 3)
    _, step, number, path = split_run_id(run)
    return LogSource(step, task, ".".join(map(str, path)), int(visit), int(attempt), number)
