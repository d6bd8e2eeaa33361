"""What one call runs: its input, checked, and independent of the engine."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from noetl.tool import Reference, ToolCall, reference_in

GRACE_SECONDS = 1.0
MAX_OUTPUT = 1024 * 1024
INLINE_BYTES = 256 * 1024
HELPER_IMAGE = "busybox:stable"
PULL_POLICIES = {"IfNotPresent": "missing", "Always": "always", "Never": "never"}
MEMORY_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3,
                "kb": 1024, "mb": 1024**2, "gb": 1024**3}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class BadInput(ValueError):
    """The input of the task is wrong; the message names the field and the reason."""


class Container(NamedTuple):
    """A checked input."""

    image: str
    command: list[str]
    args: list[str]
    env: dict[str, str]
    files: dict[str, bytes | Reference]
    outputs: list[str]
    workdir: str | None
    user: str | None
    network: str | None  # None: the default of the engine
    pull: str
    memory: int | None  # bytes
    cpu: float | None
    timeout: float | None
    grace: float
    ok_codes: frozenset[int]
    max_output: int
    inline_bytes: int
    helper_image: str


class Output(NamedTuple):
    """What a container printed, and how it ended."""

    returncode: int
    stdout: str
    stderr: str
    files: dict[str, Any]
    truncated: bool = False
    oom: bool = False
    reason: str = ""  # why it ended, if the engine says more than the status


def container_of(call: ToolCall) -> Container:
    """The checked input of a call; BadInput names what is wrong."""
    given, spec = call.input, call.spec
    workdir = _path("workdir", given["workdir"], None) if given.get("workdir") else None
    pull = str(given.get("pull") or "missing")
    limits = _limits(given)
    timeouts = [each for each in (call.timeout.total, given.get("timeout_seconds")) if each is not None]
    return Container(
        image=_matching("image", given["image"], _IMAGE, "the name of an image"),
        command=_words("command", given.get("command")),
        args=_words("args", given.get("args")),
        env=_environment(given.get("env")),
        files=_files(given.get("files"), workdir),
        outputs=[_path("outputs", each, workdir) for each in _list("outputs", given.get("outputs"))],
        workdir=workdir,
        user=_matching("user", given["user"], _USER, "`name`, `1000` or `1000:1000`") if given.get("user") else None,
        network=_network(given.get("network")),
        pull=PULL_POLICIES.get(pull, pull),
        memory=_memory(limits.get("memory")),
        cpu=_cpu(limits.get("cpu")),
        timeout=min(_number("timeout_seconds", each) for each in timeouts) if timeouts else None,
        grace=_number("spec.kill_grace", spec.get("kill_grace", GRACE_SECONDS)),
        ok_codes=frozenset({0, *(int(_number("ok_codes", each)) for each in _list("ok_codes", spec.get("ok_codes")))}),
        max_output=int(_number("spec.max_output_bytes", spec.get("max_output_bytes", MAX_OUTPUT))),
        inline_bytes=int(_number("spec.inline_bytes", spec.get("inline_bytes", INLINE_BYTES))),
        helper_image=_matching("helper_image", spec.get("helper_image", HELPER_IMAGE), _IMAGE, "the name of an image"),
    )  # fmt: skip


def job_name(call: ToolCall) -> str:
    """The same name for all attempts of a visit, so that an attempt finds what the previous one has left."""
    return f"noetl-{call.idempotency_key[:40].lower()}"


def as_text(value: Any) -> str:
    """A value as an argument or variable."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def _words(field: str, value: Any) -> list[str]:
    words = [as_text(each) for each in _list(field, value)]
    if any("\x00" in word for word in words):
        raise BadInput(f"`{field}` contains a NUL character, which no program can receive")
    if field == "command" and words and not words[0]:
        raise BadInput("the program of `command` is empty")
    return words


def _list(field: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        raise BadInput(f"`{field}` must be a list, not a mapping")
    return list(value) if isinstance(value, list | tuple) else [value]


def _environment(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, list | tuple):
        if not all(isinstance(each, Mapping) and "name" in each for each in value):
            raise BadInput("`env` must be a mapping, or a list of mappings with `name` and `value`")
        value = {each["name"]: each.get("value") for each in value}
    if not isinstance(value, Mapping):
        raise BadInput("`env` must be a mapping, or a list of mappings with `name` and `value`")
    found = {}
    for name, each in value.items():
        if not _NAME.fullmatch(str(name)):
            raise BadInput(f"{name!r} is not a valid name of an environment variable")
        if each is not None:
            found[str(name)] = as_text(each)
            if "\x00" in found[str(name)]:
                raise BadInput(f"the variable {name} contains a NUL character, which no program can receive")
    return found


def _files(value: Any, workdir: str | None) -> dict[str, bytes | Reference]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInput("`files` must be a mapping of paths to contents")
    return {_path("files", path, workdir): _content(each) for path, each in value.items()}


def _content(value: Any) -> bytes | Reference:
    found = reference_in(value)
    if found is not None:
        return found
    return value if isinstance(value, bytes) else as_text(value).encode()


def _path(field: str, value: Any, workdir: str | None) -> str:
    """An absolute, normalized path in the container."""
    text = str(value)
    path = posixpath.normpath(posixpath.join(workdir or "", text))
    if not text or "\x00" in text or not path.startswith("/") or path.strip("/") == "":
        where = "an absolute path" if field == "workdir" else "an absolute path, or relative to `workdir`"
        raise BadInput(f"`{field}`: {text!r} must be {where} of a file or folder below /")
    return "/" + path.lstrip("/")


def _network(value: Any) -> str | None:
    if value in (None, "", "default"):
        return None
    name = str(value)
    if name == "host" or not _NETWORK.fullmatch(name):
        raise BadInput(f"`network`: {name!r} is refused; use `none`, `default` or the name of a network")
    return name


def _matching(field: str, value: Any, pattern: re.Pattern[str], what: str) -> str:
    text = str(value)
    if not pattern.fullmatch(text):
        raise BadInput(f"`{field}`: {text!r} is not {what}")
    return text


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    resources = given.get("resources") or {}
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    found = dict(limits) if isinstance(limits, Mapping) else {}
    return found | {name: given[name] for name in ("memory", "cpu") if given.get(name) is not None}


def _memory(value: Any) -> int | None:
    if value is None:
        return None
    match = _MEMORY.fullmatch(str(value).strip().lower())
    if match is None or match[2] not in MEMORY_UNITS or float(match[1]) <= 0:
        raise BadInput(f"`memory`: {value!r} is not a size such as 512m, 2g or 512Mi")
    return int(float(match[1]) * MEMORY_UNITS[match[2]])


def _cpu(value: Any) -> float | None:
    if value is None:
        return None
    text = str(value).strip()
    number = _number("cpu", text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    if number <= 0:
        raise BadInput("`cpu` must be more than 0")
    return number


def _number(field: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not math.isfinite(number) or number < 0:
        raise BadInput(f"`{field}` must be a number that is not negative, not {value!r}")
    return number
