"""Runtimes: clusters of other systems that execute the tasks of a worker (`noetl worker start --runtime ray://...`).

The worker leases runs, executes their pipelines and reports, as always; the calls of some kinds are executed on the
cluster. So leases, fencing, attempts and timeouts are those of every worker. A runtime is a plug-in: an entry point of
the group `noetl.runtimes`, named like the scheme of its URL, that refers to a function `open(url) -> Runtime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import RemoteTask, Runtime, ToolCall, ToolFunction
from noetl.errors import RequestRefused, WorkerLost
from noetl.tools._common.remote import Message
from noetl.tools._common.scripts import ScriptUnavailable, read_script
from noetl.tools.registry import load as load_tool
from noetl.worker.host import TaskHost

GROUP = "noetl.runtimes"
KINDS = frozenset({"python", "shell"})  # executed on the cluster; others need the services of the worker

_encode = msgspec.json.Encoder().encode
_decode_message = msgspec.json.Decoder(Message).decode


def open_runtime(url: str) -> Runtime:
    """Connect to the cluster of a URL; RequestRefused if no installed plug-in has its scheme."""
    from importlib.metadata import entry_points

    scheme = urlsplit(url).scheme
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        hint = f"install the plug-in noetl-{scheme}" if scheme else "a URL such as ray://HOST:6379 is required"
        raise RequestRefused(f"there is no runtime for {url!r}: {hint} (installed runtimes: {known})")
    opened: Runtime = found[scheme].load()(url)
    return opened


class RemoteTools(Struct, eq=False):
    """Loads tools as `tools.registry.load` does; calls of `KINDS` are executed by a runtime."""

    _runtime: Runtime

    def load(self, kind: str) -> ToolFunction:
        """The function of a kind."""
        return self._call if kind in KINDS else load_tool(kind)

    async def _call(self, call: ToolCall) -> Outcome:
        try:
            task = await _remote_task(call)
        except ScriptUnavailable as failure:
            return error(failure.kind, str(failure))
        outcome = None
        try:
            async for data in self._runtime.run(task):
                message = _decode_message(data)
                for stream, line in message.lines:
                    call.host.log(line, stream=stream)
                outcome = message.outcome or outcome
        except WorkerLost as lost:
            if call.spec.get("effect") == "at_most_once":
                return error("ambiguous", f"{lost}; the task may have had its effect")
            raise
        if outcome is None:
            raise WorkerLost("the remote task ended without an outcome")
        return outcome


async def _remote_task(call: ToolCall) -> RemoteTask:
    """The call as data; scripts are read here, because their files are on this machine."""
    given = dict(call.input)
    script = given.get("script")
    if isinstance(script, Mapping):
        given["code" if call.kind == "python" else "command"] = await read_script(call, script)
        del given["script"]
    scopes = _sent_scopes(call, given)
    return RemoteTask(
        kind=call.kind,
        input=given,
        spec=call.spec,
        execution_id=call.execution_id,
        step=call.step,
        task=call.task,
        task_run_id=call.task_run_id,
        attempt=call.attempt,
        timeout=call.timeout,
        scopes=scopes,
        where=call.where,
        code_line=call.code_line,
        playbook=call.playbook,
        labels=dict(label.partition("=")[::2] for label in call.labels),
        cost=call.cost,
        secrets=cast(TaskHost, call.host).secrets_in(_encode([given, scopes]).decode()),
    )


def _sent_scopes(call: ToolCall, given: Mapping[str, Any]) -> dict[str, Any]:
    """The scopes that the tool can read: python code that names `context` or `results` all, others the step's input."""
    code = given.get("code")
    if call.kind == "python" and (not isinstance(code, str) or "context" in code or "results" in code):
        return dict(call.scopes)
    around = call.scopes.get("input")
    return {"input": around} if around else {}
