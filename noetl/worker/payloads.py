"""Large values of a worker's events: written to the result store and replaced by references.

The limit applies to the encoded JSON (`limits.max_payload_bytes`). Inside the pipeline that created it the data stays
in memory. The reported outcome (`recorded`) has `ref` instead, with the parts that server-side templates
read (`Step.exports`) or that the author wants inline (`select`). Large values that only this run reads again (in
`iter`, `step` or the collection of a block) are offloaded to the store under a marker inside the `Position`, and
restored when another worker continues the run.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.core.model.events import (
    ChildRequested,
    Event,
    IterationDone,
    IterationFailed,
    StepDone,
    StepFailed,
    TaskDone,
    TaskStarted,
    WaitStarted,
)
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import ERROR_KINDS, Outcome, error_info
from noetl.core.model.playbook import ALL, OutputPolicy, Step
from noetl.core.model.position import CallFrame, LoopFrame, Position
from noetl.core.model.reference import INLINE_STORES, STORED, Reference, is_stored, stored_marker
from noetl.core.templates.views import extract
from noetl.errors import NoetlError, PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.storage.ports.results import ResultStore, ResultStores

JSON = "application/json"
CHUNK = 1 << 20
_MIN_OFFLOAD = 2048
_MAX_MESSAGE = 16 * 1024

_log = logging.getLogger("noetl.work")

_encode = msgspec.json.Encoder().encode
_SMALL_TYPES = frozenset({type(None), bool, int, float})


class Payloads:
    """Writes large values to the result store and reads them back."""

    def __init__(self, results: ResultStore) -> None:
        self._results = results

    # ── outcomes ────────────────────────────────────────────────────────────────────────

    def fits(self, outcome: Outcome, limit: int, policy: OutputPolicy) -> bool:
        """Whether the outcome can be reported unchanged."""
        if _always_stored(policy) and outcome.data is not None and outcome.status == "ok" and outcome.ref is None:
            return False
        if outcome.ref is not None:
            return outcome.data is None and not outcome.helpers
        if type(outcome.data) in _SMALL_TYPES and not outcome.helpers and outcome.error is None:
            return True
        try:
            return len(_encode(outcome)) <= _inline_limit(policy, limit)
        except (TypeError, ValueError, RecursionError, OverflowError):
            return False

    async def pack(
        self,
        outcome: Outcome,
        *,
        name: str,
        limit: int,
        policy: OutputPolicy,
        stored: bool = False,
        exports: Sequence[str] = (),
    ) -> tuple[Outcome, Outcome]:
        """The outcome for this pipeline (data and `ref`), and the one that is reported.

        Data that is not JSON or cannot be stored yields an error outcome."""
        try:
            encoded = _encode(outcome.data)
        except (TypeError, ValueError, RecursionError, OverflowError) as problem:
            failed = _error_outcome(outcome, "schema", f"the output is not JSON data: {problem}")
            return failed, failed
        reference = outcome.ref
        requested = _requested_store(policy) if outcome.status == "ok" else None
        stored = stored or (requested is not None and _always_stored(policy))
        if reference is None and outcome.data is not None and (stored or len(encoded) > _inline_limit(policy, limit)):
            try:
                reference = await self._put(name, outcome.data, encoded, requested or {})
            except NoetlError as problem:
                failed = _error_outcome(outcome, _error_kind(problem), f"the output could not be stored: {problem}")
                return failed, failed
        if reference is None:
            return outcome, _slim_envelope(outcome, limit)
        schema = outcome.meta.get("schema")
        if schema is not None and reference.meta.schema is None:
            reference = replace(reference, meta=replace(reference.meta, schema=schema))
        full = replace(outcome, ref=reference)
        if outcome.data is None:
            return full, _slim_envelope(full, limit)
        extracts = extracts_of(full, (*policy.select, *exports), limit)
        return full, _slim_envelope(replace(full, data=None, extracts=extracts), limit)

    async def final(
        self,
        outcome: Outcome,
        recorded: Outcome,
        *,
        step: Step,
        looping: bool,
        name: str,
        limit: int,
    ) -> Outcome:
        """The output of a step or iteration as recorded in its terminal event."""
        exports = () if looping else step.exports
        again = outcome.data is not None and outcome.status == "ok"
        if recorded.ref is not None:  # a task has stored it, perhaps in another store than its step requests
            requested = _requested_store(step.output) if again else None
            kept = getattr(self._selected(requested, name), "type", None) if requested else None
            again = kept is not None and kept != recorded.ref.type
            outcome = replace(outcome, ref=None) if again else outcome
        if again and not self.fits(outcome, limit, step.output):
            _, recorded = await self.pack(outcome, name=name, limit=limit, policy=step.output, exports=exports)
            return recorded
        if recorded.ref is not None and outcome.data is not None and (exports or step.output.select):
            extracts = extracts_of(outcome, (*step.output.select, *exports), limit)
            return replace(recorded, extracts={**recorded.extracts, **extracts})
        return recorded

    async def fit_results(self, results: Mapping[str, Outcome], name: str, limit: int) -> dict[str, Outcome]:
        """The results of a composite step, the largest by reference so that the total is within the limit."""
        fitted = dict(results)
        sizes = {label: len(_encode(outcome)) for label, outcome in fitted.items()}
        for label in sorted(sizes, key=lambda label: -sizes[label]):
            if sum(sizes.values()) <= limit:
                break
            _, slim = await self.pack(
                fitted[label], name=f"{name}/{label}", limit=0, policy=OutputPolicy(), stored=fitted[label].ref is None
            )
            fitted[label] = slim
            sizes[label] = len(_encode(slim))
        return fitted

    # ── positions ───────────────────────────────────────────────────────────────────────

    def must_offload(self, events: Sequence[Event], limit: int) -> bool:
        """Whether the position or private patch of an event is larger than the limit."""
        for event in events:
            kind = type(event)
            if kind is TaskDone and event.position is None and not event.patch:  # type: ignore[attr-defined]
                continue  # the most common events, like starts
            if kind is not TaskStarted and _private_size(event) > limit:
                return True
        return False

    async def offload(
        self, events: Sequence[Event], name: str, limit: int, offloaded: dict[int, tuple[Any, Any]]
    ) -> tuple[Event, ...]:
        """The events with large parts of positions and private patches moved to the store.

        `offloaded` has what this run has already stored, by identity of the value."""
        offloader = _Offloader(self, name, limit, offloaded)
        return tuple([await offloader.event(event) if _private_size(event) > limit else event for event in events])

    async def restore(self, value: Any) -> Any:
        """A position or scope with its offloaded values restored."""
        if isinstance(value, Position):
            return replace(
                value,
                input=await self.restore(value.input),
                iter=await self.restore(value.iter),
                step=await self.restore(value.step),
                ctx=await self.restore(value.ctx),
                calls=tuple([await self.restore(call) for call in value.calls]),
            )
        if isinstance(value, CallFrame):
            return replace(
                value,
                position=await self.restore(value.position),
                input=await self.restore(value.input),
                loops=tuple([await self.restore(loop) for loop in value.loops]),
            )
        if isinstance(value, LoopFrame):
            return replace(
                value,
                items=tuple(await self.restore(list(value.items))),
                outputs=tuple([await self.restore(output) for output in value.outputs]),
            )
        if isinstance(value, Outcome):
            return replace(value, data=await self.restore(value.data)) if is_stored(value.data) else value
        if is_stored(value):
            return await self.read(msgspec.convert(value[STORED], Reference), limit=None)
        if isinstance(value, dict) and any(is_stored(each) for each in value.values()):
            return {key: await self.restore(each) for key, each in value.items()}
        if isinstance(value, list) and any(is_stored(each) for each in value):
            return [await self.restore(each) for each in value]
        return value

    async def put_value(self, name: str, value: Any) -> Reference:
        """Store JSON data."""
        return await self._put(name, value, _encode(value), {})

    # ── reading ─────────────────────────────────────────────────────────────────────────

    async def read(self, reference: Reference, *, limit: int | None) -> Any:
        """A stored payload as data; PayloadUnavailable if it is too large, missing or corrupt."""
        size = reference.meta.bytes
        if limit is not None and size > limit:
            raise PayloadUnavailable(
                f"the stored payload has {size:,} bytes; templates can read at most limits.max_hydrate_bytes "
                f"({limit:,}); read the part you need with `kind: resolve` (select, limit, offset)",
                kind="limit",
            )
        content_type = reference.meta.content_type.partition(";")[0].strip().lower()
        try:
            if content_type == JSON:
                return msgspec.json.decode(b"".join([chunk async for chunk in self._results.open(reference)]))
            return await self._read_whole(reference, content_type, size if limit is None else limit)
        except UnicodeDecodeError:
            raise PayloadUnavailable(
                f"the stored payload is {content_type}, not text; read it with `kind: resolve`",
                kind="ref.unresolved",
            ) from None
        except ValueError as problem:
            raise PayloadUnavailable(
                f"the stored payload is not valid {content_type}: {problem}", kind="ref.corrupt"
            ) from None

    async def _read_whole(self, reference: Reference, content_type: str, most: int) -> Any:
        from noetl.data.files.formats import format_of
        from noetl.data.payload_reader import Part, StoredPayload, TooLarge, read_part

        payload, format = (
            StoredPayload(reference, self._results.open),
            format_of(content_type=content_type, default="text"),
        )
        try:
            return await read_part(payload, format, Part(), most=most)
        except TooLarge as problem:
            raise PayloadUnavailable(f"{problem}; read the part you need with `kind: resolve`", kind="limit") from None

    def _selected(self, requested: Mapping[str, Any], name: str) -> ResultStore:
        """The store that a playbook requests, else the default store."""
        if not requested or not isinstance(self._results, ResultStores):
            return self._results
        chosen = self._results.of(requested)
        if chosen is None:
            _log.warning("%s: no result store of kind %r; the default store is used", name, requested.get("kind"))
        return chosen or self._results

    async def _put(self, name: str, data: Any, encoded: bytes, requested: Mapping[str, Any]) -> Reference:
        store = self._selected(requested, name)
        rows, columns = _table_shape(data)
        ttl = requested.get("ttl")

        async def put(into: ResultStore) -> Reference:
            return await into.put(
                name,
                _in_chunks(encoded),
                content_type=JSON,
                rows=rows,
                columns=columns,
                ttl=None if ttl is None else str(ttl),
            )

        try:
            return await put(store)
        except StoreUnavailable as problem:
            if getattr(store, "configured", True):
                raise
            _log.warning("%s: %s; the default store is used", name, problem)
            return await put(self._results)


class _Offloader(msgspec.Struct, eq=False):
    """Moves the large parts of one position to the store."""

    _payloads: Payloads
    _name: str
    _limit: int
    _offloaded: dict[int, tuple[Any, Any]]

    async def event(self, event: Event) -> Event:
        if isinstance(event, TaskDone):
            position = None if event.position is None else await self.position(event.position)
            patch = {
                scope: await self.shared(values, event.path) if scope == "ctx" else await self.mapping(values)
                for scope, values in event.patch.items()
            }
            return replace(event, position=position, patch=patch)
        if isinstance(event, IterationDone):
            patch = await self.mapping(event.step_patch)
            return replace(event, step_patch=patch, input=await self.mapping(event.input))
        if isinstance(event, IterationFailed):
            return replace(event, step_patch=await self.mapping(event.step_patch))
        if isinstance(event, StepDone | StepFailed):
            patch = await self.shared(event.patch, ())
            return replace(event, patch=patch, input=await self.mapping(event.input))
        if isinstance(event, ChildRequested | WaitStarted) and event.position is not None:
            return replace(event, position=await self.position(event.position))
        return event

    async def position(self, position: Position) -> Position:
        results = {label: await self.outcome(outcome) for label, outcome in position.results.items()}
        return replace(
            position,
            input=None if position.input is None else await self.mapping(position.input),
            iter=await self.mapping(position.iter),
            step=await self.mapping(position.step),
            ctx=await self.mapping(position.ctx),
            results=results,
            calls=tuple([await self.call(call) for call in position.calls]),
        )

    async def call(self, call: CallFrame) -> CallFrame:
        loops = []
        for loop in call.loops:
            items = tuple([await self.value(item) for item in loop.items])
            outputs = tuple([await self.outcome(output) for output in loop.outputs])
            loops.append(replace(loop, items=items, outputs=outputs))
        return replace(
            call,
            position=await self.position(call.position),
            input=await self.mapping(call.input),
            loops=tuple(loops),
        )

    async def outcome(self, outcome: Outcome) -> Outcome:
        """An outcome with its data by reference, so that views read it on demand."""
        if outcome.ref is not None or outcome.data is None or len(_encode(outcome.data)) < _MIN_OFFLOAD:
            return outcome
        known = self._offloaded.get(id(outcome))
        if known is not None:
            slim: Outcome = known[1]
            return slim
        reference = await self._payloads.put_value(self._name, outcome.data)
        slim = replace(outcome, data=None, ref=reference)
        self._offloaded[id(outcome)] = (outcome, slim)
        return slim

    async def shared(self, writes: Mapping[str, Any], path: IterationPath) -> dict[str, Any]:
        """Writes to `ctx` with large values stored; those of iterations are compared and reduced, so they stay."""
        if path:
            return dict(writes)
        return {key: await self.value(value) if _size(value) > self._limit else value for key, value in writes.items()}

    async def mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: await self.value(value) for key, value in values.items()}

    async def value(self, value: Any) -> Any:
        if type(value) in _SMALL_TYPES or is_stored(value) or len(_encode(value)) < _MIN_OFFLOAD:
            return value
        known = self._offloaded.get(id(value))
        if known is None:
            reference = await self._payloads.put_value(self._name, value)
            # The value is stored with its marker, because an id is unique only while the object lives.
            known = self._offloaded[id(value)] = (value, stored_marker(reference))
        return known[1]


def _private_size(event: Event) -> int:
    """Encoded size of what only this run reads again."""
    if isinstance(event, TaskDone):
        if event.position is None and not event.patch:
            return 0
        shared = None if event.path else event.patch.get("ctx")
        return len(_encode((event.position, event.patch.get("iter"), event.patch.get("step"), shared)))
    if isinstance(event, IterationDone):
        return len(_encode((event.step_patch, event.input))) if event.step_patch or event.input else 0
    if isinstance(event, IterationFailed):
        return len(_encode(event.step_patch)) if event.step_patch else 0
    if isinstance(event, StepDone | StepFailed):
        return len(_encode((event.patch, event.input))) if event.patch or event.input else 0
    if isinstance(event, ChildRequested | WaitStarted):
        return len(_encode(event.position))
    return 0


def _size(value: Any) -> int:
    return 0 if type(value) in _SMALL_TYPES else len(_encode(value))


def extracts_of(outcome: Outcome, paths: Sequence[str], limit: int) -> dict[str, Any]:
    """The parts that are recorded next to a reference, up to the limit in total."""
    wanted = tuple(dict.fromkeys(path for path in paths if path and path != ALL and not _is_whole(path)))
    if not wanted:
        return {}
    extracts: dict[str, Any] = {}
    left = limit
    for path, value in extract(outcome, wanted).items():
        left -= len(_encode(value)) + len(path)
        if left < 0:
            break
        extracts[path] = value
    return extracts


def _requested_store(policy: OutputPolicy) -> Mapping[str, Any] | None:
    """The store that the playbook requests; None if it requests none."""
    if not policy.store:
        return None
    kind = str(policy.store.get("kind") or policy.store.get("type") or "").lower()
    return None if kind in INLINE_STORES else {**policy.store, "kind": kind}


def _always_stored(policy: OutputPolicy) -> bool:
    """Whether small results are stored too: the playbook names a store, and says nothing about what stays inline."""
    return _requested_store(policy) is not None and not policy.select and policy.inline_max_bytes is None


def _inline_limit(policy: OutputPolicy, limit: int) -> int:
    return limit if policy.inline_max_bytes is None else min(limit, policy.inline_max_bytes)


def _is_whole(path: str) -> bool:
    return path in ("data", "ref", "_ref", "status", "error", "meta")


def _table_shape(data: Any) -> tuple[int | None, list[str] | None]:
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        return None, None
    first = rows[0] if rows else None
    return len(rows), [str(column) for column in first] if isinstance(first, dict) else None


def _slim_envelope(outcome: Outcome, limit: int) -> Outcome:
    """The outcome with long helper values and error texts truncated."""
    if not outcome.helpers and outcome.error is None:
        return outcome
    changes: dict[str, Any] = {}
    if outcome.helpers and len(_encode(outcome.helpers)) > limit:
        changes["helpers"] = {
            name: {key: value if len(_encode(value)) <= _MIN_OFFLOAD else None for key, value in helper.items()}
            for name, helper in outcome.helpers.items()
        }
    problem = outcome.error
    if problem is not None:
        cut = problem
        if len(problem.message) > _MAX_MESSAGE:
            cut = replace(cut, message=problem.message[:_MAX_MESSAGE] + "... (cut)")
        if problem.details and len(_encode(problem.details)) > limit:
            cut = replace(cut, details={k: v for k, v in problem.details.items() if len(_encode(v)) <= _MIN_OFFLOAD})
        if cut is not problem:
            changes["error"] = cut
    return replace(outcome, **changes) if changes else outcome


def _error_outcome(outcome: Outcome, kind: str, message: str) -> Outcome:
    return Outcome(status="error", error=error_info(kind, message), meta=outcome.meta)


def _error_kind(problem: NoetlError) -> str:
    if isinstance(problem, RequestRefused):
        return "storage.access"
    kind = getattr(problem, "kind", "storage.access" if isinstance(problem, StoreUnavailable) else "unknown")
    return kind if kind in ERROR_KINDS else "unknown"


async def _in_chunks(encoded: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(encoded), CHUNK):
        yield encoded[start : start + CHUNK]
    if not encoded:
        yield b""
