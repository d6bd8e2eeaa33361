"""One call of kind shell: what to start, with which surroundings, and what came of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall, ToolSpec
from noetl.core.templates.binding import Bound, bound_parts, bound_text
from noetl.errors import NoetlError
from noetl.tools.shell.child_process import Ended, base_environment, run_program
from noetl.tools.shell.nested_shell import code_among
from noetl.tools.shell.value_binding import CannotBind, bind

MOST_OUTPUT = 1024 * 1024
MOST_LOG = 1024 * 1024
GRACE_S = 1.0
MESSAGE_CHARS = 500
POSIX = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"})


class Refused(NoetlError):
    """The task cannot be started, in words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def perform(call: ToolCall, given: Mapping[str, Any], spec: ToolSpec) -> Outcome:
    """Start what the (named) parameters describe, and wait for its end."""
    nulls = dict(spec.helpers["sh"])
    try:
        env = _environment(call, given, spec)
        cwd = _folder(call, given)
        limits = _limits(call)
        with contextlib.ExitStack() as files:
            argv = await _argv(call, given, env, files)
            _check_program(argv[0], env)
            ended = await run_program(
                argv,
                env=env,
                cwd=cwd,
                stdin=_stdin(given.get("stdin")),
                timeout=call.timeout.total,
                grace=limits["kill_grace"],
                most=int(limits["max_output_bytes"]),
                on_line=_Log(call, int(limits["max_log_bytes"])),
                mask=call.host.mask,
            )
    except Refused as refused:
        return error(refused.kind, str(refused), sh=nulls)
    except CannotBind as problem:
        return error("schema", str(problem), sh=nulls)
    except OSError as failure:
        if failure.errno == errno.E2BIG:
            message = "the values of the command are too large for a program's environment; hand them over as `stdin`"
            return error("limit", message, sh=nulls)
        return error("shell", f"the command cannot be started: {failure.strerror or failure}", sh=nulls)
    return _outcome(call, ended)


# ── what to start ───────────────────────────────────────────────────────────────────────


async def _argv(
    call: ToolCall, given: Mapping[str, Any], env: dict[str, str], files: contextlib.ExitStack
) -> list[str]:
    """The program and its arguments; values of the text go into `env`."""
    there = [name for name in ("command", "commands", "script") if given.get(name) not in (None, "", [])]
    if len(there) != 1:
        said = f"it has {' and '.join(f'`{name}`' for name in there)}" if there else "there is none"
        raise Refused("schema", f"a shell task has one of `command`, `commands`, `script`, and {said}")
    arguments = [_word(each) for each in _listed(given.get("arguments"))]
    value = given[there[0]]
    if there[0] == "script":
        return await _script(call, value, str(given.get("shell") or ""), arguments, env, files)
    shell = _shell(given.get("shell"), env)
    if isinstance(value, list) and value:
        words = [_word(each) for each in value]
        code = code_among(words)
        if code is not None and isinstance(value[code], str):  # [bash, -c, text]: the text is a command as well
            words[code], variables = bind(bound_parts(value[code]))
            env.update(variables)
        if there[0] == "command" and not any(space in words[0] for space in " \t\n"):
            return [*words, *arguments]  # a program and its arguments: no shell, nothing to bind
        value = "set -e\n" + "\n".join(str(each) for each in value)
    elif not isinstance(value, str):
        raise Refused("schema", f"a command is text or a list, not {value!r}")
    elif there[0] == "commands":
        value = "set -e\n" + value
    text, variables = _bound(bound_parts(value), shell)
    env.update(variables)
    return [shell, "-c", text, "noetl", *arguments]


async def _script(
    call: ToolCall,
    value: Any,
    shell: str,
    arguments: list[str],
    env: dict[str, str],
    files: contextlib.ExitStack,
) -> list[str]:
    """A script as a file that lives as long as the call."""
    if isinstance(value, Mapping):
        if not value.get("uri"):
            raise Refused("schema", "script needs a `uri`: the file, URL or object that holds it")
        uri = bound_text(str(value["uri"]))
        try:
            parts: list[str | Bound] = [
                (await call.host.fetch_source(uri, source=value.get("source"))).decode("utf-8-sig")
            ]
        except UnicodeDecodeError as wrong:
            raise Refused("parse", f"the script {uri} is not UTF-8 text") from wrong
        except OSError as failure:
            raise Refused("not_found", f"the script {uri} cannot be read: {failure.strerror or failure}") from failure
    elif isinstance(value, str):
        parts = bound_parts(value)
    else:
        raise Refused("schema", "a script is text, or `{uri}`")
    first = str(parts[0]).partition("\n")[0] if parts and isinstance(parts[0], str) else ""
    if first.startswith("#!") and not shell:
        interpreter = shlex.split(first[2:]) or [_shell(None, env)]
    else:
        interpreter = shlex.split(shell) if shell else [_shell(None, env)]
    names = {os.path.basename(word) for word in interpreter[:2]}
    text, variables = _bound(parts, next(iter(names & POSIX), interpreter[0]))
    env.update(variables)
    return [*interpreter, files.enter_context(_file(text)), *arguments]


def _bound(parts: list[str | Bound], shell: str) -> tuple[str, dict[str, str]]:
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts)), {}
    if os.path.basename(shell) not in POSIX:
        raise CannotBind(
            f"templates inside a script for {os.path.basename(shell)} could become part of its code; "
            "hand values over in `env:`, `arguments:` or `stdin:`"
        )
    return bind(parts)


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    handle, path = tempfile.mkstemp(prefix="noetl-", suffix=".script")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


def _shell(given: Any, env: Mapping[str, str]) -> str:
    if given:
        return str(given)
    return shutil.which("bash", path=env.get("PATH")) or "/bin/sh"


def _word(value: Any) -> str:
    text = bound_text(value) if isinstance(value, str) else Bound(value).text
    if "\x00" in text:
        raise CannotBind("an argument contains a NUL character, which no program can be given")
    return text


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


# ── its surroundings ────────────────────────────────────────────────────────────────────


def _environment(call: ToolCall, given: Mapping[str, Any], spec: ToolSpec) -> dict[str, str]:
    env = base_environment()
    inherited = call.spec.get("inherit_env")
    if inherited is True:
        env = dict(os.environ)
    elif isinstance(inherited, list):
        env |= {str(name): os.environ[str(name)] for name in inherited if str(name) in os.environ}
    # Inputs that are no parameters of this kind are variables too: `input: {name: ...}` is `$name`.
    for name, value in given.items():
        if name not in spec.fields and name.isidentifier():
            env[name] = _word(value)
    named = given.get("env")
    if named is not None and not isinstance(named, Mapping):
        raise Refused("schema", "`env` is a mapping of names to values")
    for name, value in (named or {}).items():
        if not str(name) or "=" in str(name) or "\x00" in str(name):
            raise Refused("schema", f"{name!r} cannot be the name of an environment variable")
        if value is not None:
            env[str(name)] = _word(value)
    return env


def _folder(call: ToolCall, given: Mapping[str, Any]) -> str | None:
    wanted = given.get("cwd")
    folder = call.host.resolve_path(str(wanted or "."))
    if os.path.isdir(folder):
        return folder
    if wanted:
        raise Refused("not_found", f"the working folder {wanted} does not exist")
    return None


def _stdin(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _check_program(program: str, env: Mapping[str, str]) -> None:
    if shutil.which(program, path=env.get("PATH")) is None:
        raise Refused("not_found", f"there is no program {program!r} here")


def _limits(call: ToolCall) -> dict[str, float]:
    limits = {"kill_grace": GRACE_S, "max_output_bytes": MOST_OUTPUT, "max_log_bytes": MOST_LOG}
    for name in limits:
        value = call.spec.get(name)
        if value is None:
            continue
        try:
            limits[name] = float(value)
        except (TypeError, ValueError):
            limits[name] = -1
        if limits[name] < 0:
            raise Refused("schema", f"spec.{name} of a shell task is a number, not {value!r}")
    return limits


class _Log:
    """Lines on their way to the host, up to a limit."""

    def __init__(self, call: ToolCall, most: int) -> None:
        self.host = call.host
        self.left = most

    def __call__(self, line: str, stream: str) -> bool:
        if self.left < 0:
            return False
        self.left -= len(line) + 1
        if self.left < 0:
            line = "... more output is not kept (spec.max_log_bytes)"
        self.host.log(line, stream=stream)
        return self.left >= 0


# ── what came of it ─────────────────────────────────────────────────────────────────────


def _outcome(call: ToolCall, ended: Ended) -> Outcome:
    data = {"returncode": ended.status, "stdout": ended.stdout, "stderr": ended.stderr}
    name = signal.Signals(-ended.status).name if ended.status < 0 else None
    helper = {"returncode": ended.status, "signal": name}
    meta: dict[str, Any] = {"stdout_bytes": ended.stdout_bytes, "stderr_bytes": ended.stderr_bytes}
    if ended.was_cut:
        meta["truncated"] = True
    if ended.timed_out:
        message = f"the command ran longer than {call.timeout.total:g} s (spec.timeout), and its processes were ended"
        return error("timeout", message, data=data, meta=meta, sh=helper)
    good = call.spec.get("ok_codes")
    accepted = {0} | {int(code) for code in _listed(good) if str(code).lstrip("-").isdigit()}
    if ended.status in accepted:
        return ok(data, meta=meta, sh=helper)
    said = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    message = f"the command was ended by {name}" if name else f"the command ended with exit status {ended.status}"
    if said:
        message = f"{message}: {said.strip()[:MESSAGE_CHARS]}"
    return error("shell", message, data=data, meta=meta, details={"returncode": ended.status}, sh=helper)
