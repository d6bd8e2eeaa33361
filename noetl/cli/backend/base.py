"""What commands need of an engine. Names and parameters are those of `noetl.client.Client`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeAlias, Unpack

from noetl.errors import NotFound

if TYPE_CHECKING:
    from noetl.client import ScheduleOptions
    from noetl.client.options import ListOptions
    from noetl.core.language.diagnostics import Diagnostic
    from noetl.core.model.bundle import Bundle
    from noetl.core.model.events import Recorded
    from noetl.server.read_models.summaries import RunResult
    from noetl.storage.ports.events import ExecutionSummary
    from noetl.storage.ports.playbooks import Origin, StoredPlaybook

LAST = "last"

Document: TypeAlias = dict[str, Any]


class Backend(Protocol):
    """An engine whose executions, playbooks, schedules and limits are inspected and controlled."""

    async def executions(
        self,
        *,
        status: Sequence[str] = (),
        path: str | None = None,
        parent: str | None = None,
        search: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        **more: Unpack[ListOptions],
    ) -> list[ExecutionSummary]:
        """Executions, newest first."""

    async def summary(self, execution_id: str) -> ExecutionSummary:
        """One row of the list; NotFound when it does not exist."""

    async def execution(self, execution_id: str) -> Document:
        """The document with the steps."""

    async def result(self, execution_id: str) -> RunResult:
        """The result, as far as it is known."""

    def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The events recorded so far."""

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The events as they are recorded, until the execution has ended."""

    def logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        """The lines that tasks have printed so far."""

    def follow_logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        """The lines as they are printed, until the execution has ended."""

    async def state(self, execution_id: str, at: int | None = None) -> Document:
        """The state, now or after event `at`."""

    async def why(self, execution_id: str) -> Document:
        """An explanation of the status: execution_id, status, summary, because, way."""

    async def graph(self, execution_id: str) -> Document:
        """The steps and arcs of the playbook."""

    async def cancel(self, execution_id: str, reason: str = "", compensate: bool = False) -> ExecutionSummary:
        """Cancel an execution; `compensate` undoes its completed steps."""

    async def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Start no new run in an execution."""

    async def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Continue a paused execution."""

    async def signal(self, execution_id: str, payload: Mapping[str, Any], name: str = "") -> ExecutionSummary:
        """Answer a wait, or merge a payload into ctx."""

    async def backfills(self) -> list[Document]:
        """All backfills with their progress."""

    async def backfill(self, name: str) -> Document:
        """A backfill with its progress."""

    async def control_backfill(self, name: str, command: Literal["pause", "resume", "cancel", "retry"]) -> Document:
        """Change a backfill."""

    async def compare(self, execution_id: str, other: str) -> Document:
        """What differs between two executions."""

    async def inbox(self) -> list[Document]:
        """The waits that a signal answers."""

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        """All problems of a playbook's text; diagnostics name `file`."""

    async def register(
        self,
        content: str,
        *,
        strict: bool = False,
        legacy: bool = False,
        file: str = "",
        origin: Origin | None = None,
    ) -> StoredPlaybook:
        """Register a playbook in the catalog; `file` is its file in a bundle."""

    async def add_bundle(self, bundle: Bundle, contents: Mapping[str, bytes]) -> str:
        """Store a bundle with its files; return its digest."""

    async def bundle(self, digest: str) -> Bundle:
        """A stored bundle; NotFound when it does not exist."""

    async def playbooks(self, search: str | None = None) -> list[StoredPlaybook]:
        """The newest version of every path."""

    async def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        """A version of a path; NotFound when it does not exist."""

    async def add_schedule(self, path: str, cron: str, **options: Unpack[ScheduleOptions]) -> Document:
        """Add a schedule."""

    async def schedules(self) -> list[Document]:
        """All schedules, by name."""

    async def schedule(self, name: str, count: int = 3) -> Document:
        """A schedule with its next `count` ticks."""

    async def edit_schedule(self, name: str, fields: Mapping[str, Any]) -> Document:
        """Change fields of a schedule."""

    async def run_schedule(self, name: str) -> Document:
        """Start the playbook of a schedule now."""

    async def remove_schedule(self, name: str) -> None:
        """Delete a schedule."""

    async def pause_schedule(self, name: str) -> Document:
        """Stop a schedule."""

    async def resume_schedule(self, name: str) -> Document:
        """Continue a schedule."""

    async def set_limit(
        self,
        subject: str,
        name: str,
        most: int | None = None,
        *,
        weight: int | None = None,
        max_waiting: int | None = None,
    ) -> Document:
        """Set or change a limit."""

    async def limits(self) -> list[Document]:
        """All limits."""

    async def limit(self, subject: str, name: str) -> Document:
        """One limit."""

    async def remove_limit(self, subject: str, name: str) -> None:
        """Remove a limit."""

    async def tables(self, execution_id: str) -> list[Document]:
        """The results of an execution that can be queried."""

    async def query(self, execution_id: str, sql: str, limit: int) -> Document:
        """The first rows of a SELECT over the results of an execution."""

    async def export_query(self, execution_id: str, sql: str, format: Any, file: BinaryIO) -> None:
        """All rows of a SELECT over the results of an execution, as a file."""

    async def states(self) -> list[Document]:
        """The playbooks that have state."""

    async def state_of(self, path: str) -> Document:
        """The state that executions of a playbook share."""

    async def set_state(self, path: str, values: Document) -> Document:
        """Set values of the state of a playbook by key or dotted path."""

    async def reset_state(self, path: str, keys: Sequence[str] = ()) -> None:
        """Remove these keys of the state of a playbook, or all of them."""

    async def register_schema(self, name: str, schema: Document, compatible: str = "backward") -> Document:
        """Register a version of a JSON Schema."""

    async def schemas(self) -> list[Document]:
        """The newest version of each schema."""

    async def schema(self, name: str) -> Document:
        """A version of a schema (`orders/v2`), or the newest one."""


async def find_execution(backend: Backend, execution_id: str) -> ExecutionSummary:
    """The execution of an id; `last` is the newest one that is not a child."""
    if execution_id != LAST:
        return await backend.summary(execution_id)
    before: str | None = None
    while page := await backend.executions(before=before, limit=100):
        for summary in page:
            if summary.parent is None:
                return summary
        before = page[-1].execution_id
    raise NotFound("there are no executions yet; `noetl run FILE` starts one")
