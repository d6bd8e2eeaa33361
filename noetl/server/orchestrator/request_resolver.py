"""Resolves the data requests of a decision before it is appended.

The engine performs no I/O, so it returns requests. A value that is too large for the log is put into the result
store *before* the append that refers to it; a payload that a server-side template reads is fetched, up to the
playbook's `max_hydrate_bytes`, but never more than its default, because all executions share the memory; steps that
a running step synthesized pass the validator of every playbook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from noetl.core.engine.effects import DataRequest, FetchPayload, StorePayload, Synthesized, ValidateSynthesis
from noetl.core.model.playbook import STATE_KEY, Limits, Playbook, Step
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolSpec
from noetl.data.files.formats import format_of
from noetl.errors import PayloadUnavailable
from noetl.storage.ports.results import ResultStore

MOST_BYTES = Limits().max_hydrate_bytes


class RequestResolver:
    """Resolves the engine's data requests with the result store and the validator."""

    def __init__(self, results: ResultStore, specs: Callable[[], Mapping[str, ToolSpec]]) -> None:
        self._results = results
        self._specs = specs

    async def resolve(self, requests: Sequence[DataRequest], execution_id: str, playbook: Playbook) -> dict[str, Any]:
        """One answer per request key; the answer for an unavailable payload is the exception."""
        answers = await asyncio.gather(*(self._resolve_one(each, execution_id, playbook) for each in requests))
        return {request.key: answer for request, answer in zip(requests, answers, strict=True)}

    async def _resolve_one(self, request: DataRequest, execution_id: str, playbook: Playbook) -> Any:
        if isinstance(request, StorePayload):
            return await self._store(request, execution_id)
        if isinstance(request, FetchPayload):
            try:
                return await self.hydrate(
                    request.reference, min(playbook.executor.limits.max_hydrate_bytes, MOST_BYTES)
                )
            except PayloadUnavailable as unavailable:
                return unavailable
        if isinstance(request, ValidateSynthesis):
            return validate_synthesis(request, playbook, self._specs())
        raise TypeError(f"no resolver for the data request {type(request).__name__}")

    async def _store(self, request: StorePayload, execution_id: str) -> Reference:
        data = self._joined(request.parts) if request.parts else _single(request.data)
        return await self._results.put(
            f"{execution_id}/{request.key}", data, content_type=request.content_type, rows=request.rows
        )

    async def _joined(self, parts: Sequence[Reference | bytes]) -> AsyncIterator[bytes]:
        """The elements of several JSON lists as one JSON list, streamed."""
        yield b"["
        separator = b""
        for part in parts:
            begun = False
            async for piece in _inside(self._results.open(part) if isinstance(part, Reference) else _single(part)):
                yield piece if begun else separator + piece
                begun, separator = True, b","
        yield b"]"

    async def hydrate(self, reference: Reference, limit: int) -> Any:
        """The data of a reference; PayloadUnavailable if it has more than `limit` bytes, stored or decoded."""
        size = reference.meta.bytes
        if size > limit:
            raise PayloadUnavailable(
                f"a stored payload of {size} bytes is larger than limits.max_hydrate_bytes ({limit}"
                f"{', the most for templates of the server' if limit == MOST_BYTES else ''}); "
                "read the part you need with a task of kind: resolve",
                kind="limit",
            )
        format = format_of(content_type=reference.meta.content_type)
        if format in ("parquet", "arrow"):
            return await self._table(reference, format, limit)
        data = b"".join([chunk async for chunk in self._results.open(reference)])
        return decoded(data, reference.meta.content_type)

    async def _table(self, reference: Reference, format: str, limit: int) -> Any:
        """The rows of a table, which may be many times as large as its bytes."""
        from noetl.data.payload_reader import Part, StoredPayload, TooLarge, read_part

        try:
            return await read_part(StoredPayload(reference, self._results.open), format, Part(), most=limit)
        except TooLarge as problem:
            message = f"{problem}; read the part you need with a task of kind: resolve"
            raise PayloadUnavailable(message, kind="limit") from None
        except ValueError as problem:
            raise PayloadUnavailable(f"a stored payload is not valid {format}: {problem}", kind="ref.corrupt") from None


async def _single(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _inside(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes of a JSON list without its brackets; the last byte is held back until another one follows."""
    held = b""
    opened = False
    async for chunk in chunks:
        if not opened and chunk:
            chunk, opened = chunk[1:], True
        held += chunk
        if len(held) > 1:
            yield held[:-1]
            held = held[-1:]


def decoded(data: bytes, content_type: str) -> Any:
    """Stored bytes as data that a template can read."""
    kind = content_type.partition(";")[0].strip()
    if kind == "application/json":
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as problem:
            raise PayloadUnavailable(f"a stored payload is not valid JSON: {problem}", kind="ref.corrupt") from None
    from noetl.data.files import formats, table_files

    format = formats.format_of(content_type=kind)
    if format in formats.TABULAR:
        try:
            return table_files.decode(data, format)
        except ValueError as problem:
            raise PayloadUnavailable(f"a stored payload is not valid {format}: {problem}", kind="ref.corrupt") from None
    if kind.startswith("text/"):
        return data.decode(errors="replace")
    raise PayloadUnavailable(
        f"a stored payload of type {kind} cannot be read by a template; use a task of kind: resolve"
    )


def validate_synthesis(request: ValidateSynthesis, playbook: Playbook, specs: Mapping[str, ToolSpec]) -> Synthesized:
    """Compile steps that a running step returned as data; the result has the steps or the problems.

    The data is a list of steps, or a mapping with `workflow` (or `steps`) and optionally `entry`."""
    from noetl.core.language.compile import compile_steps

    nodes, entry = request.nodes, None
    if isinstance(nodes, Mapping):
        entry = nodes.get("entry") or nodes.get("entry_step")
        nodes = nodes.get("workflow", nodes.get("steps"))
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        return Synthesized(problems=(f"expected a list of steps, got {type(nodes).__name__}",))
    if len(nodes) > request.max_steps:
        return Synthesized(problems=(f"{len(nodes)} steps are more than the limit of {request.max_steps}",))
    earlier = [Step(name=name) for name in request.known if name not in playbook.steps_by_name]
    whole = msgspec.structs.replace(playbook, steps=(*playbook.steps, *earlier)) if earlier else playbook
    steps, diagnostics = compile_steps(list(nodes), whole, specs)
    problems = [f"{d.message} [{d.code}]" for d in diagnostics if d.severity == "error"]
    if not playbook.uses_state and any(_writes_state(step) for step in steps):
        problems.append("the steps write state, and the playbook has none; write `executor.spec.state` in the playbook")
    names = [step.name for step in steps]
    if entry is not None and entry not in names:
        problems.append(f"entry {entry!r} is not one of the new steps")
    if problems:
        return Synthesized(problems=tuple(problems))
    return Synthesized(steps=steps, entry=entry or names[0])


def _writes_state(step: Step) -> bool:
    arcs = step.router.arcs
    rules = [rule.then for task in step.tasks for rule in task.rules or ()]
    sets = [step.assignments, *(task.assignments for task in step.tasks)]
    sets += [*(arc.assignments for arc in arcs), *(rule.assignments for rule in rules)]
    return any(each.keys[0].startswith(STATE_KEY) for found in sets for each in found)
