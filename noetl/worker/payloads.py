"""Large values out of the worker's events: stored first, then a reference goes on.

The limit is measured as encoded JSON (`limits.max_payload_bytes`). Inside the pipeline that made
it the data stays data; what is reported (`recorded`) has `ref` instead, and beside it the
parts that server-side templates read (`Step.exports`) or the author wants inline (`select`).
What only this run reads again (large values in `iter`, `step`, a block's collection) is parked in
the store under a marker inside the `Position`, and fetched back when another worker takes over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.core.model.events import ChildRequested, Event, IterationDone, IterationFailed, TaskDone, TaskStarted
from noetl.core.model.outcome import ERROR_KINDS, Outcome, error_info
from noetl.core.model.playbook import ALL, OutputPolicy, Step
from noetl.core.model.position import CallFrame, LoopFrame, Position
from noetl.core.model.reference import Reference
from noetl.core.templates.views import extract, plain
from noetl.errors import NoetlError, PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.storage.ports.results import ResultStore, ResultStores

JSON = "application/json"
STORED = "$stored"  # marker of a parked value inside a position
CHUNK = 1 << 20
_WORTH_PARKING = 2048
_LONGEST_MESSAGE = 16 * 1024
_INLINE_STORES = frozenset({"auto", "default", "inline", "event", "events", ""})

_encode = msgspec.json.Encoder().encode
_SMALL_TYPES = frozenset({type(None), bool, int, float})


class Payloads:
    """Stores what is too large and reads it back."""

    def __init__(self, results: ResultStore) -> None:
        self._results = results

    # ── outcomes ────────────────────────────────────────────────────────────────────────

    def fits(self, outcome: Outcome, limit: int, policy: OutputPolicy, *, stored: bool) -> bool:
        """Whether the outcome can be reported just as it is (the common case, without waiting)."""
        if stored and outcome.data is not None and outcome.ref is None:
            return False
        if _wish(policy) is not None and outcome.data is not None and outcome.status == "ok" and outcome.ref is None:
            return False
        if outcome.ref is not None:
            return outcome.data is None and not outcome.helpers
        if type(outcome.data) in _SMALL_TYPES and not outcome.helpers and outcome.error is None:
            return True
        try:
            return len(_encode(outcome)) <= limit
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

        An outcome whose data is no JSON, or that cannot be stored, becomes an error outcome."""
        try:
            encoded = _encode(outcome.data)
        except (TypeError, ValueError, RecursionError, OverflowError) as problem:
            failed = _instead(outcome, "schema", f"the output is not JSON data: {problem}")
            return failed, failed
        reference = outcome.ref
        wish = _wish(policy) if outcome.status == "ok" else None
        if reference is None and outcome.data is not None and (stored or wish is not None or len(encoded) > limit):
            try:
                reference = await self._put(name, outcome.data, encoded, wish or {})
            except NoetlError as problem:
                failed = _instead(outcome, _kind_of(problem), f"the output could not be stored: {problem}")
                return failed, failed
        if reference is None:
            return outcome, _slim_envelope(outcome, limit)
        full = replace(outcome, ref=reference)
        if outcome.data is None:
            return full, _slim_envelope(full, limit)
        kept = extracts_of(full, (*policy.select, *exports), limit)
        return full, _slim_envelope(replace(full, data=None, extracts=kept), limit)

    async def final(
        self,
        outcome: Outcome,
        recorded: Outcome,
        *,
        step: Step,
        looping: bool,
        name: str,
        limit: int,
        stored: bool,
    ) -> Outcome:
        """A step's (or iteration's) output as its terminal event has it."""
        exports = () if looping else step.exports
        if recorded.ref is None and outcome.data is not None and outcome.ref is None:
            stored = stored and not looping and outcome.status == "ok"
            if stored or (_wish(step.output) is not None and outcome.status == "ok"):
                _, recorded = await self.pack(
                    outcome, name=name, limit=limit, policy=step.output, stored=stored, exports=exports
                )
                return recorded
        if recorded.ref is not None and outcome.data is not None and (exports or step.output.select):
            kept = extracts_of(outcome, (*step.output.select, *exports), limit)
            return replace(recorded, extracts={**recorded.extracts, **kept})
        return recorded

    async def fit_results(self, results: Mapping[str, Outcome], name: str, limit: int) -> dict[str, Outcome]:
        """A composite step's results: together within the limit, the largest ones by reference."""
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

    def must_park(self, events: Sequence[Event], limit: int) -> bool:
        """Whether some event's position or private patch is too large to travel."""
        for event in events:
            kind = type(event)
            if kind is TaskDone and event.position is None and not event.patch:  # type: ignore[attr-defined]
                continue  # the most common by far, as are starts
            if kind is not TaskStarted and _private_size(event) > limit:
                return True
        return False

    async def park(
        self, events: Sequence[Event], name: str, limit: int, parked: dict[int, tuple[Any, Any]]
    ) -> tuple[Event, ...]:
        """Events whose position (or private patch) is too large, with the large parts in the store.

        `parked` remembers what this run has stored already, by identity of the value."""
        parker = _Parker(self, name, parked)
        return tuple([await parker.event(event) if _private_size(event) > limit else event for event in events])

    async def unpark(self, value: Any) -> Any:
        """A position (or a scope) with its parked values back in place."""
        if isinstance(value, Position):
            return replace(
                value,
                input=await self.unpark(value.input),
                iter=await self.unpark(value.iter),
                step=await self.unpark(value.step),
                ctx=await self.unpark(value.ctx),
                calls=tuple([await self.unpark(call) for call in value.calls]),
            )
        if isinstance(value, CallFrame):
            return replace(
                value,
                position=await self.unpark(value.position),
                input=await self.unpark(value.input),
                loops=tuple([await self.unpark(loop) for loop in value.loops]),
            )
        if isinstance(value, LoopFrame):
            return replace(
                value,
                items=tuple(await self.unpark(list(value.items))),
                outputs=tuple([await self.unpark(output) for output in value.outputs]),
            )
        if isinstance(value, Outcome):
            return replace(value, data=await self.unpark(value.data)) if is_parked(value.data) else value
        if is_parked(value):
            return await self.read(msgspec.convert(value[STORED], Reference), limit=None)
        if isinstance(value, dict) and any(is_parked(each) for each in value.values()):
            return {key: await self.unpark(each) for key, each in value.items()}
        if isinstance(value, list) and any(is_parked(each) for each in value):
            return [await self.unpark(each) for each in value]
        return value

    async def put_value(self, name: str, value: Any) -> Reference:
        """Store plain data."""
        return await self._put(name, value, _encode(value), {})

    # ── reading ─────────────────────────────────────────────────────────────────────────

    async def read(self, reference: Reference, *, limit: int | None) -> Any:
        """A stored payload as data; PayloadUnavailable when it is too large, missing or damaged."""
        size = reference.meta.bytes
        if limit is not None and size > limit:
            raise PayloadUnavailable(
                f"the stored payload has {size:,} bytes, more than limits.max_hydrate_bytes ({limit:,}) allows in a "
                "template; read the part you need with `kind: resolve` (select, limit, offset)",
                kind="limit",
            )
        content_type = reference.meta.content_type.partition(";")[0].strip().lower()
        if content_type == JSON:
            return msgspec.json.decode(b"".join([chunk async for chunk in self._results.open(reference)]))
        from noetl.data.formats import format_of
        from noetl.data.payload_reader import Part, TooLarge, read_part

        try:
            return await read_part(
                _Stored(self._results, reference),
                format_of(content_type=content_type, default="text"),
                Part(),
                most=size if limit is None else limit,
            )
        except UnicodeDecodeError:
            raise PayloadUnavailable(
                f"the stored payload is {content_type} and not text; read it with `kind: resolve`",
                kind="ref.unresolved",
            ) from None
        except TooLarge as problem:
            raise PayloadUnavailable(f"{problem}; read the part you need with `kind: resolve`", kind="limit") from None

    async def _put(self, name: str, data: Any, encoded: bytes, wish: Mapping[str, Any]) -> Reference:
        store = self._results
        kind = wish.get("kind")
        if kind is not None and isinstance(self._results, ResultStores):
            store = self._results.of(str(kind))
        rows, columns = _table_shape(data)
        ttl = wish.get("ttl")
        return await store.put(
            name,
            _in_chunks(encoded),
            content_type=JSON,
            rows=rows,
            columns=columns,
            ttl=None if ttl is None else str(ttl),
        )


class _Stored:
    """A stored payload as `drivers.reading` takes it."""

    def __init__(self, results: ResultStore, reference: Reference) -> None:
        self.size = reference.meta.bytes
        self._results = results
        self._reference = reference

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self._results.open(self._reference):
            yield chunk

    async def read(self, start: int, count: int) -> bytes:
        return b"".join([chunk async for chunk in self._results.open(self._reference, offset=start, length=count)])


class _Parker:
    """Puts the large parts of one position into the store."""

    def __init__(self, payloads: Payloads, name: str, parked: dict[int, tuple[Any, Any]]) -> None:
        self._payloads = payloads
        self._name = name
        self._parked = parked

    async def event(self, event: Event) -> Event:
        if isinstance(event, TaskDone):
            position = None if event.position is None else await self.position(event.position)
            patch = {
                scope: values if scope == "ctx" else await self.mapping(values) for scope, values in event.patch.items()
            }
            return replace(event, position=position, patch=patch)
        if isinstance(event, IterationDone | IterationFailed):
            return replace(event, step_patch=await self.mapping(event.step_patch))
        if isinstance(event, ChildRequested) and event.position is not None:
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
        """A finished task's outcome: its data by a real reference, so that views read it on demand."""
        if outcome.ref is not None or outcome.data is None or len(_encode(outcome.data)) < _WORTH_PARKING:
            return outcome
        known = self._parked.get(id(outcome))
        if known is not None:
            slim: Outcome = known[1]
            return slim
        reference = await self._payloads.put_value(self._name, outcome.data)
        slim = replace(outcome, data=None, ref=reference)
        self._parked[id(outcome)] = (outcome, slim)
        return slim

    async def mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: await self.value(value) for key, value in values.items()}

    async def value(self, value: Any) -> Any:
        if type(value) in _SMALL_TYPES or is_parked(value) or len(_encode(value)) < _WORTH_PARKING:
            return value
        known = self._parked.get(id(value))
        if known is None:
            reference = await self._payloads.put_value(self._name, value)
            # The value itself is kept beside its marker: an id is only its while it lives.
            known = self._parked[id(value)] = (value, {STORED: plain(reference)})
        return known[1]


def _private_size(event: Event) -> int:
    """Bytes of what only this run reads again."""
    if isinstance(event, TaskDone):
        if event.position is None and not event.patch:
            return 0
        return len(_encode((event.position, event.patch.get("iter"), event.patch.get("step"))))
    if isinstance(event, IterationDone | IterationFailed):
        return len(_encode(event.step_patch)) if event.step_patch else 0
    if isinstance(event, ChildRequested):
        return len(_encode(event.position))
    return 0


def is_parked(value: Any) -> bool:
    """Whether a value is the marker of one that lies in the store."""
    return isinstance(value, dict) and len(value) == 1 and STORED in value


def extracts_of(outcome: Outcome, paths: Sequence[str], limit: int) -> dict[str, Any]:
    """The parts that travel beside a reference, as long as they stay within the limit together."""
    wanted = tuple(dict.fromkeys(path for path in paths if path and path != ALL and not _is_whole(path)))
    if not wanted:
        return {}
    kept: dict[str, Any] = {}
    room = limit
    for path, value in extract(outcome, wanted).items():
        room -= len(_encode(value)) + len(path)
        if room < 0:
            break
        kept[path] = value
    return kept


def _wish(policy: OutputPolicy) -> Mapping[str, Any] | None:
    """The store a playbook asks for; None when it leaves that to the size."""
    if not policy.store:
        return None
    kind = str(policy.store.get("kind") or policy.store.get("type") or "").lower()
    return None if kind in _INLINE_STORES else {**policy.store, "kind": kind}


def _is_whole(path: str) -> bool:
    return path in ("data", "ref", "_ref", "status", "error", "meta")


def _table_shape(data: Any) -> tuple[int | None, list[str] | None]:
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        return None, None
    first = rows[0] if rows else None
    return len(rows), [str(column) for column in first] if isinstance(first, dict) else None


def _slim_envelope(outcome: Outcome, limit: int) -> Outcome:
    """An outcome whose words around the data stay within bounds too: long texts are cut."""
    if not outcome.helpers and outcome.error is None:
        return outcome
    changes: dict[str, Any] = {}
    if outcome.helpers and len(_encode(outcome.helpers)) > limit:
        changes["helpers"] = {
            name: {key: value if len(_encode(value)) <= _WORTH_PARKING else None for key, value in helper.items()}
            for name, helper in outcome.helpers.items()
        }
    problem = outcome.error
    if problem is not None:
        cut = problem
        if len(problem.message) > _LONGEST_MESSAGE:
            cut = replace(cut, message=problem.message[:_LONGEST_MESSAGE] + "... (cut)")
        if problem.details and len(_encode(problem.details)) > limit:
            cut = replace(cut, details={k: v for k, v in problem.details.items() if len(_encode(v)) <= _WORTH_PARKING})
        if cut is not problem:
            changes["error"] = cut
    return replace(outcome, **changes) if changes else outcome


def _instead(outcome: Outcome, kind: str, message: str) -> Outcome:
    return Outcome(status="error", error=error_info(kind, message), meta=outcome.meta)


def _kind_of(problem: NoetlError) -> str:
    if isinstance(problem, RequestRefused):
        return "storage.access"
    kind = getattr(problem, "kind", "storage.access" if isinstance(problem, StoreUnavailable) else "unknown")
    return kind if kind in ERROR_KINDS else "unknown"


async def _in_chunks(encoded: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(encoded), CHUNK):
        yield encoded[start : start + CHUNK]
    if not encoded:
        yield b""
