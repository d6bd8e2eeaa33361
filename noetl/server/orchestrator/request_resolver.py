"""What a decision needs before it may be written: large values stored, stored values fetched.

The engine decides without I/O, so it asks. A collection or a collected output that is too large
for the log is kept in the result store *before* the append that refers to it; a payload that a
server-side template reads is fetched, up to the playbook's `max_hydrate_bytes`; workflow
nodes that a step made are checked by the validator every playbook passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from noetl.core.engine.effects import DataRequest, FetchPayload, StorePayload, Synthesized, ValidateSynthesis
from noetl.core.model.playbook import Playbook, Step
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolSpec
from noetl.errors import PayloadUnavailable
from noetl.storage.ports.results import ResultStore


class RequestResolver:
    """Answers the engine's needs."""

    def __init__(self, results: ResultStore, specs: Callable[[], Mapping[str, ToolSpec]]) -> None:
        self._results = results
        self._specs = specs

    async def answers(self, needs: Sequence[DataRequest], execution_id: str, playbook: Playbook) -> dict[str, Any]:
        """An answer for the key of every need; a payload that cannot be had is answered with the exception."""
        answers = await asyncio.gather(*(self._answer(need, execution_id, playbook) for need in needs))
        return {need.key: answer for need, answer in zip(needs, answers, strict=True)}

    async def _answer(self, need: DataRequest, execution_id: str, playbook: Playbook) -> Any:
        if isinstance(need, StorePayload):
            return await self._keep(need, execution_id)
        if isinstance(need, FetchPayload):
            try:
                return await self.hydrate(need.reference, playbook.executor.limits.max_hydrate_bytes)
            except PayloadUnavailable as unavailable:
                return unavailable
        if isinstance(need, ValidateSynthesis):
            return synthesized(need, playbook, self._specs())
        raise TypeError(f"the engine needs a {type(need).__name__}, which nobody answers")

    async def _keep(self, need: StorePayload, execution_id: str) -> Reference:
        async def chunks() -> AsyncIterator[bytes]:
            yield need.data

        data = self._joined(need.parts) if need.parts else chunks()
        return await self._results.put(
            f"{execution_id}/{need.key}", data, content_type=need.content_type, rows=need.rows
        )

    async def _joined(self, parts: Sequence[Reference | bytes]) -> AsyncIterator[bytes]:
        """The elements of several JSON lists as one list, streamed."""
        yield b"["
        separator = b""
        for part in parts:
            begun = False
            async for piece in _inside(self._results.open(part) if isinstance(part, Reference) else _one(part)):
                yield piece if begun else separator + piece
                begun, separator = True, b","
        yield b"]"

    async def hydrate(self, reference: Reference, limit: int) -> Any:
        """The data behind a reference, if it is small enough."""
        size = reference.meta.bytes
        if size > limit:
            raise PayloadUnavailable(
                f"a stored payload of {size} bytes is larger than limits.max_hydrate_bytes ({limit}); "
                "take the part you need with a task of kind: resolve",
                kind="limit",
            )
        data = b"".join([chunk async for chunk in self._results.open(reference)])
        return decoded(data, reference.meta.content_type)


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _inside(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A JSON list without its brackets; the last byte is held back until another one follows."""
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
    """Stored bytes as data a template can read."""
    kind = content_type.partition(";")[0].strip()
    if kind == "application/json":
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as problem:
            raise PayloadUnavailable(
                f"a stored payload is not the JSON it should be: {problem}", kind="ref.corrupt"
            ) from None
    from noetl.data import formats, table_files

    format = formats.format_of(content_type=kind)
    if format in formats.TABULAR:
        return table_files.decode(data, format)
    if kind.startswith("text/"):
        return data.decode(errors="replace")
    raise PayloadUnavailable(
        f"a stored payload of type {kind} cannot be read by a template; use a task of kind: resolve"
    )


def synthesized(need: ValidateSynthesis, playbook: Playbook, specs: Mapping[str, ToolSpec]) -> Synthesized:
    """Steps that a running step made as data, checked like any author's; or what is wrong with them.

    The data is a list of steps, or a mapping with `workflow` (or `steps`) and perhaps `entry`."""
    from noetl.core.language.compile import compile_steps

    nodes, entry = need.nodes, None
    if isinstance(nodes, Mapping):
        entry = nodes.get("entry") or nodes.get("entry_step")
        nodes = nodes.get("workflow", nodes.get("steps"))
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        return Synthesized(problems=(f"expected a list of steps, got {type(nodes).__name__}",))
    if len(nodes) > need.max_steps:
        return Synthesized(problems=(f"{len(nodes)} steps are more than the limit of {need.max_steps}",))
    earlier = [Step(name=name) for name in need.known if name not in playbook.steps_by_name]
    whole = msgspec.structs.replace(playbook, steps=(*playbook.steps, *earlier)) if earlier else playbook
    steps, diagnostics = compile_steps(list(nodes), whole, specs)
    problems = [f"{d.message} [{d.code}]" for d in diagnostics if d.severity == "error"]
    problems += [
        f"step {step.name!r} uses kind {task.kind!r}; allowed are {', '.join(need.kinds)}"
        for step in steps
        for task in step.tasks
        if need.kinds and task.kind not in need.kinds
    ]
    names = [step.name for step in steps]
    if entry is not None and entry not in names:
        problems.append(f"entry {entry!r} is none of the new steps")
    if problems:
        return Synthesized(problems=tuple(problems))
    return Synthesized(steps=steps, entry=entry or (names[0] if names else None))
