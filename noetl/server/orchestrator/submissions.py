"""Submissions: requests to run a playbook, and their translation into the first command of an execution."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from noetl.core.engine.commands import StartExecution
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.handlers.start import merged_workload
from noetl.core.model.compensation import CompensationSource
from noetl.core.model.events import ExecutionRequested, Parent, RerunSource
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.playbook import Playbook
from noetl.errors import NotFound, RequestRefused, SecretUnavailable
from noetl.runtime.clock import RealClock
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.server.orchestrator.catalog import Catalog, Source, source_digest
from noetl.storage.ports.secrets import Keychain


class Submission(Struct, frozen=True):
    """A request to run a playbook, given by its text or by its path in the catalog or file system."""

    path: str | None = None
    text: str | None = None
    file: str = ""
    version: int | str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    key: str | None = None  # idempotency key
    entry_step: str | None = None
    return_step: str | None = None
    requested_by: str | None = None
    strict: bool = False
    legacy: bool = False
    parent: Parent | None = None
    rerun: RerunSource | None = None
    compensates: CompensationSource | None = None  # what another execution completed, to be undone
    caller: str = ""  # file of the playbook that calls this one
    trace: str | None = None  # W3C traceparent of the caller
    labels: dict[str, str] = field(default_factory=dict)  # in addition to those of the playbook
    due: float | None = None  # when it was planned to start
    bounded: bool = False  # refused while too many runs wait
    playbook: Playbook | None = None  # `text` compiled with the same modes, if the caller has compiled it


class RerunRequest(Struct, frozen=True):
    """A request to run an execution again: as a whole, from a step, what failed, or from an event of its log (a fork).

    `payload` replaces that of the execution, `changes` replaces some of its keys, and `merge` is merged into it.
    `version` is another version of the playbook in the catalog (`latest`: the newest); None: the text of the
    execution."""

    execution_id: str
    from_step: str | None = None
    failed: bool = False
    at: int | None = None
    version: int | str | None = None
    payload: dict[str, Any] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    merge: dict[str, Any] = field(default_factory=dict)


_CALLER_KEY = re.compile(r"api:[^:]*:(.*)", re.DOTALL)  # a name of a token has no colon


def caller_key(name: str, key: str | None) -> str | None:
    """The idempotency key of a request at the API: two callers may use the same text."""
    return f"api:{name}:{key}" if key else None


def given_key(key: str) -> str | None:
    """The text of a key of a caller; None for other keys."""
    found = _CALLER_KEY.fullmatch(key)
    return found and found[1]


async def source_of(submission: Submission, catalog: Catalog) -> Source:
    """The text that a submission contains or names."""
    if submission.text is not None:
        version = submission.version
        return Source(submission.text, submission.file, None if version is None else str(version))
    if submission.path is None:
        raise RequestRefused("a request needs `path`, the path of a playbook, or `content`, its text")
    return await catalog.find(submission.path, submission.version, submission.caller)


async def is_same_request(submission: Submission, request: ExecutionRequested, catalog: Catalog) -> bool:
    """Whether a submission equals the earlier one recorded in `request`.

    The same path without a version is the same request, even if a newer version is registered; different paths are
    the same request only if both name one file.
    """
    if (submission.payload, submission.entry_step, submission.return_step) != (
        request.payload,
        request.entry_step,
        request.return_step,
    ):
        return False
    if _origin(submission.rerun) != _origin(request.rerun):
        return False
    if submission.text is None and submission.path == request.path:
        return submission.version in (None, "", "latest") or str(submission.version) == request.version
    try:
        return source_digest(await source_of(submission, catalog)) == request.playbook
    except NotFound:
        return False


def _origin(rerun: RerunSource | None) -> tuple[str, str | None, str, int | None] | None:
    return None if rerun is None else (rerun.execution_id, rerun.from_step, rerun.mode, rerun.at)


async def start_command(
    submission: Submission,
    source: Source,
    playbook: Playbook,
    keychain: Keychain | None,
    state: dict[str, Any],
    versions: dict[str, str],
) -> StartExecution:
    """The first command of an execution; it carries the error if a secret is missing, and the stored `state`."""
    for name in (submission.entry_step, submission.return_step):
        if name is not None and name not in playbook.steps_by_name:
            raise NotFound(f"playbook {playbook.path!r} has no step {name!r}")
    request = ExecutionRequested(
        playbook=playbook.digest,
        path=playbook.path,
        version=source.version or playbook.version,
        payload=submission.payload,
        parent=submission.parent,
        rerun=submission.rerun,
        entry_step=submission.entry_step,
        return_step=submission.return_step,
        requested_by=submission.requested_by,
        strict=submission.strict,
        trace=submission.trace,
        compensates=submission.compensates,
        labels=_labels(playbook) | submission.labels,
        due=submission.due,
    )
    names = tuple(entry.name for entry in playbook.keychain)
    missing = await _missing_secrets(keychain, playbook, submission.payload, names, state) if names else None
    return StartExecution(request, names, missing, state, versions)


def _labels(playbook: Playbook) -> dict[str, str]:
    """The labels of a playbook whose values are text or numbers."""
    given = playbook.metadata.get("labels")
    known = given.items() if isinstance(given, Mapping) else ()
    return {str(key): str(value) for key, value in known if isinstance(value, str | int | float)}


async def _missing_secrets(
    keychain: Keychain | None,
    playbook: Playbook,
    payload: Mapping[str, Any],
    names: Sequence[str],
    state: Mapping[str, Any],
) -> ErrorInfo | None:
    """Resolve all secrets once before the workflow starts; a missing one fails the request by name."""
    if keychain is None:
        return error_info("auth", f"this installation has no keychain, and the playbook uses {', '.join(names)}")
    # The id of the execution and the instant are not known yet; workers resolve the entries with the recorded workload.
    clock = RealClock()
    context = EvaluationContext(playbook, clock.now(), SystemNondeterminism(clock), {})
    try:
        workload = merged_workload(context, payload, "0", state)
        await keychain.resolve(playbook.keychain, names, workload=workload, file=playbook.file)
    except Failure as failure:
        return failure.error
    except SecretUnavailable as missing:
        return error_info(missing.kind, str(missing), details={"missing": sorted(missing.reasons)})
    return None
