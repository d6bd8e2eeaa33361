"""The pytest plug-in: collects `NAME.test.yaml` files, and the fixture `noetl_playbook` runs a playbook with mocks.

It is loaded by the entry point `noetl` of the group `pytest11`; it imports nothing heavy before it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SUFFIXES = (".test.yaml", ".test.yml")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a test file beside its playbook."""
    if not file_path.name.endswith(SUFFIXES):
        return None
    playbook = file_path.with_name(file_path.name.replace(".test.", "."))
    if not playbook.exists() and b"playbook:" not in file_path.read_bytes():
        return None  # a test file of another program
    return PlaybookTestFile.from_parent(parent, path=file_path)


class PlaybookTestFile(pytest.File):
    """A file of playbook tests."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item per test."""
        from noetl.testing.playbook_tests.cases import BadTestFile, read

        try:
            tests, playbook = read(self.path)
        except BadTestFile as problem:
            raise self.CollectError(str(problem)) from None
        for case in tests.cases():
            yield PlaybookTest.from_parent(self, name=case.name, case=case, playbook=playbook)


class PlaybookTest(pytest.Item):
    """One playbook test."""

    def __init__(self, *, case: Any, playbook: Path, **more: Any) -> None:
        super().__init__(**more)
        self._case, self._playbook = case, playbook

    def runtest(self) -> None:
        """Run the playbook and compare the result."""
        from noetl.testing.playbook_tests.assertions import run_case

        result = asyncio.run(run_case(str(self.path), self._playbook, self._case))
        if not result.ok:
            raise PlaybookTestFailed("\n".join(result.problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The differences, without a traceback."""
        if isinstance(excinfo.value, PlaybookTestFailed):
            return f"{self.path.name}: {self.name}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """File and name."""
        return self.path, None, self.name


class PlaybookTestFailed(Exception):
    """The result differs from the expected one."""


@pytest.fixture
def noetl_playbook(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a playbook with mocks: `noetl_playbook("orders.yaml", payload={...}, mocks={"fetch": {...}})`.

    Paths are relative to the test file. Returns a `MockedRun`: status, data, result, order, calls_of(name)."""
    from noetl.embedded import is_text
    from noetl.testing.playbook_runs import run_mocked

    def run(playbook: Any, payload: Any = None, **options: Any) -> Any:
        if not (isinstance(playbook, str) and is_text(playbook)):
            playbook = request.path.parent / playbook
        return asyncio.run(run_mocked(playbook, payload, **options))

    return run
