"""Starts executions: from a submission to the first append.

An idempotency key starts at most one execution. The text of the playbook is stored before the
submission is acknowledged, so that every log can be folded after a restart.
"""

from __future__ import annotations

from msgspec import Struct

from noetl.core.engine.commands import StartExecution
from noetl.core.model.bundle import split_bundle_file
from noetl.core.model.events import ExecutionRequested
from noetl.core.model.playbook import Playbook
from noetl.errors import Conflict, VersionConflict
from noetl.observability import metrics
from noetl.server.concurrency.admission import Admission, StartingRequest
from noetl.server.orchestrator.catalog import Catalog, Source
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_ids import ExecutionIds
from noetl.server.orchestrator.playbook_states import PlaybookStates
from noetl.server.orchestrator.submissions import Submission, given_key, is_same_request, source_of, start_command
from noetl.storage.ports.events import EventStore, ExecutionSummary
from noetl.storage.ports.secrets import Keychain


class ExecutionStarter(Struct, eq=False):
    """Turns submissions into executions."""

    _store: EventStore
    _catalog: Catalog
    _executions: ExecutionCache
    _ids: ExecutionIds
    _keychain: Keychain | None
    _states: PlaybookStates
    _admission: Admission

    async def submit(self, submission: Submission) -> str:
        """Start an execution and return its id after the first append is durable.

        Raises InvalidPlaybook with the diagnostics, or TooManyRequests. A key that was used before returns the
        execution it started."""
        if not submission.bounded:
            return await self._submit(submission)
        with self._admission.start(submission.labels) as request:
            return await self._submit(submission, request)

    async def _submit(self, submission: Submission, bounded: StartingRequest | None = None) -> str:
        if submission.key is not None:
            known = await self._by_key(submission, submission.key)
            if known is not None:
                return await self._same_request(known, submission)
        source = await source_of(submission, self._catalog)
        playbook = await self._compile(source, submission)
        stored = await self._states.read(playbook.path) if playbook.uses_state else None
        command = await start_command(submission, source, playbook, self._keychain, *(stored or ({}, {})))
        if bounded is not None:
            await bounded.check(command.request.labels)
        if not self._catalog.is_stored(playbook):
            await self._catalog.store(playbook, source)  # first: without its text, an execution cannot be continued
        return await self._start(playbook, command, submission)

    async def _compile(self, source: Source, submission: Submission) -> Playbook:
        modes = {"strict": submission.strict, "legacy": submission.legacy}
        if submission.playbook is not None and split_bundle_file(source.file) is None:  # a bundle has a profile
            return self._catalog.add(source, submission.playbook, **modes)
        return await self._catalog.compile(source, **modes)

    async def _start(self, playbook: Playbook, command: StartExecution, submission: Submission) -> str:
        while True:
            execution = self._executions.get(self._ids.mint())
            try:
                await execution.begin(playbook, command, submission.key)
                metrics.STARTED.add()
                return execution.id
            except VersionConflict:
                self._executions.forget(execution.id)  # another process minted the same id: mint again
            except Conflict:
                self._executions.forget(execution.id)
                known = await self._store.by_key(submission.key or "")
                if known is None:
                    raise
                return await self._same_request(known, submission)

    async def _by_key(self, submission: Submission, key: str) -> ExecutionSummary | None:
        """The execution that a key started. Version 0.1 stored the keys of all callers without their names."""
        known = await self._store.by_key(key)
        if known is None and (given := given_key(key)) is not None:
            known = await self._store.by_key(f"http:{given}")
            if known is not None and (await self._request_of(known)).requested_by != submission.requested_by:
                return None
        return known

    async def _request_of(self, known: ExecutionSummary) -> ExecutionRequested:
        (first,) = await self._store.read(known.execution_id, 0, 1)
        assert isinstance(first.body, ExecutionRequested)
        return first.body

    async def _same_request(self, known: ExecutionSummary, submission: Submission) -> str:
        """The execution that a key started; Conflict when the key was used for another request."""
        if submission.parent is None:
            request = await self._request_of(known)
            if not await is_same_request(submission, request, self._catalog):
                key = submission.key or ""
                raise Conflict(
                    f"the key {given_key(key) or key!r} was used for another request (execution {known.execution_id}); "
                    "use a new key for a new request"
                )
        return known.execution_id
