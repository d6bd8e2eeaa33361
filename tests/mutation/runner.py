"""Runs the tests of each mutant in a process forked from one in which all tests are collected already.

A mutant costs the time of its tests alone: nothing is imported or collected again. A mutant of a module's own
statements (constants, defaults of fields) is loaded into a new process instead.
"""

from __future__ import annotations

import ast
import gc
import heapq
import itertools
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pytest
from msgspec import Struct

from tests.mutation.install import (
    NotInstalled,
    functions_by_file,
    install,
    install_at_import,
    is_installed_at_import,
)
from tests.mutation.mutants import Mutant
from tests.mutation.recording import FOLDERS, OPTIONS, ROOT, Recorded, needs_services

CPU_SECONDS = 15  # of one test, beyond which a mutant loops for ever
MEMORY = 3 * 1024**3  # bytes of addresses: one that collects without end
IDLE_SECONDS = 45.0  # one that waits for ever: its process neither ran nor wanted to run for this long
MOST_TESTS = 250  # of the area of a mutant, and as many others
TEST_SECONDS = 8.0  # that these tests took when they were recorded
TEST_OVERHEAD = 0.01  # seconds that a test takes beyond its own
MORE_SECONDS = 30.0  # the same of the tests that a survivor of the first ones gets
SURVIVED, NOTICED, NOT_LOADED, NEW_PROCESS = 0, 1, 3, 4


class Verdict(Struct, frozen=True):
    """What became of a mutant: noticed, by which test or limit, and how many tests it was given."""

    mutant: Mutant
    noticed: bool
    by: str
    tests: int


def selected(mutant: Mutant, recorded: Recorded, most: float = TEST_SECONDS) -> list[str]:
    """The first tests of a mutant: those about its module, then different ones that execute its lines, first those of its area."""
    found = _executing(mutant, recorded)
    focused = _focused(mutant, found, recorded, most)
    found -= set(focused)
    own = tests_of_area(mutant.file)
    first = _different(mutant, [test for test in found if test.startswith(own)], recorded, most)
    return [*focused, *first, *_different(mutant, [test for test in found if not test.startswith(own)], recorded, most)]


def _focused(mutant: Mutant, tests: set[str], recorded: Recorded, most: float) -> list[str]:
    """The tests that are about the module of a mutant, up to a quarter of a time."""
    focus = recorded.focus(mutant.file)
    chosen: list[str] = []
    seconds = 0.0
    for test in sorted(tests, key=lambda each: (-focus.get(each, 0.0), each)):
        seconds += recorded.seconds[test]
        if seconds > most / 4:
            break
        chosen.append(test)
    return chosen


def remaining(mutant: Mutant, recorded: Recorded, tests: Sequence[str], most: float) -> list[str]:
    """The tests for a mutant that has survived these ones: the others that execute its lines."""
    return _in_turn([*(_executing(mutant, recorded) - set(tests))], recorded, most)


def _executing(mutant: Mutant, recorded: Recorded) -> set[str]:
    found = recorded.tests_of(mutant.file, range(mutant.line, mutant.last_line + 1))
    if not found and mutant.function:
        found = recorded.tests_of(mutant.file, range(mutant.function[0] + 1, mutant.function[1] + 1))
    if recorded.runs_at_import(mutant):
        for others in _others(mutant, recorded):
            if len(found) > 1:  # one alone may only have imported the module
                break
            found |= others
    return found


def _others(mutant: Mutant, recorded: Recorded) -> Iterator[set[str]]:
    """Tests for what runs at import: those that use it, those of its module, those of its area."""
    yield set().union(*(recorded.tests_of(mutant.file, range(line, line + 1)) for line in _uses(mutant)))
    yield recorded.tests_of(mutant.file, range(10_000))
    own = tests_of_area(mutant.file)
    yield {test for test in recorded.seconds if test.startswith(own)}


def _uses(mutant: Mutant) -> list[int]:
    """The lines that read the constants which a statement of the module defines."""
    tree = ast.parse((ROOT / mutant.file).read_text())
    changed = [each for each in tree.body if each.lineno <= mutant.line <= (each.end_lineno or each.lineno)]
    names = [each for statement in changed for each in ast.walk(statement) if isinstance(each, ast.Name)]
    defined = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    read = (each for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return sorted({each.lineno for each in read if each.id in defined})


def tests_of_area(file: str) -> str:
    """The folder of the tests that are about a module: they run first."""
    return {"engine": "tests/core/engine/", "pipeline": "tests/core/pipeline/"}.get(file.split("/")[2], "tests/server/")


def _different(mutant: Mutant, tests: Sequence[str], recorded: Recorded, most: float) -> list[str]:
    """Tests that differ most, up to a time and a number that belongs to it."""
    folder = next(folder for folder in FOLDERS if mutant.file.startswith(folder))
    return _bounded(_by_new_lines(tests, recorded.lines_of(folder), recorded), recorded, most)


def _by_new_lines(tests: Sequence[str], lines: dict[str, int], recorded: Recorded) -> Iterator[str]:
    """The tests in an order in which each executes as many lines per second as possible that those before it do not.

    When every line has been executed, the others follow in the same way."""
    left = {*tests}
    while left:
        executed = 0
        gains = [(-math.inf, test) for test in sorted(left)]
        while gains:
            test = heapq.heappop(gains)[1]
            gain = (lines.get(test, 0) & ~executed).bit_count() / (recorded.seconds[test] + TEST_OVERHEAD)
            if gains and -gain > gains[0][0]:  # another may execute more: what a test adds only becomes less
                heapq.heappush(gains, (-gain, test))
                continue
            if not gain and executed:
                break
            yield test
            left.discard(test)
            executed |= lines.get(test, 0)


def _in_turn(tests: Sequence[str], recorded: Recorded, most: float) -> list[str]:
    """As many tests as possible: short ones first, those of each file in turn, up to a time and a number that belongs to it."""
    files: dict[str, list[str]] = {}
    for test in sorted(tests, key=lambda each: (recorded.seconds[each], each)):
        files.setdefault(test.partition("::")[0], []).append(test)
    by_time = sorted(files.values(), key=lambda each: recorded.seconds[each[0]])
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_time))
    return _bounded([test for test in in_turn if test is not None], recorded, most)


def _bounded(tests: Iterable[str], recorded: Recorded, most: float) -> list[str]:
    """The first tests, up to a time and a number that belongs to it."""
    chosen: list[str] = []
    seconds = 0.0
    for test in tests:
        if recorded.seconds[test] > most / 2:
            continue
        seconds += recorded.seconds[test]
        if chosen and (len(chosen) >= MOST_TESTS * most / TEST_SECONDS or seconds > most):
            break
        chosen.append(test)
    return chosen


class Seconds(NamedTuple):
    """How long the tests of a mutant took when they were recorded: the first ones, and those for a survivor of them."""

    first: float = TEST_SECONDS
    more: float = MORE_SECONDS


class Collected(NamedTuple):
    """What a forked process has of its parent: the tests by name, and the functions by file."""

    items: dict[str, pytest.Item]
    functions: dict[str, list[FunctionType]]


class Runner:
    """A pytest plug-in: collects all tests, and then runs mutants instead of the tests."""

    def __init__(
        self, mutants: Sequence[Mutant], recorded: Recorded, jobs: int, deadline: float | None, seconds: Seconds
    ) -> None:
        self._mutants = mutants
        self._recorded = recorded
        self._jobs = jobs
        self._deadline = deadline
        self._seconds = seconds
        self.verdicts: list[Verdict] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not needs_services(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the mutants, some at a time."""
        collected = Collected({item.nodeid: item for item in session.items}, functions_by_file())
        gc.freeze()  # the collector of a child does not touch, and so copy, the memory of this process
        running: list[_Process] = []
        waiting = iter(self._mutants)
        while True:
            while len(running) < self._jobs and (mutant := self._next(waiting)):
                running.append(self._first(mutant, collected))
            if not running:
                return True
            time.sleep(0.02)
            for process in [each for each in running if each.is_done()]:
                running.remove(process)
                if following := self._following(process, collected):
                    process.clean_up()
                    running.append(following)
                else:
                    self.verdicts.append(process.verdict())
                    _print_survivor(self.verdicts[-1])

    def _first(self, mutant: Mutant, collected: Collected) -> _Process:
        tests = selected(mutant, self._recorded, self._seconds.first)
        return _Process(mutant, tests, self._collected_for(mutant, collected))

    def _collected_for(self, mutant: Mutant, collected: Collected) -> Collected | None:
        return None if self._recorded.runs_at_import(mutant) and not mutant.is_control else collected

    def _following(self, ended: _Process, collected: Collected) -> _Process | None:
        """The next process of the same mutant: a new one that loads it, or one with more tests for a survivor."""
        if ended.exit_code == NEW_PROCESS:
            return _Process(ended.mutant, ended.tests, survived=ended.survived)
        if ended.exit_code != SURVIVED or ended.survived or not self._seconds.more:
            return None
        more = remaining(ended.mutant, self._recorded, ended.tests, self._seconds.more)
        if not more:
            return None
        return _Process(ended.mutant, more, self._collected_for(ended.mutant, collected), survived=len(ended.tests))

    def _next(self, waiting: Iterator[Mutant]) -> Mutant | None:
        return None if self._deadline and time.monotonic() > self._deadline else next(waiting, None)


def _print_survivor(verdict: Verdict) -> None:
    if not verdict.noticed and not verdict.mutant.is_control:
        print(f"  survived {verdict.tests} tests: {verdict.mutant}", file=sys.__stderr__, flush=True)


class _Process:
    """The process of one mutant; `survived` is the number of tests that it has survived in an earlier one."""

    def __init__(
        self, mutant: Mutant, tests: list[str], collected: Collected | None = None, *, survived: int = 0
    ) -> None:
        self.mutant = mutant
        self.tests = tests
        self.survived = survived
        self._temporary = tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self._status: int | None = None
        self._limit = ""
        self._idle_since = time.monotonic()
        self._cpu = 0.0
        self._pid = os.fork()
        if not self._pid:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            _child(mutant, tests, collected, self._folder)

    @property
    def exit_code(self) -> int | None:
        """The code that the process ended with."""
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def is_done(self) -> bool:
        """Whether the process has ended; one that waits for ever is killed."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._status = status
            self._kill_group()
            return True
        self._watch()
        return False

    def clean_up(self) -> None:
        """Delete its folder."""
        self._temporary.cleanup()

    def _watch(self) -> None:
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return
        cpu = float(fields[11]) + float(fields[12])
        if cpu > self._cpu + 2 or fields[0] in "RD":  # two ticks: what an idle event loop uses in between
            self._cpu, self._idle_since = cpu, time.monotonic()
        elif time.monotonic() - self._idle_since > IDLE_SECONDS:
            self._limit = "waits for ever"
            os.kill(self._pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def verdict(self) -> Verdict:
        """What became of the mutant."""
        code = self.exit_code
        assert code is not None
        named = self._folder / "noticed-by"
        by = named.read_text() if named.exists() else ""
        self.clean_up()
        if code == NOT_LOADED:
            raise RuntimeError(f"{self.mutant}: the original was loaded instead of the mutant")
        if code == SURVIVED:
            return Verdict(self.mutant, False, "", self.survived + len(self.tests))
        by = by or self._limit or ("CPU time" if code == -signal.SIGXCPU else f"exit code {code}")
        return Verdict(self.mutant, True, by, self.survived + len(self.tests))


def _child(mutant: Mutant, tests: list[str], collected: Collected | None, folder: Path) -> None:
    """Run the tests of a mutant in this forked process until one fails; without `collected`, in a new program. Never returns."""
    code = NOTICED
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        if collected is None:
            _limit_cpu(CPU_SECONDS + MORE_SECONDS)  # of all tests together
            words = [mutant.file, str(mutant.number), str(folder), *tests]
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, "-m", "tests.mutation.runner", *words])
        try:
            install(mutant, collected.functions)
        except NotInstalled:
            os._exit(NEW_PROCESS)
        code = _run([collected.items[test] for test in tests if test in collected.items], folder)
    finally:
        os._exit(code)


def _limit_cpu(seconds: float) -> None:
    """End this process when it has used so many more seconds of CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), resource.RLIM_INFINITY))


def _run(items: Sequence[pytest.Item], folder: Path) -> int:
    for item, following in itertools.pairwise([*items, None]):
        assert item is not None
        _limit_cpu(CPU_SECONDS)
        session = item.session
        session.config._tmp_path_factory._given_basetemp = folder / "tmp"  # type: ignore[attr-defined]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            (folder / "noticed-by").write_text(item.nodeid)
            return NOTICED
    return SURVIVED


def run(
    mutants: Sequence[Mutant],
    recorded: Recorded,
    jobs: int,
    deadline: float | None = None,
    seconds: Seconds = Seconds(),  # noqa: B008 - immutable
) -> list[Verdict]:
    """Run mutants with the tests that were recorded for their lines."""
    runner = Runner(mutants, recorded, jobs, deadline, seconds)
    needed = {test.partition("::")[0] for mutant in mutants for test in _executing(mutant, recorded)}
    code = pytest.main([*OPTIONS, *sorted(needed)], plugins=[runner])
    if needed and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"the tests were not collected: {code!r}")
    return runner.verdicts


def main(arguments: list[str]) -> int:
    """Run the tests of one mutant in this new process."""
    file, number, folder, *tests = arguments
    mutant = Mutant(file, int(number), 0, 0, None, "")
    install_at_import(mutant)
    code = pytest.main([*OPTIONS, "-x", f"--basetemp={folder}/tmp", *tests])
    if not is_installed_at_import(mutant):
        return NOT_LOADED
    if code != pytest.ExitCode.OK:
        (Path(folder) / "noticed-by").write_text("a new process")
        return NOTICED
    return SURVIVED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
