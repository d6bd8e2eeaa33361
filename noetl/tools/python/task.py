"""Runs the author's Python code in a warm process (`process_pool.py`, `child/`).

The code reads every input of its task, and below them those of its step or block, as a global (and all of them as
`input`, `input_data`, `args`), and all scopes as `context`.
Its output is the variable `result`, the return value of `main(...)`, or a top-level `return`.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import re
import signal
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.runtime.resources import per_loop
from noetl.tools._common.process_limits import scaled_limit
from noetl.tools._common.scripts import ScriptUnavailable, read_script
from noetl.tools.python.interpreter_changes import interpreter_changes
from noetl.tools.python.process import ProcessEnded
from noetl.tools.python.process_pool import IsolationUnavailable, PythonPool
from noetl.tools.python.spec import MAX_LOG, MAX_OUTPUT, MEMORY_MB, NULLS

OUTCOME_LOG = 8 * 1024  # characters of printed output in the outcome, as `output.meta.log`
MAX_LINE = 2_000
MESSAGE_CHARS = 4000
# Names of scopes; other names in `call.scopes` are results of steps and tasks.
SCOPES = frozenset(
    {"workload", "ctx", "iter", "step", "args", "input", "output", "execution_id", "job", "loop_index", "event"}
    | {"_prev", "_task", "_attempt", "_visit"}
)


async def run(call: ToolCall) -> Outcome:
    """Run the code (or the callable), and add the last lines of its output to the outcome."""
    log = _Log(call)
    outcome = await _execute(call, log)
    return replace(outcome, meta={**outcome.meta, "log": log.text()}) if log.last_lines else outcome


async def _execute(call: ToolCall, log: _Log) -> Outcome:
    request = await _build_request(call)
    if isinstance(request, Outcome):
        return request
    frame = _encode_request(request)
    if isinstance(frame, Outcome):
        return frame
    pool = per_loop(PythonPool, PythonPool)
    try:
        reply = await pool.call(
            frame,
            on_line=log,
            timeout=call.timeout.total,
            isolation=call.spec.get("isolation"),
            fresh=bool(call.spec.get("fresh")),
            owner=call.playbook,
            mark=call.task_run_id,
            code=None if request["retire"] else request["code"] or request["callable"],
        )
    except TimeoutError:
        message = f"the code ran longer than {call.timeout.total:g} s (spec.timeout); its process was killed"
        return _failure("timeout", message)
    except ProcessEnded as end:
        return _exit_failure(end.status, request["limits"])
    except IsolationUnavailable as missing:
        return _failure("client_error", str(missing))
    if reply.ok:
        return ok(msgspec.json.decode(reply.body), py=dict(NULLS))
    return _exception_failure(call, request, msgspec.json.decode(reply.body))


async def _build_request(call: ToolCall) -> dict[str, Any] | Outcome:
    """The request for the process, or the error outcome if the fields are invalid."""
    inputs = dict(call.input)
    code = inputs.pop("code", None)
    env = inputs.pop("env") if isinstance(inputs.get("env"), Mapping) else None
    libs = inputs.pop("libs") if isinstance(inputs.get("libs"), list | Mapping) else None
    args = inputs.pop("args") if isinstance(inputs.get("args"), Mapping) else None
    function = None
    if code is None and isinstance(inputs.get("script"), Mapping):
        try:
            async with asyncio.timeout(call.timeout.total):
                code = await read_script(call, inputs.pop("script"))
        except ScriptUnavailable as failure:
            return _failure(failure.kind, str(failure))
    elif code is None and inputs.get("module"):
        module, _, name = str(inputs.pop("module")).partition(":")
        name = str(inputs.pop("callable", None) or name or "main")
        function = name if ":" in name else f"{module}:{name}"
    elif code is None and ":" in str(inputs.get("callable") or ""):
        function = str(inputs.pop("callable"))
    if function is None and not isinstance(code, str):
        return _failure("schema", "nothing to run: set `code`, `script: {uri}`, or `module` and `callable`")
    if args:
        inputs = {**inputs, **args}
    around = call.scopes.get("input")
    if around:
        inputs = {**around, **inputs}
    try:
        limits = _read_limits(call.spec.get("limits"))
        max_bytes = int(call.spec.get("max_output_bytes") or MAX_OUTPUT)
    except (TypeError, ValueError) as wrong:
        return _failure("schema", f"spec of a python task: {wrong}")
    changes = interpreter_changes(code or "", _library_names(libs))
    return {
        "code": code,
        "retire": changes.lasting,
        "restore": changes.restored,
        "callable": function,
        "inputs": inputs,
        "scopes": _readable_scopes(call, code),
        "libs": libs,
        "env": {str(name): str(value) for name, value in env.items()} if env else None,
        "folder": _playbook_folder(call),
        "limits": limits,
        "mark": call.task_run_id,
        "max_bytes": max_bytes,
    }


def _library_names(libs: Any) -> tuple[tuple[str, str], ...]:
    """The names that `libs` binds, each with its module."""
    entries = libs.items() if isinstance(libs, Mapping) else ((None, each) for each in libs or ())
    found = []
    for alias, entry in entries:
        if isinstance(entry, str):
            module, _, renamed = entry.partition(" as ")
            found.append((renamed.strip() or alias or module.strip().partition(".")[0], module.strip()))
    return tuple(found)


def _encode_request(request: dict[str, Any]) -> bytes | Outcome:
    """The request in the wire format; values that `marshal` cannot encode are converted to JSON types first."""
    try:
        return marshal.dumps(request)
    except ValueError:
        try:
            plain = {
                name: msgspec.json.decode(msgspec.json.encode(request[name])) for name in ("inputs", "scopes", "libs")
            }
            return marshal.dumps({**request, **plain})
        except (TypeError, ValueError, RecursionError) as wrong:
            return _failure("schema", f"the input cannot be passed to the code: {wrong}")


def _readable_scopes(call: ToolCall, code: str | None) -> dict[str, Any]:
    """The scopes that the code can read. Most code reads none, and scopes can be large, so others are not sent."""
    if code is None or "context" in code or "results" in code:
        scopes = dict(call.scopes)
        scopes.setdefault("results", {name: value for name, value in scopes.items() if name not in SCOPES})
        return scopes
    read = _identifiers(code)
    read = (*read, "workload") if "ctx" in read else read
    return {name: call.scopes[name] for name in read if name in call.scopes}


@lru_cache(maxsize=1000)
def _identifiers(code: str) -> tuple[str, ...]:
    """Every identifier in the code; words in strings and comments are included."""
    return tuple(dict.fromkeys(_IDENTIFIER.findall(code)))


_IDENTIFIER = re.compile(r"[^\W\d]\w*")


_is_folder = lru_cache(maxsize=1000)(os.path.isdir)  # the folder of a playbook does not change


def _playbook_folder(call: ToolCall) -> str | None:
    """The folder of the playbook, if it exists on this machine."""
    folder = call.host.resolve_path(".")
    return folder if _is_folder(folder) else None


def _read_limits(given: Any) -> dict[str, int]:
    if given is None:
        return _DEFAULT_LIMITS
    if not isinstance(given, Mapping):
        raise TypeError("`limits` must be a mapping: {memory_mb, cpu_s, open_files, file_size_mb, processes}")
    wanted = {"memory_mb": MEMORY_MB, **given}
    scales = {"memory_mb": ("memory", 1 << 20), "cpu_s": ("cpu", 1), "open_files": ("files", 1)}
    scales |= {"file_size_mb": ("file_size", 1 << 20), "processes": ("processes", 1)}
    limits = {}
    for name, value in wanted.items():
        if name not in scales:
            raise ValueError(f"unknown limit `{name}`; valid limits: {', '.join(scales)}")
        if value is None:
            continue
        key, scale = scales[name]
        limits[key] = scaled_limit(name, value, scale)
    return limits


_DEFAULT_LIMITS = _read_limits({})


class _Log:
    """Forwards output lines to the host, up to a limit; keeps the last lines for the outcome."""

    def __init__(self, call: ToolCall) -> None:
        self.host = call.host
        self.last_lines: deque[str] = deque()
        self._size = 0
        self._truncated = False
        self.remaining = int(call.spec.get("max_log_bytes") or MAX_LOG)

    def __call__(self, line: str, stream: str) -> None:
        if self.remaining < 0:
            return
        self.remaining -= len(line) + 1
        if self.remaining < 0:
            line = "... log truncated (spec.max_log_bytes)"
        self.host.log(line, stream=stream)
        if len(line) > MAX_LINE:
            line = self.host.mask(line)[:MAX_LINE] + " ..."
        self.last_lines.append(line)
        self._size += len(line) + 1
        while self._size > OUTCOME_LOG and self.last_lines:
            self._size -= len(self.last_lines.popleft()) + 1
            self._truncated = True

    def full(self) -> bool:
        """Whether no more lines should be read for now."""
        return self.remaining >= 0 and self.host.log_full()

    async def room(self) -> None:
        """Return when more lines can be read."""
        await self.host.log_room()

    def text(self) -> str:
        """The last lines; secrets are masked with the rest of the outcome."""
        return ("... (earlier lines are in the task log)\n" if self._truncated else "") + "\n".join(self.last_lines)


# ── error outcomes ──────────────────────────────────────────────────────────────────────


def _failure(kind: str, message: str, **details: Any) -> Outcome:
    return error(kind, message, details=details, py=dict(NULLS))


def _exception_failure(call: ToolCall, request: Mapping[str, Any], reply: Mapping[str, Any]) -> Outcome:
    """An exception of the code, with the line numbers of the author's file."""
    file, first = _code_location(call)
    source = (request["code"] or "").splitlines()
    trace = []
    line = None
    for number, function in reply.get("frames") or []:
        line = number + first - 1 if number else None
        text = source[number - 1].strip() if number and number <= len(source) else ""
        trace.append(f"{file}:{line}" + (f" in {function}" if function else "") + (f": {text}" if text else ""))
    kind, type_name = reply["kind"], reply["type"]
    message = reply["message"]
    if kind == "limit" and type_name == "MemoryError":
        megabytes = request["limits"].get("memory", 0) >> 20
        message = f"memory limit exceeded: spec.limits.memory_mb is {megabytes}"
    elif type_name and type_name != "SystemExit":
        message = f"{type_name}: {message}" if message else type_name
    message = call.host.mask(message)
    if len(message) > MESSAGE_CHARS:
        message = message[:MESSAGE_CHARS] + " ..."
    if line is not None:
        message = f"{message} ({file}:{line})"
    details = {"exception_type": type_name, "line": line, "traceback": trace, "raised_in": reply.get("library")}
    if reply.get("cause"):
        details["cause"] = call.host.mask(reply["cause"])[:MESSAGE_CHARS]
    details = {name: value for name, value in details.items() if value}
    return error(kind, message, details=details, py={"exception_type": type_name, "line": line})


def _code_location(call: ToolCall) -> tuple[str, int]:
    """The file that contains the code, and the line on which the code starts."""
    script = call.input.get("script")
    if isinstance(script, Mapping) and call.input.get("code") is None:
        return str(script.get("uri") or "script"), 1
    if call.code_line is None:
        return "code", 1
    return call.where.rsplit(":", 2)[0] or "code", call.code_line


def _exit_failure(status: int, limits: Mapping[str, int]) -> Outcome:
    """The process exited before it replied."""
    if status >= 0:
        return _failure("python", f"the code ended its process with exit status {status}", exit_status=status)
    name = signal.Signals(-status).name
    if -status == signal.SIGXCPU:
        return _failure("limit", f"CPU time limit exceeded: spec.limits.cpu_s is {limits.get('cpu')}", signal=name)
    if -status == signal.SIGXFSZ:
        return _failure("limit", "file size limit exceeded (spec.limits.file_size_mb)", signal=name)
    hint = "; the machine may be out of memory" if -status == signal.SIGKILL else ""
    return _failure("python", f"the process was killed by {name}{hint}", signal=name)
