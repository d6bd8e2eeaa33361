"""Run the author's Python in a warm process of its own: killed on timeout, limited, isolated.

What the code sees: every input as a global (also together as `input`, `input_data`, `args`), and
`context` with all scopes. What it answers: the variable `result`, or what `main(...)` returns, or a
top-level `return`. The process side is `drivers/python_child.py`.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import Field, ToolCall, ToolSpec

MEMORY_MB = 4096
MOST_OUTPUT = 256 * 1024 * 1024
MOST_LOG = 1024 * 1024
LOG_WITH_OUTCOME = 8 * 1024  # characters of printed output that go with the outcome, as `output.meta.log`
LONGEST_LINE = 2_000
MESSAGE_CHARS = 4000
# Scopes by their own names; what else code can look at by name are results of steps and tasks.
SCOPES = frozenset(
    {"workload", "ctx", "iter", "step", "args", "input", "output", "execution_id", "job", "loop_index", "event"}
    | {"_prev", "_task", "_attempt", "_visit"}
)

SPEC = ToolSpec(
    kind="python",
    doc="Runs Python code in a warm process of its own. Every input is a global of the code; the output is "
    "the variable `result`, or what `main(...)` returns (called with the inputs its parameters name), or a "
    "top-level `return`. What the code prints becomes log lines.",
    fields={
        "code": Field("code", "The code; never rendered as a template, its data comes through `input`.", raw=True),
        "script": Field("mapping", "Code from elsewhere: `{uri, source?}` (beside the playbook, http, object store)."),
        "module": Field("string", "A module to import instead of code, with `callable`; also `module:callable`."),
        "callable": Field("string", "The function of `module` to call with the inputs its parameters name."),
        "libs": Field("any", "Imported first: a map alias -> module, `{from, import}` entries, or a list."),
        "args": Field("mapping", "More inputs (the older spelling of `input`)."),
        "env": Field("mapping", "Environment variables for the code; otherwise it has almost none."),
    },
    spec_keys={
        "timeout": "Seconds after which the process is killed (`total`).",
        "limits": f"`memory_mb` ({MEMORY_MB}), `cpu_s`, `open_files`, `file_size_mb`, `processes`.",
        "isolation": "`process` (default) or `bwrap`: no network, read-only files, own process space.",
        "fresh": "`true`: a new process for every call, never a warm one.",
        "max_output_bytes": f"Largest result as JSON ({MOST_OUTPUT}).",
        "max_log_bytes": f"Printed output kept per call ({MOST_LOG}).",
    },
    helpers={"py": {"exception_type": None, "line": None}},
    open_fields=True,
    example='- name: score\n  kind: python\n  input:\n    rating: "{{ workload.rating }}"\n  code: |\n'
    "    def main(rating):\n        return {'score': rating * 10}\n",
)


async def run(call: ToolCall) -> Outcome:
    """Run the code (or the callable) once."""
    log = _Log(call)
    outcome = await _ran(call, log)
    return replace(outcome, meta={**outcome.meta, "log": log.text()}) if log.kept else outcome


async def _ran(call: ToolCall, log: _Log) -> Outcome:
    from noetl.runtime.resources import per_loop
    from noetl.tools.python.process_pool import IsolationUnavailable, ProcessEnded, PythonPool

    task = await _task_of(call)
    if isinstance(task, Outcome):
        return task
    frame = _frame(task)
    if isinstance(frame, Outcome):
        return frame
    pool = per_loop(PythonPool, PythonPool)
    try:
        answer = await pool.call(
            frame,
            on_line=log,
            timeout=call.timeout.total,
            isolation=call.spec.get("isolation"),
            fresh=bool(call.spec.get("fresh")),
        )
    except TimeoutError:
        message = f"the code ran longer than {call.timeout.total:g} s (spec.timeout), and its process was killed"
        return _failed("timeout", message)
    except ProcessEnded as end:
        return _ended(end.status, task["limits"])
    except IsolationUnavailable as missing:
        return _failed("client_error", str(missing))
    import msgspec

    if answer.ok:
        return ok(msgspec.json.decode(answer.body), py=dict(SPEC.helpers["py"]))
    return _raised(call, task, msgspec.json.decode(answer.body))


async def _task_of(call: ToolCall) -> dict[str, Any] | Outcome:
    """The request for the process, or why there is none."""
    inputs = dict(call.input)
    code = inputs.pop("code", None)
    env = inputs.pop("env") if isinstance(inputs.get("env"), Mapping) else None
    libs = inputs.pop("libs") if isinstance(inputs.get("libs"), list | Mapping) else None
    args = inputs.pop("args") if isinstance(inputs.get("args"), Mapping) else None
    function = None
    if code is None and isinstance(inputs.get("script"), Mapping):
        script = inputs.pop("script")
        if not script.get("uri"):
            return _failed("schema", "script needs a `uri`: the file, URL or object that holds the code")
        try:
            source = await call.host.fetch_source(str(script["uri"]), source=script.get("source"))
            code = source.decode("utf-8-sig")
        except UnicodeDecodeError:
            return _failed("parse", f"the script {script['uri']} is not UTF-8 text")
        except OSError as failure:
            return _failed("not_found", f"the script {script['uri']} cannot be read: {failure.strerror or failure}")
    elif code is None and inputs.get("module"):
        module, _, name = str(inputs.pop("module")).partition(":")
        name = str(inputs.pop("callable", None) or name or "main")
        function = name if ":" in name else f"{module}:{name}"
    elif code is None and ":" in str(inputs.get("callable") or ""):
        function = str(inputs.pop("callable"))
    if function is None and not isinstance(code, str):
        return _failed("schema", "there is nothing to run: give `code`, `script: {uri}`, or `module` and `callable`")
    if args:
        inputs = {**inputs, **args}
    try:
        limits = _limits(call.spec.get("limits"))
        most = int(call.spec.get("max_output_bytes") or MOST_OUTPUT)
    except (TypeError, ValueError) as wrong:
        return _failed("schema", f"spec of a python task: {wrong}")
    return {
        "code": code,
        "callable": function,
        "inputs": inputs,
        "scopes": _scopes(call, code),
        "libs": libs,
        "env": {str(name): str(value) for name, value in env.items()} if env else None,
        "folder": _folder(call),
        "limits": limits,
        "most_bytes": most,
    }


def _frame(request: dict[str, Any]) -> bytes | Outcome:
    """The request as it travels to the process: plain types only."""
    import marshal

    try:
        return marshal.dumps(request)
    except ValueError:
        import msgspec

        try:
            plain = {
                name: msgspec.json.decode(msgspec.json.encode(request[name])) for name in ("inputs", "scopes", "libs")
            }
            return marshal.dumps({**request, **plain})
        except (TypeError, ValueError, RecursionError) as wrong:
            return _failed("schema", f"the input cannot be handed to the code: {wrong}")


def _scopes(call: ToolCall, code: str | None) -> dict[str, Any]:
    """The scopes that the code can come to look at; few do, and they may be large."""
    if code is None or "context" in code or "results" in code:
        everything = dict(call.scopes)
        everything.setdefault("results", {name: value for name, value in everything.items() if name not in SCOPES})
        return everything
    scopes = call.scopes
    return {name: scopes[name] for name in _words_of(code) if name in scopes}


@lru_cache(maxsize=1000)
def _words_of(code: str) -> tuple[str, ...]:
    """Every name that stands in the code, and more words than that."""
    return tuple(dict.fromkeys(_WORD.findall(code)))


_WORD = re.compile(r"[^\W\d]\w*")


# Where a playbook lives does not change, and working it out costs as much as a tenth of a call.
_folders: dict[str, str | None] = {}


def _folder(call: ToolCall) -> str | None:
    """The playbook's folder."""
    file = call.where.rsplit(":", 2)[0]
    if not file or file not in _folders:
        import os

        folder = call.host.resolve_path(".")
        found = folder if os.path.isdir(folder) else None
        if not file:
            return found
        if len(_folders) > 1000:
            _folders.clear()
        _folders[file] = found
    return _folders[file]


def _limits(given: Any) -> dict[str, int]:
    if given is None:
        return _USUAL_LIMITS
    if not isinstance(given, Mapping):
        raise TypeError("`limits` is a mapping: {memory_mb, cpu_s, open_files, file_size_mb, processes}")
    wanted = {"memory_mb": MEMORY_MB, **given}
    scales = {"memory_mb": ("memory", 1 << 20), "cpu_s": ("cpu", 1), "open_files": ("files", 1)}
    scales |= {"file_size_mb": ("file_size", 1 << 20), "processes": ("processes", 1)}
    limits = {}
    for name, value in wanted.items():
        if name not in scales:
            raise ValueError(f"unknown limit `{name}`; there are {', '.join(scales)}")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | str) or float(value) <= 0:
            raise ValueError(f"limits.{name} is a positive number, not {value!r}")
        key, scale = scales[name]
        limits[key] = max(1, int(float(value) * scale))
    return limits


_USUAL_LIMITS = _limits({})


class _Log:
    """Lines of the code's output on their way to the host, up to a limit; the last ones stay with the outcome."""

    def __init__(self, call: ToolCall) -> None:
        self.host = call.host
        self.kept: deque[str] = deque()
        self._size = 0
        self._cut = False
        self.left = int(call.spec.get("max_log_bytes") or MOST_LOG)

    def __call__(self, line: str, stream: str) -> None:
        if self.left < 0:
            return
        self.left -= len(line) + 1
        if self.left < 0:
            line = "... more output is not kept (spec.max_log_bytes)"
        self.host.log(line, stream=stream)
        line = line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..."
        self.kept.append(line)
        self._size += len(line) + 1
        while self._size > LOG_WITH_OUTCOME and self.kept:
            self._size -= len(self.kept.popleft()) + 1
            self._cut = True

    def text(self) -> str:
        """The last lines; secrets are masked with the rest of the outcome."""
        return ("... (earlier lines are in the worker's log)\n" if self._cut else "") + "\n".join(self.kept)


# ── errors in the author's terms ────────────────────────────────────────────────────────


def _failed(kind: str, message: str, **details: Any) -> Outcome:
    return error(kind, message, details=details, py=dict(SPEC.helpers["py"]))


def _raised(call: ToolCall, task: Mapping[str, Any], said: Mapping[str, Any]) -> Outcome:
    """An exception of the code, at the line of the author's own text."""
    file, first = _place(call, task)
    source = (task["code"] or "").splitlines()
    trace = []
    line = None
    for number, function in said.get("frames") or []:
        line = number + first - 1 if number else None
        text = source[number - 1].strip() if number and number <= len(source) else ""
        trace.append(f"{file}:{line}" + (f" in {function}" if function else "") + (f": {text}" if text else ""))
    kind, type_name = said["kind"], said["type"]
    message = said["message"]
    if kind == "limit" and type_name == "MemoryError":
        megabytes = task["limits"].get("memory", 0) >> 20
        message = f"the code needs more memory than spec.limits.memory_mb ({megabytes})"
    elif type_name and type_name != "SystemExit":
        message = f"{type_name}: {message}" if message else type_name
    message = call.host.mask(message)
    if len(message) > MESSAGE_CHARS:
        message = message[:MESSAGE_CHARS] + " ..."
    if line is not None:
        message = f"{message} ({file}:{line})"
    details = {"exception_type": type_name, "line": line, "traceback": trace, "raised_in": said.get("library")}
    if said.get("cause"):
        details["cause"] = call.host.mask(said["cause"])[:MESSAGE_CHARS]
    details = {name: value for name, value in details.items() if value}
    return error(kind, message, details=details, py={"exception_type": type_name, "line": line})


def _place(call: ToolCall, task: Mapping[str, Any]) -> tuple[str, int]:
    """The file that holds the code and the line of it on which the code begins."""
    script = call.input.get("script")
    if isinstance(script, Mapping) and call.input.get("code") is None:
        return str(script["uri"]), 1
    if call.code_line is None:
        return "code", 1
    return call.where.rsplit(":", 2)[0] or "code", call.code_line


def _ended(status: int, limits: Mapping[str, int]) -> Outcome:
    """The process did not survive the code."""
    if status >= 0:
        return _failed("python", f"the code ended its process with exit status {status}", exit_status=status)
    name = signal.Signals(-status).name
    if -status == signal.SIGXCPU:
        return _failed(
            "limit", f"the code used more CPU time than spec.limits.cpu_s ({limits.get('cpu')})", signal=name
        )
    if -status == signal.SIGXFSZ:
        return _failed("limit", "the code wrote a larger file than spec.limits.file_size_mb", signal=name)
    hint = ": the machine may be out of memory" if -status == signal.SIGKILL else ""
    return _failed("python", f"the code's process was ended by {name}{hint}", signal=name)
