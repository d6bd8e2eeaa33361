"""Test files: `NAME.test.yaml` beside the playbook `NAME.yaml`, read into frozen data, problems in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from noetl.core.language.source.yaml_source import data_of, read_source
from noetl.errors import RequestRefused

SUFFIXES = (".test.yaml", ".test.yml")
MAX_BYTES = 64 * 1024 * 1024


class BadTestFile(RequestRefused):
    """A test file that cannot be used: which, where, why."""


class Expect(Struct, frozen=True, forbid_unknown_fields=True):
    """What must come of it; what is not said is not looked at (but for the status)."""

    status: str = "success"
    output: Any = UNSET  # equal to the data of the output
    ctx: dict[str, Any] = field(default_factory=dict)  # these values, among others
    error: dict[str, Any] | str | None = None  # kind, message (a part of it), ...; or a part of the message
    steps: dict[str, Any] = field(default_factory=dict)  # step -> status, or {status, runs, attempts}
    order: list[str] | UnsetType = UNSET  # the steps that were scheduled, in order
    calls: dict[str, Any] = field(default_factory=dict)  # name -> how often, or the inputs of its calls (parts of them)
    check: list[str] | str = ()  # type: ignore[assignment]  # templates that must hold


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """One test."""

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    mocks: dict[str, Any] = field(default_factory=dict)  # step.task, task, step or kind:KIND -> what it answers
    recorded: dict[str, Any] = field(default_factory=dict)  # a task's run -> its outcome, as an execution had it
    secrets: dict[str, Any] = field(default_factory=dict)  # values of keychain entries
    real: list[str] = field(default_factory=list)  # kinds that run although they touch the world
    strict: bool = False
    legacy: bool = False
    timeout: float = 60.0
    expect: Expect = Expect()


class TestFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The tests of one playbook; mocks, secrets and real kinds of the file are those of every test."""

    tests: list[Case]
    playbook: str = ""  # beside this file; without it the file of the same name
    mocks: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, Any] = field(default_factory=dict)
    real: list[str] = field(default_factory=list)

    def cases(self) -> list[Case]:
        """The tests, each with what the file says for all of them."""
        return [
            msgspec.structs.replace(
                case,
                mocks={**self.mocks, **case.mocks},
                secrets={**self.secrets, **case.secrets},
                real=[*self.real, *case.real],
            )
            for case in self.tests
        ]


def find(places: list[str]) -> list[Path]:
    """The test files that are named, or lie in the folders that are named (here, when nothing is)."""
    found: dict[Path, None] = {}
    for place in places or ["."]:
        path = Path(place)
        if path.is_dir():
            files = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
            found |= dict.fromkeys(file for file in files if not any(part.startswith(".") for part in file.parts[:-1]))
        elif not path.exists():
            raise BadTestFile(f"{place}: there is no such file")
        else:
            found[path] = None
    return list(found)


def read(path: Path) -> tuple[TestFile, Path]:
    """A test file, and the playbook that it is about."""
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
        raise BadTestFile(f"{path}: {_words(str(problem))}") from None
    if not tests.tests:
        raise BadTestFile(f"{path}: there are no tests in it")
    playbook = path.parent.absolute() / (tests.playbook or _beside(path.name))
    if not playbook.exists():
        raise BadTestFile(f"{path}: its playbook {playbook} does not exist; name it with `playbook:`")
    return tests, playbook


def _beside(name: str) -> str:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + "." + suffix.rpartition(".")[2]
    return name


def _words(problem: str) -> str:
    """msgspec's sentence with the place in front."""
    message, _, place = problem.partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    return f"at {place}: {message[:1].lower()}{message[1:]}" if place else message[:1].lower() + message[1:]
