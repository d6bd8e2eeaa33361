"""Runs one call of kind `shell`: builds the command and its environment, and the outcome."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import msgspec

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.core.templates.binding import Bound, bound_parts, bound_text, whole_value
from noetl.errors import NoetlError
from noetl.runtime.descendants import VARIABLE
from noetl.tools._common.process_limits import scaled_limit
from noetl.tools._common.scripts import ScriptUnavailable, read_script
from noetl.tools.shell.child_process import Completed, OutputOptions, base_environment, run_program
from noetl.tools.shell.nested_shell import code_argument
from noetl.tools.shell.spec import LIMITS, SPEC
from noetl.tools.shell.value_binding import CannotBind, bind, check_arguments, check_whole

MAX_OUTPUT = 1024 * 1024
MAX_LOG = 16 * 1024 * 1024
GRACE_S = 1.0
MESSAGE_CHARS = 500
POSIX = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})


class InvalidTask(NoetlError):
    """The task cannot be started; the message names the field and the reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def run(call: ToolCall, fields: Mapping[str, Any]) -> Outcome:
    """Start the program that the (named) fields describe, and wait for it."""
    nulls = dict(SPEC.helpers["sh"])
    try:
        env = _environment(call, fields)
        cwd = _working_folder(call, fields)
        limits = _read_limits(call)
        output = OutputOptions(
            max_bytes=int(limits["max_output_bytes"]),
            on_line=_Log(call, int(limits["max_log_bytes"])),
            room=call.host.log_room,
            mask=call.host.mask,
        )
        with contextlib.ExitStack() as files:
            argv = await _argv(call, fields, env, files)
            _check_program(argv[0], env)
            argv = _limited(call.spec.get("limits"), argv)
            completed = await run_program(
                argv,
                env=env,
                cwd=cwd,
                stdin=_stdin(fields.get("stdin")),
                timeout=call.timeout.total,
                grace=limits["kill_grace"],
                output=output,
            )
    except InvalidTask as failure:
        return error(failure.kind, str(failure), sh=nulls)
    except CannotBind as failure:
        return error("schema", str(failure), sh=nulls)
    except OSError as failure:
        if failure.errno == errno.E2BIG:
            message = "the values of the command are too large for the environment of a program; pass them in `stdin`"
            return error("limit", message, sh=nulls)
        return error("shell", f"cannot start the command: {failure.strerror or failure}", sh=nulls)
    return _outcome(call, completed)


def _limited(given: Any, argv: list[str]) -> list[str]:
    """The command line with the limits of `spec.limits`, which its processes inherit and cannot raise."""
    if not given:
        return argv
    if not isinstance(given, Mapping) or set(given) - set(LIMITS):
        raise InvalidTask("schema", f"`limits` must be a mapping with {', '.join(LIMITS)}")
    settings = []
    for name, value in given.items():
        option, scale = LIMITS[name]
        if value is not None:
            try:
                settings.append(f"ulimit -{option} {scaled_limit(name, value, scale)}")
            except ValueError as problem:
                raise InvalidTask("schema", str(problem)) from None
    return ["/bin/sh", "-c", "; ".join([*settings, 'exec "$@"']), "noetl", *argv] if settings else argv


# ── command line ────────────────────────────────────────────────────────────────────────


async def _argv(
    call: ToolCall, fields: Mapping[str, Any], env: dict[str, str], files: contextlib.ExitStack
) -> list[str]:
    """The program and its arguments; bound values are added to `env`."""
    present = [name for name in ("command", "commands", "script") if fields.get(name) not in (None, "", [])]
    if len(present) != 1:
        found = " and ".join(f"`{name}`" for name in present) or "none"
        raise InvalidTask(
            "schema", f"a shell task requires exactly one of `command`, `commands`, `script`; found {found}"
        )
    arguments = [_data(each) for each in _as_list(fields.get("arguments"))]
    value = fields[present[0]]
    if present[0] == "script":
        return await _script_argv(call, value, str(fields.get("shell") or ""), arguments, env, files)
    shell = _shell(fields.get("shell"), env)
    whole = whole_value(value)
    if whole is not None:
        value = check_whole(whole)
    if isinstance(value, list) and value:
        check_arguments(value, is_program=present[0] == "command")
        words = [_argument(each) for each in value]
        code = code_argument(words)
        if code is not None and isinstance(value[code], str):  # [bash, -c, text]: the text is a command too
            words[code], variables = bind(bound_parts(value[code]))
            env.update(variables)
        if present[0] == "command" and not any(space in words[0] for space in " \t\n"):
            return [*words, *arguments]  # a program and its arguments: no shell, no binding
        value = "set -e\n" + "\n".join(_line(each) for each in value)
    elif not isinstance(value, str):
        raise InvalidTask("schema", f"a command must be a string or a list, not {value!r}")
    elif present[0] == "commands":
        value = "set -e\n" + value
    text, variables = _bound(bound_parts(value), shell)
    env.update(variables)
    return [shell, "-c", _without_null(text), "noetl", *arguments]


async def _script_argv(
    call: ToolCall,
    value: Any,
    shell: str,
    arguments: list[str],
    env: dict[str, str],
    files: contextlib.ExitStack,
) -> list[str]:
    """The command line for a script, which is written to a temporary file for the duration of the call."""
    if isinstance(value, Mapping):
        try:
            parts: list[str | Bound] = [await read_script(call, _plain(value))]
        except ScriptUnavailable as failure:
            raise InvalidTask(failure.kind, str(failure)) from failure
    elif isinstance(value, str):
        whole = whole_value(value)
        parts = bound_parts(value) if whole is None else [str(check_whole(whole))]
    else:
        raise InvalidTask("schema", "`script` must be a string or `{uri}`")
    first = str(parts[0]).partition("\n")[0] if parts and isinstance(parts[0], str) else ""
    if first.startswith("#!") and not shell:
        interpreter = shlex.split(first[2:]) or [_shell(None, env)]
    else:
        interpreter = shlex.split(shell) if shell else [_shell(None, env)]
    names = {os.path.basename(word) for word in interpreter[:2]}
    text, variables = _bound(parts, next(iter(names & POSIX), interpreter[0]))
    env.update(variables)
    return [*interpreter, files.enter_context(_temporary_file(_without_null(text))), *arguments]


def _line(value: Any) -> str:
    """A command of a list, in which one that is an expression as a whole has its value."""
    whole = whole_value(value)
    return str(value) if whole is None else str(check_whole(whole))


def _plain(value: Any) -> Any:
    """A value of `script` with its bound templates as text: none of it is part of a command."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return bound_text(value) if isinstance(value, str) else value


def _bound(parts: list[str | Bound], shell: str) -> tuple[str, dict[str, str]]:
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts)), {}
    if os.path.basename(shell) not in POSIX:
        raise CannotBind(
            f"template values in a script for {os.path.basename(shell)} could be evaluated as code; "
            "pass values in `env:`, `arguments:` or `stdin:`"
        )
    return bind(parts)


@contextlib.contextmanager
def _temporary_file(text: str) -> Iterator[str]:
    handle, path = tempfile.mkstemp(prefix="noetl-", suffix=".script")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


def _shell(given: Any, env: Mapping[str, str]) -> str:
    if given:
        return _data(given)
    return shutil.which("bash", path=env.get("PATH")) or "/bin/sh"


def _argument(value: Any) -> str:
    """A word of a command, in which values are marked."""
    return _without_null(bound_text(value)) if isinstance(value, str) else _data(value)


def _data(value: Any) -> str:
    return _without_null(Bound(value).text)


def _without_null(text: str) -> str:
    if "\x00" in text:
        raise CannotBind(
            "the command, an argument or a variable contains a NUL character, which no program can receive"
        )
    return text


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


# ── environment ─────────────────────────────────────────────────────────────────────────


def _environment(call: ToolCall, fields: Mapping[str, Any]) -> dict[str, str]:
    env = base_environment()
    mark = {VARIABLE: call.task_run_id}  # by which its processes are recognized
    inherited = call.spec.get("inherit_env")
    if inherited is True:
        env = {name: value for name, value in os.environ.items() if not _is_private(name)}
    elif isinstance(inherited, list):
        private = [str(name) for name in inherited if _is_private(str(name))]
        if private:
            raise InvalidTask("schema", f"`inherit_env`: {private[0]} is a setting of NoETL and is not inherited")
        env |= {str(name): os.environ[str(name)] for name in inherited if str(name) in os.environ}
    # Inputs that are not fields of this kind are variables too: `input: {name: ...}` is `$name`.
    for name, value in fields.items():
        if name not in SPEC.fields and name.isidentifier():
            env[name] = _data(value)
    variables = fields.get("env")
    if variables is not None and not isinstance(variables, Mapping):
        raise InvalidTask("schema", "`env` must be a mapping of names to values")
    for name, value in (variables or {}).items():
        if not str(name) or "=" in str(name) or "\x00" in str(name):
            raise InvalidTask("schema", f"{name!r} is not a valid name of an environment variable")
        if value is not None:
            env[str(name)] = _data(value)
    return env | mark


def _is_private(name: str) -> bool:
    """Whether a variable is a setting of NoETL: tokens, the master key, the address of the store."""
    return name.upper().startswith("NOETL_")


def _working_folder(call: ToolCall, fields: Mapping[str, Any]) -> str | None:
    cwd = fields.get("cwd") and _data(fields["cwd"])
    folder = call.host.resolve_path(str(cwd or "."))
    if os.path.isdir(folder):
        return folder
    if cwd:
        raise InvalidTask("not_found", f"working directory {cwd} does not exist")
    return None


def _stdin(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _check_program(program: str, env: Mapping[str, str]) -> None:
    if shutil.which(program, path=env.get("PATH")) is None:
        raise InvalidTask("not_found", f"program not found: {program!r}")


def _read_limits(call: ToolCall) -> dict[str, float]:
    limits = {"kill_grace": GRACE_S, "max_output_bytes": MAX_OUTPUT, "max_log_bytes": MAX_LOG}
    for name in limits:
        value = call.spec.get(name)
        if value is None:
            continue
        try:
            limits[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            limits[name] = -1
        if not 0 <= limits[name] < inf:
            raise InvalidTask("schema", f"spec.{name} of a shell task must be a number, not {value!r}")
    return limits


class _Log:
    """Forwards output lines to the host, up to a limit."""

    def __init__(self, call: ToolCall, max_bytes: int) -> None:
        self.host = call.host
        self.remaining = max_bytes

    def __call__(self, line: str, stream: str) -> bool:
        if self.remaining < 0:
            return False
        self.remaining -= len(line) + 1
        if self.remaining < 0:
            line = "... log truncated (spec.max_log_bytes)"
        self.host.log(line, stream=stream)
        return self.remaining >= 0


# ── outcome ─────────────────────────────────────────────────────────────────────────────


def _outcome(call: ToolCall, completed: Completed) -> Outcome:
    status = completed.status
    data = {"returncode": status, "stdout": completed.stdout, "stderr": completed.stderr}
    name = signal.Signals(-status).name if status < 0 else None
    helper = {"returncode": status, "signal": name}
    meta: dict[str, Any] = {"stdout_bytes": completed.stdout_bytes, "stderr_bytes": completed.stderr_bytes}
    if completed.is_truncated:
        meta["truncated"] = True
    if completed.timed_out:
        message = f"the command ran longer than {call.timeout.total:g} s (spec.timeout); its processes were killed"
        return error("timeout", message, data=data, meta=meta, sh=helper)
    ok_codes = call.spec.get("ok_codes")
    accepted = {0} | {int(code) for code in _as_list(ok_codes) if str(code).lstrip("-").isdigit()}
    if status in accepted:
        return ok(data, meta=meta, sh=helper)
    last_line = next((line for line in reversed(completed.stderr.splitlines()) if line.strip()), "")
    message = f"the command was killed by {name}" if name else f"the command exited with status {status}"
    if last_line:
        message = f"{message}: {last_line.strip()[:MESSAGE_CHARS]}"
    return error("shell", message, data=data, meta=meta, details={"returncode": status}, sh=helper)
