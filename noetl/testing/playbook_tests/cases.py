"""Reads test files: `NAME.test.yaml` in the folder of the playbook `NAME.yaml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from noetl.core.language.source.nodes import Mapping, Node, Sequence
from noetl.core.language.source.yaml_source import data_of, read_source
from noetl.errors import RequestRefused
from noetl.settings import similar

SUFFIXES = (".test.yaml", ".test.yml")
MAX_BYTES = 64 * 1024 * 1024


class BadTestFile(RequestRefused):
    """A test file is invalid; the message has the file, the position and the reason."""


class Expect(Struct, frozen=True, forbid_unknown_fields=True):
    """The expected result; fields that are not given are not checked, except the status."""

    status: str = "success"
    output: Any = UNSET  # equal to the data of the output
    ctx: dict[str, Any] = field(default_factory=dict)  # ctx must contain these values
    state: dict[str, Any] | UnsetType = UNSET  # equal to the stored state after the execution
    error: dict[str, Any] | str | None = None  # kind, message (a part of it), ...; or a part of the message
    steps: dict[str, Any] = field(default_factory=dict)  # step -> status, or {status, runs, attempts}
    order: list[str] | UnsetType = UNSET  # the steps that were scheduled, in order
    calls: dict[str, Any] = field(default_factory=dict)  # name -> number of calls, or (parts of) their inputs
    check: list[str] | str = ()  # type: ignore[assignment]  # templates that must be true


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """One test."""

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # the stored state before the execution
    mocks: dict[str, Any] = field(default_factory=dict)  # step.task, task, step or kind:KIND -> outcome or data
    recorded: dict[str, Any] = field(default_factory=dict)  # run of a task -> its recorded outcome
    secrets: dict[str, Any] = field(default_factory=dict)  # values of keychain entries
    real: list[str] = field(default_factory=list)  # kinds that run although they have external effects
    strict: bool = False
    legacy: bool = False
    timeout: float = 60.0
    expect: Expect = Expect()


class TestFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The tests of one playbook; mocks, secrets and real kinds of the file apply to every test."""

    tests: list[Case]
    playbook: str = ""  # a file in the same folder; default: the file of the same name
    mocks: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, Any] = field(default_factory=dict)
    real: list[str] = field(default_factory=list)

    def cases(self) -> list[Case]:
        """The tests, each with the common mocks, secrets and real kinds."""
        return [
            msgspec.structs.replace(
                case,
                mocks={**self.mocks, **case.mocks},
                secrets={**self.secrets, **case.secrets},
                real=[*self.real, *case.real],
            )
            for case in self.tests
        ]


def find(paths: list[str]) -> list[Path]:
    """The given test files and those in the given folders; default: the working folder."""
    found: dict[Path, None] = {}
    for name in paths or ["."]:
        path = Path(name)
        if path.is_dir():
            files = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
            found |= dict.fromkeys(file for file in files if not any(part.startswith(".") for part in file.parts[:-1]))
        elif not path.exists():
            raise BadTestFile(f"{name}: no such file")
        elif path.suffix in (".yaml", ".yml") and not name.endswith(SUFFIXES):
            found[_tests_of(path)] = None
        else:
            found[path] = None
    return list(found)


def _tests_of(playbook: Path) -> Path:
    """The test file beside a playbook."""
    tests = [playbook.with_name(f"{playbook.stem}{suffix}") for suffix in SUFFIXES]
    existing = next((file for file in tests if file.exists()), None)
    if existing is None and b"kind: Playbook" in playbook.read_bytes():
        raise BadTestFile(
            f"{playbook} is a playbook without tests: write them in {tests[0]}, or create them from an execution with "
            f"`noetl test --record last > {tests[0]}`"
        )
    return existing or playbook


def read(path: Path) -> tuple[TestFile, Path]:
    """Read a test file; return it and the path of its playbook."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BadTestFile(f"{path}: cannot be read: {problem.strerror}") from None
    source = read_source(content)
    if source.problems:
        first = source.problems[0]
        raise BadTestFile(f"{path}:{first.node.line}:{first.node.column}: {first.message}")
    try:
        tests = msgspec.convert(data_of(source.root), TestFile)
    except msgspec.ValidationError as problem:
        raise BadTestFile(f"{path}{_message(str(problem), source.root)}") from None
    if not tests.tests:
        raise BadTestFile(f"{path}: the file has no tests")
    playbook = path.parent.absolute() / (tests.playbook or _playbook_name(path.name))
    if not playbook.exists():
        raise BadTestFile(f"{path}: the playbook {playbook} does not exist; set `playbook:` to its file")
    return tests, playbook


def _playbook_name(name: str) -> str:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + "." + suffix.rpartition(".")[2]
    return name


_YAML_WORDS = {"object": "a mapping", "array": "a list", "int": "a whole number", "float": "a number", "str": "text",
               "bool": "true or false", "null": "nothing"}  # fmt: skip


def _message(problem: str, root: Node | None) -> str:
    """The line and the text of a message of msgspec, in the words of YAML."""
    message, _, position = problem.partition(" - at ")
    node = root
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", position):
        if isinstance(node, Mapping) and key in node.entries:
            node = node.entries[key][1]
        elif isinstance(node, Sequence) and index:
            node = node.items[int(index)]
    unknown = re.search(r"unknown field `(.*)`", message)
    if unknown:
        node = node.entries[unknown[1]][0] if isinstance(node, Mapping) and unknown[1] in node.entries else node
        known = {name for each in (TestFile, Case, Expect) for name in each.__struct_fields__}
        message = f"unknown key {unknown[1]}{similar(unknown[1], sorted(known))}"
    message = re.sub(r"`(\w+)`", lambda found: _YAML_WORDS.get(found[1], found[0]), message)
    where = f":{node.line}:{node.column}" if node is not None else ""
    return f"{where}: {message[:1].lower()}{message[1:]}"
